"""What keeps the code in order: who may import whom, what starts without what, which private names
of other packages are used, and how branched a function may be.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from harness.core.paths import TrialFolder
from harness.launch.torchrun import Torchrun
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
    {"sweep"},
    {"records"},
    {"measure"},
    {"training"},
    {"hardware"},
    {"launch"},
    {"slurm", "analysis"},
    {"gate", "reproduce", "preflight", "export"},
    {"housekeeping"},
    {"view"},
    {"tracking"},
    {"api"},
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


# With an underscore, and yet in the documentation of Python.
DOCUMENTED = {"_exit", "_current_frames", "_replace"}
PRIVATE = re.compile(r"_[a-z]\w*")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the tests here look for in a file."""

    path: Path
    # The modules of the project that it imports, also inside functions.
    imports: set[str] = field(default_factory=set)
    rank_variables: set[str] = field(default_factory=set)  # variables of a launcher that it names
    # The names of the attributes and methods of its classes.
    members: set[str] = field(default_factory=set)
    # The private names that it uses, of modules and of attributes.
    private_names: set[str] = field(default_factory=set)
    # The cyclomatic complexity of each function, those that are nested in it included.
    branches: list[tuple[str, int]] = field(default_factory=list)

    def take_in(self, node: ast.AST) -> int:
        """Take in a node and all below it; return the branches among them."""
        count = 0
        for child in ast.iter_child_nodes(node):
            count += self.take_in(child)
        if isinstance(node, BRANCH_NODES):
            count += 1
        match node:
            case ast.BoolOp(values=values):
                count += len(values) - 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.branches.append((name, count + 1))
            case ast.ClassDef():
                self._take_in_class(node)
            case ast.Import() | ast.ImportFrom():
                self._take_in_import(node)
            case ast.Attribute():
                if is_named(node.value, "self"):
                    self.members.add(node.attr)
                if not is_super(node.value):
                    self._take_in_names([node.attr])
            case ast.Constant(value=str(text)) if text in RANK_VARIABLES:
                self.rank_variables.add(text)
        return count

    def _take_in_class(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                self.members.add(statement.name)
            elif isinstance(statement, ast.AnnAssign):
                self.members.add(ast.unparse(statement.target))

    def _take_in_import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.Import):
            parts = [part for name in names for part in name.split(".")]
        else:
            assert node.level == 0, f"{self.path}: a relative import"
            parts = [*str(node.module).split("."), *names]
            inner = [f"{node.module}.{name}" for name in names]
            names = [name if name in MODULES else str(node.module) for name in inner]
        self.imports.update(name for name in names if name in MODULES)
        self._take_in_names(parts)

    def _take_in_names(self, names: Sequence[str]) -> None:
        self.private_names.update(
            name for name in names if name not in DOCUMENTED and PRIVATE.fullmatch(name)
        )


def is_named(node: ast.AST, name: str) -> bool:
    """Return whether a node is this name, as in `self`."""
    return isinstance(node, ast.Name) and node.id == name


def is_super(node: ast.AST) -> bool:
    """Return whether a node is a call of `super`."""
    return isinstance(node, ast.Call) and is_named(node.func, "super")


@cache
def facts(path: Path) -> Facts:
    """Return what a file has, and not its tree, which takes a thousand times the memory."""
    found = Facts(path=path)
    found.take_in(ast.parse(path.read_text(encoding="utf-8"), path))
    return found


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
    used = {unit(name) for name in facts(path).imports if name.startswith("harness")}
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
    graph = {name: facts(path).imports - {name} for name, path in MODULES.items()}
    graph["workloads"] = graph["harness"] = set()  # their names are loaded on first use
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_workloads_know_nothing_of_the_harness() -> None:
    imported = {name for path in files("workloads") for name in facts(path).imports}
    assert [name for name in imported if name.startswith("harness")] == []


def test_rank_variables_are_read_in_one_place() -> None:
    allowed = {
        TOP / "harness" / "training" / "ranks.py",
        TOP / "harness" / "launch" / "launcher.py",  # says what launchers set
        TOP / "harness" / "sweep" / "environment.py",  # says what no sweep may set
    }
    for path in files("harness") + files("workloads"):
        assert path in allowed or facts(path).rank_variables == set(), path


TOLD = "has loaded "
TELL_MODULES = f"\nimport json, sys\nprint({TOLD!r} + json.dumps(list(sys.modules)))\n"


def told(printed: str) -> list[set[str]]:
    """Return the top-level packages of the modules that each TELL_MODULES has printed."""
    names = [line.removeprefix(TOLD) for line in printed.splitlines() if line.startswith(TOLD)]
    return [{name.partition(".")[0] for name in json.loads(modules)} for modules in names]


def loaded(*programs: str) -> list[set[str]]:
    """Return the top-level packages that a fresh process has loaded after each of these programs.

    It runs one after the other, so each has to do with what those before it have loaded as well.
    """
    program = "".join(program + TELL_MODULES for program in programs)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    packages = told(done.stdout)
    assert len(packages) == len(programs)
    return packages


def test_ranks_find_what_they_look_up_and_load_no_tracker_and_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is forked as ranks are, from the forkserver that ranks of other tests have too."""
    program = (
        "import sys\n"
        "assert 'harness.training.worker' in sys.modules\n"
        "from harness.records.code import training_digest\n"
        "assert training_digest.cache_info().currsize == 1\n"
    )
    (tmp_path / "looks_up.py").write_text(program + TELL_MODULES, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = TrialFolder(tmp_path)
    launcher = Torchrun(environment={}, fork=True)
    ranks = launcher.start("looks_up", folder, 1, launcher.variables(1, {}))
    log = folder.launch_log
    assert ranks.wait(300) == 0, log.read_text(encoding="utf-8")
    (packages,) = told(log.read_text(encoding="utf-8"))
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


def test_each_part_is_loaded_without_what_it_does_not_need() -> None:
    """The package before its names are used, a job's leader, and the beginning of a run."""
    of_package, of_leader, of_run = loaded(
        "import harness\nassert 'compare' in dir(harness)",
        "import harness.slurm.leader",
        "import harness.api.running, harness.launch.assemble, harness.tracking.ui",
    )
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
    assert of_package & libraries == set()
    trackers_and_torch = {"torch", "mlflow", "scipy", "transformers", "sklearn", "typer", "rich"}
    assert of_leader & trackers_and_torch == set()
    for_the_end = {"torch", "mlflow", "scipy", "matplotlib", "pandas", "sqlalchemy"}
    assert of_run & for_the_end == set()


def test_help_and_plan_load_nothing_heavy() -> None:
    commands = [["--help"], ["run", "--help"], ["plan", "quickstart"]]
    each = loaded(
        *(
            "from harness.cli.main import main\n"
            f"try:\n    main({arguments})\nexcept SystemExit:\n    pass"
            for arguments in commands
        )
    )
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
    for arguments, packages in zip(commands, each, strict=True):
        assert "typer" in packages
        assert packages & heavy == set(), arguments


def test_private_names_of_other_packages_are_those_that_are_listed() -> None:
    used: set[str] = set()
    own_members: set[str] = set()
    for path in MODULES.values():
        used |= facts(path).private_names
        own_members |= facts(path).members
    used -= own_members
    guide = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Private interfaces\n")[2]
    listed = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert used - listed == set(), "use the public interface, or say why there is none"
    assert listed - used == set(), "it is gone: take it out of the guide"


def test_no_function_has_many_branches() -> None:
    many = set()
    for module, path in MODULES.items():
        for function, branches in facts(path).branches:
            if branches > MAX_BRANCHES:
                many.add(f"{module}.{function}")
    assert many - set(MANY_BRANCHES) == set()


def test_branches_are_counted_as_documented() -> None:
    example = Facts(path=Path("example.py"))
    example.take_in(
        ast.parse(
            "def f(a, b):\n"
            "    for x in [y for y in a if y]:\n"
            "        if x and b:\n"
            "            return 1 if a else 2\n"
        )
    )
    # The function itself, the loop, the comprehension, the if, the `and`, the conditional.
    assert example.branches == [("f", 6)]
