"""What all launchers have in common."""

from __future__ import annotations

from harness.launch.launcher import modules_to_preload
from tests.factories import make_cell


def test_cells_that_are_compiled_fork_from_what_has_the_compiler_loaded() -> None:
    eager, compiled = make_cell(), make_cell(execution="compile:reduce-overhead")
    assert modules_to_preload(eager) == []
    assert modules_to_preload(compiled) == ["harness.launch.preload_compiler"]
