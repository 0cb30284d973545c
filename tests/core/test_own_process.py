"""Packages that a library need not have: who finds them, and who does not."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from harness.core import own_process
from harness.core.own_process import claim, without

PACKAGE = "tests.support.tree"  # any that can be loaded again

DELIVER = """
import sys
from harness.core.own_process import claim
from harness.tracking.connect import quiet
claim()
with quiet():
    from mlflow import MlflowClient
    import mlflow.store.tracking.sqlalchemy_store
print({"pandas", "pyarrow"} & set(sys.modules))
import pandas
print({"pandas"} & set(sys.modules))
"""

DRAW = """
import sys
from harness.core.own_process import claim
from harness.render.chart import new_figure
claim()
new_figure(1, 1).add_subplot().plot([0, 1])
print("mpl_toolkits.mplot3d" in sys.modules)
import mpl_toolkits.mplot3d
print("mpl_toolkits.mplot3d" in sys.modules)
"""


@pytest.fixture(autouse=True)
def unclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_is_own", False)
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)


def test_only_a_process_of_ours_goes_without() -> None:
    with without(PACKAGE):
        import_module(PACKAGE)
    del sys.modules[PACKAGE]
    claim()
    with without("another", PACKAGE), pytest.raises(ModuleNotFoundError, match="not needed here"):
        import_module(PACKAGE)
    import_module(PACKAGE)


def test_other_threads_find_it() -> None:
    claim()
    with without(PACKAGE), ThreadPoolExecutor(1) as other:
        assert other.submit(import_module, PACKAGE).result().__name__ == PACKAGE


def test_mlflow_is_loaded_without_pandas_which_can_be_loaded_after_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DELIVER], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines() == ["set()", "{'pandas'}"]


def test_matplotlib_is_loaded_without_3d_plots_which_can_be_loaded_after_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRAW], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines() == ["False", "True"]
