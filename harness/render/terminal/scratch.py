"""Shows what runs in a scratch folder, which stays only where an error names logs in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape

from harness.core.errors import HarnessError
from harness.render.terminal.console import TerminalConsole


@contextmanager
def scratch_run(name: str, activity: str) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """Yield a new folder and a function that shows what is being worked on.

    `name` is part of the folder's, and `activity` comes before what is shown. The folder is removed
    at the end, unless a HarnessError is raised: its message names logs in the folder.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"harness-{name}-"))
    with TerminalConsole(stderr=True).status("") as status:
        try:
            yield folder, lambda label: status.update(f"{activity} {escape(label)}")
        except HarnessError:
            raise
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)
