"""Steps of a job that stay for several trials, whose ranks their tasks fork with torch loaded.

A step per trial loads Python and torch anew at each of its ranks: seconds of CPU time and of waiting.
Trials that need the same step follow each other in one, whose tasks run `step_task`. A rank that
does not end well ends its task, so a step that has lost a rank is over, and Slurm says why as of any
other step. The next trial of its kind starts another.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.core.processes import end_process_group, parent_variables, wait_for_exit
from harness.launch import controller
from harness.launch.forkserver import TORCH
from harness.launch.launcher import modules_to_preload
from harness.launch.stack import bound_command
from harness.spec.cell import Cell, Trial

TASK_MODULE = "harness.launch.step_task"
MODULES = (*TORCH, "harness.launch.preload")  # that any task of a step loads
OF_TRIAL = "MASTER_PORT"  # the only variable that differs between trials of a step
# Steps that a job has at once. Each task that waits holds torch in some 200 MB of memory of its own.
MOST_STEPS = 3
# Seconds that the tasks of a step may take to say that they are still there.
ANSWER_TIMEOUT = 30.0
END_TIMEOUT = 5.0  # seconds that all steps may take to end by themselves, at the end of the job
MOST_TAIL = 2**20  # bytes of a line without an end that are kept, before its beginning is written


class WarmStep:
    """A step that runs, as the process sees it that has started it.

    `log` is the file that what the step prints is added to.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, ranks: int, log: Path) -> None:
        """Take over an srun that has been started, whose step has so many tasks."""
        self.process = process
        self.name = name
        self.ranks = ranks
        self.log = log
        self.token = secrets.token_hex(16)  # no rank prints it, whatever its workload prints
        self.number = 0  # of the last request
        self.answers = 0  # to it
        self._tail = b""  # the beginning of a line whose end has not arrived
        self._is_silent = False  # whether the other end of the output is closed

    @staticmethod
    def start(
        command: Sequence[str],
        variables: Mapping[str, str],
        name: str,
        ranks: int,
        preload: Sequence[str],
        log: Path,
    ) -> WarmStep:
        """Start a step of this name by srun's `command`, whose tasks load the modules `preload`."""
        program, *arguments = command
        process = subprocess.Popen(
            bound_command([program, f"--job-name={name}", *arguments]),
            env={**variables, **parent_variables()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        step = WarmStep(process, name, ranks, log)
        step._write({"token": step.token, "preload": list(preload)})
        return step

    def run(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> StepTrial:
        """Have every task fork a rank, which runs a module with `arguments`, its name before them.

        It has `variables` beside those of the step.
        """
        module, *rank_arguments = arguments
        self.log = log
        self._request({"module": module, "arguments": rank_arguments, "variables": dict(variables)})
        return StepTrial(self)

    def is_ready(self) -> bool:
        """Return whether all tasks wait for a trial, and say so within ANSWER_TIMEOUT.

        Of a step whose helper on a node was stopped meanwhile, they would never say anything. What
        is printed until another trial runs goes to the log of the last one: how a step ends that is
        not ready must not be taken for the end of the next trial.
        """
        if self.poll() != 0 or self.process.poll() is not None:
            return False
        self._request(None)
        try:
            return StepTrial(self).wait(ANSWER_TIMEOUT) == 0 and self.process.poll() is None
        except subprocess.TimeoutExpired:
            return False

    def poll(self) -> int | None:
        """Return 0 once all tasks have answered, srun's exit status if it has ended before, else
        None.
        """
        self._receive_all()
        if self.answers < self.ranks and self.process.poll() is not None:
            self._receive_all()  # what it has printed between the two looks
            self._write_log(self._tail)
            self._tail = b""
        return 0 if self.answers == self.ranks else self.process.poll()

    def wait_for_output(self, timeout: float | None) -> None:
        """Wait until the step prints something or has ended, or until `timeout` seconds are over."""
        if self._is_silent:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        else:
            self._receive(timeout)

    def close_input(self) -> None:
        """Have all tasks end, once they have nothing left to do."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self, timeout: float) -> None:
        """End the step, at the latest `timeout` seconds from now."""
        self.close_input()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            end_process_group(self.process)
        self._receive_all()  # how Slurm has ended what would not end by itself
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _request(self, rank: Mapping[str, object] | None) -> None:
        """Send all tasks a rank to run, or none, which they answer at once."""
        self.number += 1
        self.answers = 0
        self._write({"number": self.number, "rank": rank})

    def _write(self, message: Mapping[str, object]) -> None:
        """Send all tasks a line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # srun has ended, which `poll` notices
            self.process.stdin.write((json.dumps(message) + "\n").encode())

    def _receive_all(self) -> None:
        """Take in all that the step has printed so far."""
        while self._receive(0):
            pass

    def _receive(self, timeout: float | None) -> bool:
        """Take in what the step prints within `timeout` seconds; return whether it did."""
        output = self.process.stdout
        assert output is not None
        if self._is_silent or not select.select([output], [], [], timeout)[0]:
            return False
        received = os.read(output.fileno(), 65536)
        self._is_silent = not received
        *lines, self._tail = (self._tail + received).split(b"\n")
        printed = b""
        for line in lines:
            text = self._without_answer(line)
            if text:  # an empty line comes before each answer
                printed += text + b"\n"
        if len(self._tail) > MOST_TAIL:
            printed += self._tail
            self._tail = b""
        self._write_log(printed)
        return not self._is_silent

    def _without_answer(self, line: bytes) -> bytes:
        """Return a line as it is to be logged; count the answer that it is, or ends with."""
        text, _, number = line.partition(self.token.encode())
        if number and int(number) == self.number:
            self.answers += 1
        return text

    def _write_log(self, printed: bytes) -> None:
        """Add what was printed to the log.

        If the disk does not take it, its ranks say so or the record can't be written either; srun
        itself would lose it as well.
        """
        if printed:
            with suppress(OSError), self.log.open("ab") as log:
                log.write(printed)


class StepTrial:
    """A trial in a warm step, with the methods of `subprocess.Popen`.

    It has ended with 0 when all of its ranks have ended well, else with srun's own exit status.
    """

    def __init__(self, step: WarmStep) -> None:
        self.step = step
        self.exit_code: int | None = None  # which stays when the step has another trial

    @property
    def pid(self) -> int:
        """Return the id of srun, which leads a group."""
        return self.step.process.pid

    def poll(self) -> int | None:
        """Return the exit status, None while a rank runs."""
        if self.exit_code is None:
            self.exit_code = self.step.poll()
        return self.exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raises TimeoutExpired if a rank still runs after `timeout` seconds."""
        return wait_for_exit(
            "a trial of a warm step", self.poll, self.step.wait_for_output, timeout
        )

    def send_signal(self, sig: int) -> None:
        """Send srun a signal, which it passes on to all tasks, if a rank still runs."""
        if self.poll() is None:
            self.step.process.send_signal(sig)


class WarmSteps:
    """The warm steps of a job, whose trials run one after the other."""

    def __init__(self) -> None:
        self._trials: set[str] = set()  # ids of the trials that run in such steps
        self._steps: dict[str, WarmStep] = {}  # by what they can't change once they have started
        self._started = 0

    def plan(self, pending: Sequence[Trial]) -> None:
        """Choose the trials that run in warm steps: those of kinds that a job has several of.

        A step that no second trial uses would cost more than it saves. Of more than MOST_STEPS
        kinds, those are chosen that save the most. Each step stays until the job ends: trials of a
        block take turns, so to end the one that was used longest ago would end the next to be used.
        """
        by_kind: dict[Hashable, list[Trial]] = {}
        for trial in pending:
            by_kind.setdefault(_kind(trial.cell), []).append(trial)
        by_kind = {kind: trials for kind, trials in by_kind.items() if len(trials) > 1}
        kinds = sorted(by_kind.values(), key=_saved_starts, reverse=True)
        self._trials = {trial.id for trials in kinds[:MOST_STEPS] for trial in trials}

    def serve(self, trial_id: str) -> bool:
        """Return whether a trial runs in a warm step."""
        return trial_id in self._trials

    def start(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        preload: Sequence[str],
    ) -> StepTrial:
        """Start a trial in a step that waits for one, or else in a new one.

        `arguments` are `task_arguments` after the command of a step. The step prints to `log`.
        """
        position = arguments.index(TASK_MODULE) + 1
        command, (ranks, *rank_arguments) = arguments[:position], arguments[position:]
        of_step = {name: value for name, value in variables.items() if name != OF_TRIAL}
        key = json.dumps([command, of_step, list(preload)])
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()

        step = self._steps.get(key)
        if step is not None and not step.is_ready():
            self.end(step)
            step = None
        if step is None:
            self._started += 1
            modules = [*MODULES, *preload]
            name = f"warm-{self._started}"
            step = WarmStep.start(command, of_step, name, int(ranks), modules, log)
            self._steps[key] = step
        return step.run(rank_arguments, {OF_TRIAL: variables[OF_TRIAL]}, log)

    def end(self, step: WarmStep) -> None:
        """End a step at once, with its ranks on all nodes."""
        self._steps = {key: other for key, other in self._steps.items() if other is not step}
        controller.end_step(step.process, step.name)
        step.close(END_TIMEOUT)

    def close(self) -> None:
        """End all steps."""
        for step in self._steps.values():
            step.close_input()
        deadline = time.monotonic() + END_TIMEOUT
        for step in self._steps.values():
            step.close(max(0.0, deadline - time.monotonic()))
        self._steps = {}


def task_arguments(module: str, ranks: int, rank_arguments: Sequence[str]) -> list[str]:
    """Return what follows the command of a warm step: what its tasks are to run, at so many ranks."""
    return [str(ranks), module, *rank_arguments]


def _kind(cell: Cell) -> Hashable:
    """Return what cells must have in common for their trials to run in the same step."""
    axes = cell.axes
    variables = frozenset(cell.environment.items())
    preload = tuple(modules_to_preload(cell))
    return axes.world_size, axes.num_threads, axes.stack, variables, preload


def _saved_starts(trials: Sequence[Trial]) -> int:
    """Return how many ranks of a kind don't have to load torch if its step stays."""
    return (len(trials) - 1) * trials[0].cell.axes.world_size
