"""`tests/install.sh`, with programs in place of pip and uv that print what they are called with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.tree import TOP

PIP = r"""#!/bin/sh
[ "$1" = config ] || { echo "pip $*"; exit; }
cat <<'EOF'
:env:.find-links='/wheels /more'
global.extra-index-url='https://one/simple\nhttps://two/simple'
global.find-links='/of/a/file'
global.index-url='https://first/simple'
EOF
"""
UV = """#!/bin/sh
echo "uv $*; $UV_DEFAULT_INDEX; $UV_INDEX; $UV_FIND_LINKS; $UV_INDEX_STRATEGY"
exit $UV_EXIT_CODE
"""
BY_PIP = "pip install --disable-pip-version-check --no-compile --constraint constraints.txt --editable .[test]"


def install(folder: Path, uv_exit_code: int) -> list[str]:
    """Run the script in a folder with both programs, and return the lines that were printed."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, source in (("pip", PIP), ("uv", UV)):
        (programs / name).write_text(source, encoding="utf-8")
        (programs / name).chmod(0o755)
    command = ["sh", str(TOP / "tests" / "install.sh"), ".[test]"]
    variables = {"PATH": "/usr/bin:/bin", "UV_EXIT_CODE": str(uv_exit_code)}
    ended = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    return ended.stdout.splitlines()


def test_uv_installs_with_the_settings_of_pip(tmp_path: Path) -> None:
    get_uv, by_uv = install(tmp_path, uv_exit_code=0)
    assert get_uv.endswith("--constraint constraints.txt uv")
    command, *settings = by_uv.split("; ")
    assert command.endswith("--constraint constraints.txt --editable .[test]")
    assert settings == [
        "https://first/simple",
        "https://one/simple https://two/simple",
        "/wheels,/more",
        "unsafe-best-match",
    ]


@pytest.mark.parametrize("exit_code", [1, 2])
def test_pip_installs_what_uv_can_not(tmp_path: Path, exit_code: int) -> None:
    *_, notice, by_pip = install(tmp_path, uv_exit_code=exit_code)
    assert notice == "==> uv could not install it, so pip does, in a few minutes"
    assert by_pip == BY_PIP
