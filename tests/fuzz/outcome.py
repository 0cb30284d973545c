"""The two outcomes that an input may have: it is read, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable

from harness.core.errors import HarnessError


def refusal(action: Callable[[], object]) -> str | None:
    """Return the line that refuses an input which `action` reads, None if it is read.

    Any other exception passes, and fails the test.
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
