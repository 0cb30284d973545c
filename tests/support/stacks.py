"""Other interpreters than that of the tests, with the packages of the tests and one of their own."""

from __future__ import annotations

import shutil
import site
import subprocess
import venv
from pathlib import Path

PACKAGE = "upgraded"
CONTAINERS = (
    ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"],
    ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc"],
    ["sh", "-c", '"$@"; exit $?', "sh"],
)


def make_environment(folder: Path, version: str) -> Path:
    """Make a virtual environment, and return its interpreter.

    It has what the tests have, and PACKAGE in a version.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({entry!r})\n" for entry in site.getsitepackages()]
    (packages / "base.pth").write_text("".join(lines))
    (packages / f"{PACKAGE}.py").touch()
    described = packages / f"{PACKAGE}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n"
    )
    (described / "top_level.txt").write_text(f"{PACKAGE}\n")
    return folder / "bin" / "python"


def container() -> list[str]:
    """Return a command that runs the command after it as a container does, waiting beside it.

    It is the first of CONTAINERS that this machine has and allows. In all but the last, process ids
    are others than outside.
    """
    for command in CONTAINERS[:-1]:
        if shutil.which(command[0]) is None:
            continue
        tried = subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=False)
        if tried.returncode == 0:
            return command
    return CONTAINERS[-1]
