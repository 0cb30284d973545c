"""What Slurm's clients print: whatever it is, it is read or refused in one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.slurm.queue import SlurmDown, parse_squeue, recover_job_ids
from harness.spec.partitions import find_mismatch, parse_sinfo
from harness.spec.slurm import SlurmOptions
from tests.fuzz.changes import SEEDS, changed_bytes
from tests.fuzz.outcome import assert_read_or_refused
from tests.slurm.test_status import SQUEUE

SINFO = """\
cpu*|infinite|2|8|16000|(null)
gpu|1-00:00:00|4|64+|512000+|gpu:a100:4(S:0-1),gpu:h100:2
gpu|n/a|1|n/a|1|gpu:2
slurm_load_partitions: Socket timed out on send/recv operation
"""
# Lines of columns: of digits, of what Slurm puts between them, and of whatever else there is.
COLUMN = st.from_regex(
    r"\d{0,12}(_\[?[\d,:%-]*\]?)?|[A-Z_]{0,12}|n\[\d-\d\]", fullmatch=True
) | st.text(max_size=20)
TABLE = st.lists(st.lists(COLUMN, max_size=8).map("|".join), max_size=6).map("\n".join)


def check_squeue(text: str) -> None:
    assert_read_or_refused(lambda: recover_job_ids([], parse_squeue(text)))


def check_sinfo(text: str) -> None:
    find_mismatch(SlurmOptions(), parse_sinfo(text))


@given(text=TABLE)
def test_squeue_of_any_columns(text: str) -> None:
    check_squeue(text)


@given(text=TABLE)
def test_sinfo_of_any_columns(text: str) -> None:
    check_sinfo(text)


@given(seed=SEEDS)
def test_squeue_with_changed_bytes(seed: int) -> None:
    check_squeue(changed_bytes(SQUEUE.encode(), seed).decode(errors="replace"))


@given(seed=SEEDS)
def test_sinfo_with_changed_bytes(seed: int) -> None:
    check_sinfo(changed_bytes(SINFO.encode(), seed).decode(errors="replace"))


@given(length=st.integers(0, len(SQUEUE)))
def test_no_job_is_lost_where_the_output_ends(length: int) -> None:
    """A job that is not in the queue counts as ended, so half a line must not pass for none."""
    whole = parse_squeue(SQUEUE)
    try:
        jobs = parse_squeue(SQUEUE[:length])
    except SlurmDown:
        return
    complete_lines = SQUEUE[:length].rpartition("\n")[0]
    assert set(parse_squeue(complete_lines)) <= set(jobs) <= set(whole)
