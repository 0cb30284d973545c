"""The two outcomes that an input may have: it is read, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable

from harness.core.errors import HarnessError


def assert_read_or_refused(action: Callable[[], object]) -> str | None:
    """Assert that an input is read by `action`, or refused in one printable line.

    Returns that line, None if the input is read. Any other exception passes, and fails the test.
    """
    try:
        action()
    except HarnessError as error:
        message = str(error)
    else:
        return None
    assert message.isprintable(), f"not one printable line: {message!r}"
    assert message.strip(), "an empty message"
    return message
