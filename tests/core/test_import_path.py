"""Our processes import this harness, whatever lies in their working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.core.import_path import ROOT

# Prints where a fresh process finds the package, and what it would hand on to others.
DESCRIBE = """\
import json, sys
from harness.core.errors import HarnessError
from harness.core.import_path import import_variables
PRELUDE
try:
    import harness.sweep
    import workloads.settings
    found = workloads.settings.__file__
except HarnessError as error:
    found = str(error)
print(json.dumps([found, import_variables()]))
"""


def describe(folder: Path, prelude: str = "", **variables: str) -> Any:
    """Run DESCRIBE as `python -m` in a folder, which so comes first on the path."""
    (folder / "describe.py").write_text(DESCRIBE.replace("PRELUDE", prelude), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "describe"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_the_package_beside_the_harness_is_imported_not_the_users(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "__init__.py").write_text("MINE = 1\n")
    found, variables = describe(tmp_path)
    assert found == str(ROOT / "workloads" / "settings.py")
    assert variables == {}
    found, _ = describe(tmp_path, "import workloads")
    assert found == (
        f"found the package 'workloads' of {tmp_path / 'workloads'} imported; allowed: that of"
        f" {ROOT / 'workloads'}: import the harness before your own, or rename yours"
    )


def test_a_harness_in_the_working_directory_is_handed_on_by_name(tmp_path: Path) -> None:
    (tmp_path / "harness").symlink_to(ROOT / "harness")
    program = "from harness.core.import_path import import_variables; print(import_variables())"
    command = [sys.executable, "-S", "-c", program]  # -S: no installed packages
    environment = {**os.environ, "PYTHONPATH": ""}
    printed = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert printed.strip() == str({"PYTHONPATH": str(tmp_path)})
