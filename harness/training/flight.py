"""What a rank leaves when its trial hangs: its stack, its last collectives, the processes around it.

Torch records the last 2,000 collectives of a process in a ring. A thread of the rank writes them down
when the rank is asked (`harness.launch.watchdog`). Where native code keeps Python's lock, that thread
stands still too, and other processes look at the rank instead (`harness.measure.stacks`).
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import FrameType
from typing import Any

import psutil
import torch.distributed as dist
from torch._C import _distributed_c10d

from harness.core.paths import TrialFolder, write_atomically
from harness.measure.stacks import kernel_function, look_at, site_of
from harness.records.running import CollectiveCall, FlightRecord, ProcessView, read_suspicion
from harness.training.ranks import Ranks

KEPT_CALLS = 64  # finished collectives of a group that are written down
# The parts of torch that communicate for a workload, by a file among the calls.
PARTS = (
    ("/torch/nn/parallel/distributed.py", "ddp"),
    ("/torch/distributed/fsdp/", "fsdp2"),
    ("/torch/distributed/tensor/", "dtensor"),
)
# DDP's own collectives come from C++, out of a backward, whose last call of Python this is.
BACKWARD = "_engine_run_backward"


# The record


class FlightRecorder:
    """Answers, in a thread of a rank, what the rank does when its trial seems to hang."""

    def __init__(self, folder: TrialFolder, ranks: Ranks) -> None:
        self._folder = folder
        self._ranks = ranks
        self._answered = 0  # when the last question was written that was answered, in nanoseconds

    def answer(self) -> None:
        """Leave a record if there is a question that was not answered yet; raises OSError."""
        try:
            asked = self._folder.suspicion_path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        suspicion = read_suspicion(self._folder.suspicion_path)
        if asked == self._answered or suspicion is None:
            return
        self._answered = asked
        log = self._folder.rank_log(self._ranks.rank)
        neighbors = {}
        for beat in suspicion.silent:
            view = look_at(beat.pid, beat.created, self._folder.rank_log(beat.rank), native=True)
            if view is not None and beat.rank != self._ranks.rank:
                neighbors[str(beat.rank)] = view
        children = []  # such as workers of its loader
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                view = look_at(child.pid, child.create_time(), log)
                if view is not None:
                    children.append(view)
        self._write(children=children, neighbors=neighbors)

    def leave(self) -> None:
        """Leave a record because this rank has failed; raises OSError."""
        self._folder.flight_folder.mkdir(exist_ok=True)
        self._write()

    def _write(
        self,
        children: Sequence[ProcessView] = (),
        neighbors: Mapping[str, ProcessView] | None = None,
    ) -> None:
        """Write what this rank does."""
        record = FlightRecord(
            rank=self._ranks.rank,
            process=ProcessView(
                pid=os.getpid(),
                state=psutil.Process().status(),
                waits_in=kernel_function(os.getpid()),
                stack=_stack_of_main_thread(),
            ),
            calls=read_calls(),
            children=children,
            neighbors=neighbors or {},
        )
        path = self._folder.flight_path(self._ranks.rank)
        write_atomically(path, json.dumps(asdict(record)), durable=False)


def _stack_of_main_thread() -> str:
    """Return the calls of this process's main thread, as a traceback without the code."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    lines: list[str] = []
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}')
        frame = frame.f_back
    return "\n".join(reversed(lines))


# Collectives


def read_calls() -> list[CollectiveCall]:
    """Return the last collectives of this process; none if torch's recorder is another one."""
    if not dist.is_initialized():
        return []
    recorders: Any = _distributed_c10d
    try:
        dumps = [recorders._dump_fr_trace(True, True, False)]
        if dist.is_nccl_available():
            dumps.append(recorders._dump_nccl_trace(True, True, False))
        # Pickled by this process itself, a moment ago.
        entries = [entry for dump in dumps for entry in pickle.loads(dump)["entries"]]
        calls = [_call(entry) for entry in entries if not entry["is_p2p"]]
    except (AttributeError, LookupError, TypeError, ValueError):
        return []
    # Of each group the last finished ones, and all that are not finished.
    kept: list[CollectiveCall] = []
    finished: Counter[str] = Counter()
    for call in reversed(calls):
        finished[call.group] += call.finished
        if not call.finished or finished[call.group] <= KEPT_CALLS:
            kept.append(call)
    return kept[::-1]


def _call(entry: Mapping[str, Any]) -> CollectiveCall:
    """Return a collective from an entry of torch's recorder.

    Of a collective of gloo it notes that it is over by "retired", of one of NCCL by its state.
    """
    backend, _, operation = entry["profiling_name"].partition(":")
    name, description = entry["process_group"]
    group = "" if description == "default_pg" else f"{name} {description}".strip()
    sizes = []
    for size, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=True):
        sizes.append(f"{'x'.join(map(str, size)) or '1'} {dtype}")
    return CollectiveCall(
        group=group,
        number=entry["collective_seq_id"],
        operation=operation,
        sizes=", ".join(sizes),
        site=_site(entry.get("frames", ())),
        finished=entry["state"] == "completed" or (backend == "gloo" and entry["retired"]),
    )


def _site(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return where a collective was called, whose calls are given with the innermost first."""
    if frames and frames[0]["name"] == BACKWARD:
        return "ddp"
    for frame in frames:
        for path, part in PARTS:
            if path in frame["filename"]:
                return part
    lines = []
    for frame in reversed(frames):
        lines.append(f'  File "{frame["filename"]}", line {frame["line"]}, in {frame["name"]}')
    return site_of("\n".join(lines)) or "?"
