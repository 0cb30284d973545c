"""The Python interface: what the names of `import harness` stand for, and the work of the commands.

In notebooks and scripts:

`data`      recorded sweeps as data frames (`load`).
`planning`  what a sweep will run (`plan`).
`running`   running it on this machine (`run`).
`comparing` verdicts on results (`compare`).
`tables`    the table of trials as Arrow and Parquet.

For the command line: `starting`, `checking`, `watching`, `logs`, `delivery`, `folders`,
`gating`, `history`, `reproducing`, `machine`, `reporting`, `export`. What takes long reports its
progress to a callback. For both: `reloading`, which reads sweep files.

All functions raise HarnessError and print nothing, except `run` with its progress and those of `logs`.
"""
