"""What a newcomer meets first, with programs in place of pip, uv, `harness` and typer: `tests/install.sh`,
`make demo`, and the first second of a command.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import parse_problem
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
    assert by_uv.endswith(
        "--constraint constraints.txt --editable .[test]; https://first/simple;"
        " https://one/simple https://two/simple; /wheels,/more; unsafe-best-match"
    )


@pytest.mark.parametrize("exit_code", [1, 2])
def test_pip_installs_what_uv_can_not(tmp_path: Path, exit_code: int) -> None:
    *_, notice, by_pip = install(tmp_path, uv_exit_code=exit_code)
    assert notice == "==> uv could not install it, so pip does, in a few minutes"
    assert by_pip == BY_PIP


@pytest.mark.parametrize(("code", "is_well"), [(0, True), (1, False), (2, False), (3, True)])
def test_the_demo_ends_well_unless_a_trial_failed(tmp_path: Path, code: int, is_well: bool) -> None:
    """A busy machine disturbs trials (exit code 3), which is no error of a newcomer."""
    program = tmp_path / "harness"
    program.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    command = ["make", "-o", "setup", "demo", f"BIN={tmp_path}"]
    ended = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == is_well
    assert ("were disturbed" in ended.stdout) == (code == 3)
    assert ("harness ui" in ended.stdout) == is_well


def test_what_the_makefile_starts_is_there() -> None:
    programs = ["mutants", "campaign", "bench", "bench-scale", "bench-statistics", "bench-gate"]
    command = ["make", "-n", "-o", "setup-test", *programs, "tables", "gpu", "BIN=bin", "QUICK=1"]
    lines = subprocess.check_output(command, cwd=TOP, text=True)
    modules = re.findall(r"python3? -m (\S+)", lines)
    assert len(modules) == 8
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    (call,) = re.findall("bin/harness (.*)", lines)
    assert parse_problem(call.split()) is None


TYPER = """
import os, signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt as error:
    raise ImportError('no typer') from error
"""


def test_ctrl_c_while_a_command_loads_is_a_line(tmp_path: Path) -> None:
    """A program imports typer first: this one presses Ctrl-C while it is imported, and would go on."""
    (tmp_path / "typer.py").write_text(TYPER, encoding="utf-8")
    command = [sys.executable, "-m", "harness.cli", "plan", "quickstart"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "harness: interrupted\n")
