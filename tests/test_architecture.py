"""What keeps the code in order: who may import whom, what starts without what, which private names
of other packages are used, and how branched a function may be.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.tree import TOP

# The ceiling on a function's cyclomatic complexity: beyond it a reader can't keep its paths in
# mind.
MAX_BRANCHES = 15
BRANCH_NODES = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.match_case,
    ast.Assert,
)
# Functions above the ceiling, and why they may be.
MANY_BRANCHES: dict[str, str] = {}

# A module, or a package taken as one, imports from rows above its own and from nothing in its row or
# below it.
ROWS = [
    {"__init__", "core", "statistics"},
    {"spec"},
    {"records"},
    {"measure"},
    {"training"},
    {"hardware"},
    {"mllog"},
    {"launch"},
    {"slurm", "analysis"},
    {"gate", "reproduce", "preflight", "serving"},
    {"housekeeping"},
    {"render"},
    {"tracking"},
    {"interface"},
    {"cli"},
]
ROW = {unit: number for number, row in enumerate(ROWS) for unit in row}

RANK_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID",
    "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
}  # fmt: skip


def files(package: str) -> list[Path]:
    """Return the modules of a package; the examples of the guide are packages of users' own."""
    examples = TOP / "harness" / "guide" / "examples"
    return sorted(
        path for path in (TOP / package).rglob("*.py") if not path.is_relative_to(examples)
    )


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_name(path): path for package in ("harness", "workloads") for path in files(package)
}


@cache
def imports(path: Path) -> frozenset[str]:
    """Return every module of the project that a file imports, also inside functions."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in inner]
        imported.update(name for name in names if name in MODULES)
    return frozenset(imported)


def unit(module: str) -> str:
    """Return the row's name of a module: `tracking` for `harness.tracking.runs`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_every_module_has_a_row() -> None:
    units = {unit(module_name(path)) for path in files("harness")}
    assert units - set(ROW) == set(), "give it a row in ROWS"
    assert set(ROW) - units == set(), "it is gone: take it out of ROWS"
    assert sum(len(row) for row in ROWS) == len(ROW)


def imports_from_below(path: Path) -> set[str]:
    """Return the units that a module imports from though they are in its own row or below it."""
    importing_unit = unit(module_name(path))
    used = {unit(name) for name in imports(path) if name.startswith("harness")}
    used -= {importing_unit, "__init__"}
    row = ROW.get(importing_unit, len(ROWS))
    return {name for name in used if ROW.get(name, len(ROWS)) >= row}


def test_modules_import_only_from_rows_above() -> None:
    violations: dict[str, set[str]] = {}
    for path in files("harness"):
        if path == TOP / "harness" / "__init__.py":
            continue  # its names are those of the interface, loaded on first use
        if from_below := imports_from_below(path):
            violations[module_name(path)] = from_below
    assert violations == {}


def test_no_cycles() -> None:
    graph = {name: set(imports(path)) - {name} for name, path in MODULES.items()}
    graph["workloads"] = graph["harness"] = set()  # their names are loaded on first use
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_workloads_know_nothing_of_the_harness() -> None:
    imported = {name for path in files("workloads") for name in imports(path)}
    assert [name for name in imported if name.startswith("harness")] == []


def rank_variables(path: Path) -> set[str]:
    """Return the variables of a launcher that a file names."""
    texts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return texts & RANK_VARIABLES


def test_rank_variables_are_read_in_one_place() -> None:
    allowed = {
        TOP / "harness" / "training" / "ranks.py",
        TOP / "harness" / "launch" / "launcher.py",  # says what launchers set
        TOP / "harness" / "spec" / "environment.py",  # says what no sweep may set
    }
    for path in files("harness") + files("workloads"):
        assert path in allowed or rank_variables(path) == set(), path


def loaded(program: str) -> set[str]:
    """Return the top-level packages that a fresh process has loaded after running `program`."""
    program += "\nimport json, sys\nprint(json.dumps([name for name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return {name.partition(".")[0] for name in names}


def test_ranks_find_what_they_look_up_and_load_no_tracker_and_no_command_line() -> None:
    packages = loaded(
        "import sys, harness.launch.preload\n"
        "assert 'harness.training.worker' in sys.modules\n"
        "from harness.records.code import training_digest\n"
        "assert training_digest.cache_info().currsize == 1"
    )
    assert "torch" in packages
    assert (
        packages
        & {
            "mlflow",
            "submitit",
            "typer",
            "pydantic",
            "rich",
            "yaml",
            "transformers",
            "sklearn",
            "scipy",
            "xxhash",
        }
        == set()
    )


def test_the_package_loads_no_library_before_its_names_are_used() -> None:
    packages = loaded("import harness\nassert 'compare' in dir(harness)")
    libraries = {
        "torch",
        "numpy",
        "pandas",
        "pyarrow",
        "pydantic",
        "mlflow",
        "typer",
        "yaml",
        "rich",
    }
    assert packages & libraries == set()


def test_a_run_begins_without_what_only_its_end_needs() -> None:
    packages = loaded("import harness.interface.running, harness.launch.assemble")
    assert packages & {"torch", "mlflow", "scipy", "matplotlib", "pandas", "sqlalchemy"} == set()


def test_what_a_run_delivers_with_is_loaded_at_once_and_may_be_missing() -> None:
    packages = loaded("from harness.tracking import load_libraries\nload_libraries()")
    assert {"mlflow", "sqlalchemy", "matplotlib"} <= packages
    packages = loaded(
        "import sys\nsys.modules['mlflow'] = None\n"
        "from harness.tracking import load_libraries\nload_libraries()"
    )
    assert packages & {"sqlalchemy", "matplotlib"} == set()


def test_a_jobs_leader_loads_no_tracker_and_no_torch() -> None:
    packages = loaded("import harness.slurm.leader")
    assert (
        packages & {"torch", "mlflow", "scipy", "transformers", "sklearn", "typer", "rich"} == set()
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["plan", "quickstart"]], ids=" ".join
)
def test_help_and_plan_load_nothing_heavy(arguments: list[str]) -> None:
    packages = loaded(
        f"from harness.cli.main import main\ntry:\n    main({arguments})\nexcept SystemExit:\n    pass"
    )
    assert "typer" in packages
    heavy = {
        "torch",
        "mlflow",
        "transformers",
        "tokenizers",
        "sklearn",
        "scipy",
        "matplotlib",
        "pandas",
        "submitit",
    }
    assert packages & heavy == set()


# With an underscore, and yet in the documentation of Python.
DOCUMENTED = {"_exit", "_current_frames", "_replace"}
PRIVATE = re.compile(r"_[a-z]\w*")


def is_named(node: ast.AST, name: str) -> bool:
    """Return whether a node is this name, as in `self`."""
    return isinstance(node, ast.Name) and node.id == name


def is_super(node: ast.AST) -> bool:
    """Return whether a node is a call of `super`."""
    return isinstance(node, ast.Call) and is_named(node.func, "super")


def own_members() -> set[str]:
    """Return the names of all attributes and methods of the project's own classes."""
    members = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                for statement in node.body:
                    if isinstance(statement, ast.FunctionDef):
                        members.add(statement.name)
                    elif isinstance(statement, ast.AnnAssign):
                        members.add(ast.unparse(statement.target))
            elif isinstance(node, ast.Attribute) and is_named(node.value, "self"):
                members.add(node.attr)
    return members


def private_names(path: Path) -> set[str]:
    """Return the private names of other packages that a file uses: of modules and of attributes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[str] = []
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts += alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            parts = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute) and not is_super(node.value):
            parts = [node.attr]
        names.update(part for part in parts if PRIVATE.fullmatch(part))
    return names - DOCUMENTED


def test_private_names_of_other_packages_are_those_of_the_guide() -> None:
    used: set[str] = set()
    for path in MODULES.values():
        used |= private_names(path)
    used -= own_members()
    guide = (TOP / "harness" / "guide" / "changing.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Private interfaces\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert used - listed == set(), "use the public interface, or say why there is none"
    assert listed - used == set(), "it is gone: take it out of the guide"


def branches(function: ast.AST) -> int:
    """Return the cyclomatic complexity of a function, those that are nested in it included."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCH_NODES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def functions_with_many_branches() -> dict[str, int]:
    """Return the branches of each function above the limit, by `module.function`."""
    counts: dict[str, int] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            count = branches(node)
            if count > MAX_BRANCHES:
                counts[f"{module}.{node.name}"] = count
    return counts


def test_no_function_has_many_branches() -> None:
    assert set(functions_with_many_branches()) - set(MANY_BRANCHES) == set()


def test_branches_are_counted_as_documented() -> None:
    function = ast.parse(
        "def f(a, b):\n"
        "    for x in [y for y in a if y]:\n"
        "        if x and b:\n"
        "            return 1 if a else 2\n"
    )
    # The function itself, the loop, the comprehension, the if, the `and`, the conditional.
    assert branches(function) == 6
