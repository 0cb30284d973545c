"""Logs of whatever bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.logs import last_log_line
from harness.core.paths import TrialFolder
from harness.interface import logs as view

# Bytes of terminals, of UTF-8 that ends early, and lines of any length.
PIECES = st.sampled_from(
    [b"\n", b"\r", b"\x1b[2J", b"\x1b]0;t\x07", b"\x00", b"\xff", b"\xc3", b"\xe2\x80\xa8", b"===", b" ", b"x" * 70_000]
) | st.binary(max_size=30)  # fmt: skip
LOGS = st.lists(PIECES, max_size=12).map(b"".join)


@pytest.fixture(scope="module")
def trial_folder(tmp_path_factory: pytest.TempPathFactory) -> TrialFolder:
    """The folder of a trial that has ended, the same for all inputs."""
    folder = TrialFolder(tmp_path_factory.mktemp("trial"))
    folder.log_folder.mkdir()
    folder.record_path.touch()
    return folder


@given(content=LOGS)
def test_last_line_of_any_log_is_one_line(trial_folder: TrialFolder, content: bytes) -> None:
    log = trial_folder.launch_log
    log.write_bytes(content)
    line = last_log_line(log)
    assert line.isprintable()
    assert len(line) <= 300


@given(content=LOGS)
def test_any_log_is_shown_whole_and_in_printable_characters(
    trial_folder: TrialFolder, content: bytes
) -> None:
    text = content.decode("utf-8", errors="replace")
    shown = text.translate(view.CONTROL_PICTURES)
    assert len(shown) == len(text)
    assert not {character for character in shown if ord(character) < 32} - set("\n\r\t")
    trial_folder.rank_log(0).write_bytes(content)
    printer = view._Printer(trial_folder.rank_log(0))
    printer.print_new()
    assert printer.position == len(content)
