"""The notebook of the guide: its cells run, and show what is stored below them."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import harness
from harness.core.paths import Results
from tests.support.tree import TOP

NOTEBOOK = TOP / "harness" / "guide" / "notebook.ipynb"


def run_cell(source: str, namespace: dict[str, Any]) -> tuple[Any, str]:
    """Execute a cell as a notebook does; return the value of its last expression, and its output."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)
    return value, printed.getvalue()


def stored_text(cell: dict[str, Any], kind: str) -> str:
    """Return what is stored below a cell: its `stream`, or a kind such as `text/html`."""
    for output in cell["outputs"]:
        content = output.get("text") if kind == "stream" else output.get("data", {}).get(kind)
        if content is not None:
            return "".join(content)
    return ""


def counts(text: str) -> str:
    """Return how many trials and cells a sweep has.

    What became of them depends on the machine: where others take its cores, trials are invalid.
    """
    return re.sub(r"(\d+ trials of \d+ cells).*", r"\1", text)


@pytest.mark.nightly
@pytest.mark.distributed
def test_cells_run_and_show_what_is_stored(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # whose `results` has an empty MLflow store
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {}
    frames = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        value, printed = run_cell("".join(cell["source"]), namespace)
        assert printed == stored_text(cell, "stream")
        if isinstance(value, harness.SweepData):
            assert counts(repr(value)) == counts(stored_text(cell, "text/plain"))
        if isinstance(value, pd.DataFrame):
            headers = re.findall(r"<th>([^<]*[a-z_]+[^<]*)</th>", stored_text(cell, "text/html"))
            assert [str(name) for name in value.columns] == headers
            frames += 1
    assert frames == 2
    assert [len(axes.lines) for axes in namespace["figure"].axes] == [2, 2]
    assert namespace["verdicts"].rows[0].verdict.label == "slower"
    assert results.artifacts.exists()  # MLflow has the trials too
