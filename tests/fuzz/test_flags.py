"""Texts after flags."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import parse_percentage
from tests.fuzz.outcome import assert_read_or_refused


@given(st.text() | st.from_regex(r"-?[0-9.e]+%?"))
def test_percentage(text: str) -> None:
    assert_read_or_refused(lambda: parse_percentage(text, "--min-effect"))
