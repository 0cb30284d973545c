from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer import Context

import harness as package
from harness.cli import main as cli
from harness.cli.main import MODULES, PANELS
from harness.sweep.axes import AXIS_TYPES
from harness.sweep.sweep import ready_sweeps
from tests.support.commands import harness
from tests.support.pages import harness_calls, parse_problem
from tests.support.running import LINE
from tests.support.sweeps import write

TREE = cli.command_tree()
COMMANDS: dict[str, Any] = {name: TREE.get_command(Context(TREE), name) for name in MODULES}


def test_help_lists_every_command_once_and_where_to_start() -> None:
    result = harness("--help")
    assert (result.code, result.err) == (0, "")
    assert "Start with: harness run quickstart\n" in result.out
    for panel, commands_of_panel in PANELS.items():
        assert f"\n{panel}:\n" in result.out
        for name, (_, line) in commands_of_panel.items():
            assert re.search(rf"^  {name} +{re.escape(line)}$", result.out, re.MULTILINE)
    bare = harness()
    assert "Start with: harness run quickstart" in bare.out + bare.err


def test_an_option_has_one_meaning_in_all_commands() -> None:
    """One metavar stands for one meaning, and a duration has a unit wherever it is given."""
    metavars: dict[str, set[str | None]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            metavars.setdefault(parameter.opts[0], set()).add(parameter.metavar)
    for name in ("--across", "--budget", "--data", "--only"):
        assert len(metavars[name]) == 1, name
    assert metavars["--budget"] == {"DURATION"}


@pytest.mark.parametrize(
    ("command", "budget"),
    [
        (["run", "quickstart", "--until", "2%"], "30"),
        (["gate", "quickstart", "--against", "HEAD"], "0s"),
        (["certify"], "1e3s"),
    ],
)
def test_a_duration_needs_its_unit(command: list[str], budget: str) -> None:
    result = harness(*command, "--budget", budget)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"harness: --budget: found '{budget}'; allowed: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_that_parse_and_explains_every_option(command: str) -> None:
    result = harness(command, "--help")
    assert (result.code, result.err) == (0, "")
    example = " ".join(result.out.rpartition("Example")[2].split())
    assert f"harness {command}" in example
    for line in result.out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines():
        for arguments in harness_calls(line.strip()):
            assert parse_problem(arguments) is None, line
    lines = [*result.out.partition("Options:")[2].splitlines(), ""]
    options = [number for number, line in enumerate(lines) if line.strip().startswith("-")]
    assert options
    for number in options:
        is_explained = "  " in lines[number].strip() or lines[number + 1].startswith(" " * 10)
        assert is_explained, lines[number]


def test_axes_lists_every_axis_with_its_values() -> None:
    shown = " ".join(harness("axes").out.split())
    for axis in AXIS_TYPES:
        assert axis in shown
    assert "precision fp32, tf32, bf16, fp16, bf16:fsdp2, fp64 default fp32" in shown
    assert "batch_size 1, …" in shown
    assert "max_grad_norm 1e-06, … or null default null" in shown
    assert "lr 1e-08, … or null default null" in shown


def test_workloads_are_listed_with_what_a_sweep_may_set() -> None:
    shown = harness("workloads").out
    assert "hidden, batch_norm, dropout, lr" in shown
    assert "digits, idx" in shown
    mlp = " ".join(harness("workloads", "mlp").out.split())
    assert "mlp workloads.mlp:MLP, batch_size 64" in mlp
    assert "options.hidden a list of 1, … default [256, 128]" in mlp
    assert "options.dropout 0 to 0.99 default 0.2" in mlp
    assert "data.path a path required data.classes 2 to 256 default 10" in mlp
    assert "data.source idx data.validation 0 to 0.99 default 0.0" in mlp
    for name in (LINE, os.path.relpath(LINE)):
        line = " ".join(harness("workloads", name).out.split())
        assert "options.samples a whole number default 256" in line
    refused = harness("workloads", "mpl")
    assert refused.code == 2
    assert refused.err.startswith("harness: WORKLOAD mpl: found no workload 'mpl'")


def test_version_is_that_of_the_package() -> None:
    assert metadata.version("distributed-training-harness") == package.__version__


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run quick", "quickstart"),
        ("plan swe", "sweep.yaml"),
        ("plan ./swe", "./sweep.yaml"),
        ("plan /nowhere/swe", ""),
        ("plan **x", ""),
        ("run quickstart --cluster loc", "local"),
        ("run quickstart --set prec", "precision="),
        ("compare nightly ni", "nightly"),
        ("show /tmp", ""),
    ],
)
def test_bash_completes(
    typed: str, offered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    Path("results/runs/nightly").mkdir(parents=True)
    Path("results/runs/nightly/sweep.json").touch()
    monkeypatch.setenv("_HARNESS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"harness {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    monkeypatch.setattr("sys.argv", ["harness"])
    assert harness().out.strip() == offered


def test_ready_sweeps_are_named_where_none_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = harness("plan", "nothing-like-it")
    assert all(name in result.err for name in ready_sweeps())


def test_the_folder_of_results_after_a_command_is_sent_before_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "handle_signals", lambda handler: None)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plan", "quickstart", "--results", "there"])
    assert "it goes before the command: harness --results DIR COMMAND" in capsys.readouterr().err
