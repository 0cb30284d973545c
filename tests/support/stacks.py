"""Other interpreters than that of the tests, with the packages of the tests and one of their own."""

from __future__ import annotations

import site
import venv
from pathlib import Path

PACKAGE = "upgraded"


def make_environment(folder: Path, version: str = "1.0", *, seconds: float = 0.0) -> Path:
    """Make a virtual environment, and return its interpreter.

    It has what the tests have, and a package whose version is `version` and whose `work` takes so
    many seconds.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({entry!r})\n" for entry in site.getsitepackages()]
    (packages / "base.pth").write_text("".join(lines))
    (packages / f"{PACKAGE}.py").write_text(
        "import time\n\n\ndef work():\n"
        f"    end = time.perf_counter() + {seconds}\n"
        "    while time.perf_counter() < end:\n        pass\n"
    )
    described = packages / f"{PACKAGE}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n"
    )
    (described / "top_level.txt").write_text(f"{PACKAGE}\n")
    return folder / "bin" / "python"
