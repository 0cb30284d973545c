"""What keeps the code in order: who may import whom, what starts without what, and which private names
of other packages are used.
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

from harness.core.paths import TrialFolder
from harness.launch.launcher import RankProgram
from harness.launch.torchrun import Torchrun
from tests.support.tree import TOP

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
RANK_VARIABLES_MAY_BE_NAMED = {
    "harness.training.ranks",
    "harness.launch.launcher",  # says what launchers set
    "harness.sweep.axes",  # says what no sweep may set
}
# With an underscore, and yet in the documentation of Python.
DOCUMENTED = {"_exit", "_current_frames", "_replace"}
PRIVATE = re.compile(r"_[a-z]\w*")


def modules() -> dict[str, Path]:
    """Return the files of all modules; the examples of the guide are packages of users' own."""
    found = {}
    for package in ("harness", "workloads"):
        for path in sorted((TOP / package).rglob("*.py")):
            if "examples" not in path.parts:
                name = ".".join(path.relative_to(TOP).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def nodes(module: str) -> list[ast.AST]:
    """Return the nodes of a module's tree."""
    path = MODULES[module]
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), path)))


@cache
def imports(module: str) -> set[str]:
    """Return the modules of the project that a module imports, also inside functions."""
    imported = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported.add(name if name in MODULES else str(node.module))
    return imported & MODULES.keys() - {module}


def unit(module: str) -> str:
    """Return the row's name of a module: `tracking` for `harness.tracking.runs`."""
    return [*module.split("."), "__init__"][1]


def harness_modules() -> list[str]:
    return [module for module in MODULES if module.startswith("harness")]


def test_every_module_has_a_row() -> None:
    units = {unit(module) for module in harness_modules()}
    assert units == set(ROW)
    assert sum(len(row) for row in ROWS) == len(ROW)


def test_modules_import_only_from_rows_above() -> None:
    for module in harness_modules():
        if module == "harness":
            continue  # its names are those of the interface, loaded on first use
        used = {unit(name) for name in imports(module) if name.startswith("harness.")}
        below = {name for name in used if ROW[name] >= ROW[unit(module)]}
        assert below - {unit(module)} == set(), module


def test_no_cycles() -> None:
    graph = {module: imports(module) for module in MODULES}
    graph["workloads"] = graph["harness"] = set()  # their names are loaded on first use
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_workloads_know_nothing_of_the_harness() -> None:
    for module in MODULES.keys() - set(harness_modules()):
        assert imports(module) & set(harness_modules()) == set(), module


def test_views_do_no_arithmetic_on_measurements() -> None:
    for module in harness_modules():
        for node in nodes(module) if unit(module) == "view" else []:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert names & {"numpy", "statistics"} == set(), module


def test_rank_variables_are_read_in_one_place() -> None:
    for module in MODULES.keys() - RANK_VARIABLES_MAY_BE_NAMED:
        texts = {node.value for node in nodes(module) if isinstance(node, ast.Constant)}
        assert texts & RANK_VARIABLES == set(), module


def private_names(module: str) -> set[str]:
    """Return the private names that a module uses, of modules and of attributes."""
    used = set()
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and not ast.unparse(node.value).startswith("super("):
            used.add(node.attr)
        elif isinstance(node, ast.Import):
            used |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            used |= {*str(node.module).split("."), *(alias.name for alias in node.names)}
    return {name for name in used - DOCUMENTED if PRIVATE.fullmatch(name)}


def own_members(module: str) -> set[str]:
    """Return the names of the attributes and methods of a module's classes."""
    members = set()
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            members.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef):
                    members.add(statement.name)
                elif isinstance(statement, ast.AnnAssign):
                    members.add(ast.unparse(statement.target))
    return members


def test_private_names_of_other_packages_are_those_that_are_listed() -> None:
    used = set[str]().union(*map(private_names, MODULES))
    used -= set[str]().union(*map(own_members, MODULES))
    guide = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Private interfaces\n")[2]
    listed = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert used - listed == set(), "use the public interface, or say why there is none"
    assert listed - used == set(), "it is gone: take it out of the guide"


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
    packages = told(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert len(packages) == len(programs)
    return packages


def test_ranks_find_what_they_look_up_and_load_no_tracker_and_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is forked as ranks are, from the forkserver that ranks of other tests have too."""
    program = (
        "import sys\n"
        "assert 'harness.training.worker' in sys.modules\n"
        "from harness.records.environment import training_digest\n"
        "assert training_digest.cache_info().currsize == 1\n"
    )
    (tmp_path / "looks_up.py").write_text(program + TELL_MODULES, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = TrialFolder(tmp_path)
    started = RankProgram(module="looks_up", folder=folder, world_size=1, num_threads=1)
    ranks = Torchrun(environment={}, fork=True).start(started)
    log = folder.launch_log
    assert ranks.wait(300) == 0, log.read_text(encoding="utf-8")
    (packages,) = told(log.read_text(encoding="utf-8"))
    assert "torch" in packages
    unneeded = "mlflow submitit typer pydantic rich yaml transformers sklearn scipy xxhash"
    assert packages & set(unneeded.split()) == set()


def test_each_part_is_loaded_without_what_it_does_not_need() -> None:
    """The package before its names are used, a job's leader, and the beginning of a run."""
    of_package, of_leader, of_run = loaded(
        "import harness\nassert 'compare' in dir(harness)",
        "import harness.slurm.leader",
        "import harness.api, harness.launch.assemble, harness.tracking.ui",
    )
    libraries = "torch numpy pandas pyarrow pydantic mlflow typer yaml rich"
    assert of_package & set(libraries.split()) == set()
    trackers_and_torch = "torch mlflow scipy transformers sklearn typer rich"
    assert of_leader & set(trackers_and_torch.split()) == set()
    for_the_end = "torch mlflow scipy matplotlib pandas sqlalchemy"
    assert of_run & set(for_the_end.split()) == set()


def test_help_plan_and_status_load_nothing_heavy() -> None:
    commands = [["--help"], ["run", "--help"], ["plan", "quickstart"]]
    commands += [[name, "unknown"] for name in ("status", "logs", "show", "compare", "report")]
    call = "from harness.cli.main import main\ntry:\n    main({})\nexcept SystemExit:\n    pass"
    each = loaded(*(call.format(arguments) for arguments in commands))
    heavy = "torch mlflow transformers tokenizers sklearn scipy matplotlib pandas submitit"
    for arguments, packages in zip(commands, each, strict=True):
        assert "typer" in packages
        assert packages & set(heavy.split()) == set(), arguments
