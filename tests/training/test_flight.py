"""What a rank leaves when its trial hangs, and what others see of a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from harness.core.paths import TrialFolder, write_atomically
from harness.measure.stacks import look_at, site_of
from harness.records.running import Heartbeat, Suspicion, read_flight_record
from harness.training.flight import KEPT_CALLS, FlightRecorder, read_calls
from harness.training.ranks import Ranks
from tests.support.running import wait_until

ONE = Ranks(rank=0, local_rank=0, world_size=1)


@pytest.fixture
def alone() -> Iterator[None]:
    """Be the only rank of a process group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
class TestTorchsFlightRecorder:
    """Its interface is private: another version of torch may change it, and fails here."""

    def test_has_the_operation_the_sizes_and_the_line_of_each_collective(self) -> None:
        values = torch.ones(2, 3)
        dist.all_reduce(values)
        dist.broadcast(values[0], 0)
        reduced, sent = read_calls()[-2:]
        assert (reduced.operation, reduced.sizes, reduced.group) == ("all_reduce", "2x3 Float", "")
        assert (sent.operation, sent.number) == ("broadcast", reduced.number + 1)
        assert reduced.site.startswith("test_flight.py:")

    def test_says_what_is_finished(self) -> None:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work is not None
        work.wait()
        # gloo's thread notes it a moment later.
        wait_until(lambda: read_calls()[-1].finished, 10)

    def test_numbers_the_collectives_of_each_group(self) -> None:
        group = dist.new_group([0])
        dist.all_reduce(torch.ones(2), group=group)
        assert (read_calls()[-1].number, read_calls()[-1].group != "") == (1, True)

    @pytest.mark.skipif(not dist.is_nccl_available(), reason="of torch for GPUs")
    def test_of_nccl_has_a_name_of_its_own(self) -> None:
        from torch._C import _distributed_c10d

        assert hasattr(_distributed_c10d, "_dump_nccl_trace")

    def test_is_left_with_the_last_ones_only(self, tmp_path: Path) -> None:
        for _ in range(KEPT_CALLS + 10):
            dist.all_reduce(torch.ones(2))
        wait_until(lambda: read_calls()[-1].finished, 10)
        FlightRecorder(TrialFolder(tmp_path), ONE).leave()
        record = read_flight_record(TrialFolder(tmp_path).flight_path(0))
        assert record is not None
        of_all_ranks = [call for call in record.calls if not call.group]
        assert len(of_all_ranks) == KEPT_CALLS
        assert "test_is_left_with_the_last_ones_only" in record.process.stack


def test_nothing_is_recorded_without_a_process_group() -> None:
    assert read_calls() == []


def test_a_rank_answers_each_question_once(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    recorder = FlightRecorder(folder, ONE)
    recorder.answer()
    assert not folder.flight_folder.exists()
    folder.flight_folder.mkdir()
    write_atomically(folder.suspicion_path, json.dumps(asdict(Suspicion(silent=[]))))
    for expected in (True, False):
        folder.flight_path(0).unlink(missing_ok=True)
        recorder.answer()
        assert folder.flight_path(0).exists() == expected


def test_a_rank_says_what_a_silent_one_on_its_host_does(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        sleeper.send_signal(signal.SIGSTOP)
        process = psutil.Process(sleeper.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        created = process.create_time()
        beat = Heartbeat(
            rank=1,
            host="n1",
            pid=sleeper.pid,
            created=created,
            step=5,
            in_step=True,
            position="m.f:1",
            at=1.0,
        )
        elsewhere = replace(beat, rank=2, created=created - 100)  # its number is another's here
        folder.flight_folder.mkdir()
        suspicion = Suspicion(silent=[beat, elsewhere])
        write_atomically(folder.suspicion_path, json.dumps(asdict(suspicion)))
        FlightRecorder(folder, ONE).answer()
    finally:
        sleeper.kill()
        sleeper.wait()
    record = read_flight_record(folder.flight_path(0))
    assert record is not None
    assert {rank: view.state for rank, view in record.neighbors.items()} == {"1": "stopped"}


# Loops in C with Python's lock: the time doubles with each letter.
PROGRAM = """import re, signal, sys
if sys.argv[1] == "shown":
    from harness.measure.stacks import write_stacks_on_signal
    write_stacks_on_signal()
print("ready", flush=True)
re.match("(a+)+$", "a" * 60 + "b")
"""


@pytest.mark.parametrize("way", ["shown", "not-shown"])
def test_a_process_in_native_code_shows_its_line_and_survives(tmp_path: Path, way: str) -> None:
    """One without a handler of the signal does not get it."""
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM, encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(program), way], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: b"ready" in log.read_bytes())
        time.sleep(0.1)
        created = psutil.Process(process.pid).create_time()
        view = look_at(process.pid, created, log)
        assert view is not None
        assert site_of(view.stack) == ("program.py:6" if way == "shown" else "")
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        stopped = look_at(process.pid, created, log)
        assert stopped is not None
        assert stopped.state == "stopped"
        assert look_at(process.pid, created + 5, log) is None, "another process with its number"
    finally:
        process.kill()
        process.wait()
    assert look_at(process.pid, created, log) is None
