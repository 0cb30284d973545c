"""A campaign of faults: the product is disturbed, started again, and held against one oracle.

    make campaign                                                # an hour of all kinds
    python -m tests.programs.campaign --output DIR --repeat 'ADDRESS'     # one fault once more

Whatever happens to a sweep, once it has been started again its bits equal those of an undisturbed
run, every trial has one record, and no process, shared memory or temporary file is left
(`oracle.py`). Each fault strikes the same small sweep, whose first trial is done (`stage.py`).

| kind | what happens | module |
| --- | --- | --- |
| calls | a call to libc is preceded or followed by SIGKILL, or fails | `calls.py`, `faults.c` |
| signals | SIGKILL or SIGSTOP reaches a process of the tree at a random moment | `signals.py` |
| actors | two commands run at once | `actors.py` |
| damage | a file that is read back has changed | `damage.py` |
| gates | a process of `harness gate` or `harness bisect` is killed | `gates.py` |

The command under test and all that it starts are the product's own.

The output folder has a line of JSON for each fault (`outcomes-*.jsonl`), the table, the command that
repeats each fault that the oracle was contradicted by, and what that fault's commands printed
(`failures/`). Linux and gcc are needed.
"""
