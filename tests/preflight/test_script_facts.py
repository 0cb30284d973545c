"""What is read of a training script without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.preflight.script_facts import ScriptFacts, lower_is_better, read_script
from tests.support.running import USER_SCRIPTS


def facts(path: Path) -> ScriptFacts:
    return read_script(path, [path])


def test_options_ranks_and_metrics() -> None:
    plain = facts(USER_SCRIPTS / "plain.py")
    assert [(option.flag, option.default) for option in plain.options] == [
        ("--lr", 0.01),
        ("--steps", 40),
        ("--out", None),
    ]
    assert (plain.is_distributed, plain.metrics, plain.reports) == (False, [], False)
    ddp = facts(USER_SCRIPTS / "ddp.py")
    assert (ddp.is_distributed, ddp.metrics, ddp.reports) == (True, ["accuracy"], True)
    assert [option.name for option in ddp.options] == ["batch_size", "epochs"]


@pytest.mark.parametrize(
    ("declared", "required"),
    [
        ("'--data', required=True", True),
        ("'--data'", False),
        ("'data'", True),
        ("'data', nargs='?'", False),
    ],
)
def test_required_options(tmp_path: Path, declared: str, required: bool) -> None:
    (tmp_path / "train.py").write_text(f"parser.add_argument({declared})\n")
    (option,) = facts(tmp_path / "train.py").options
    assert option.is_required == required


@pytest.mark.parametrize("declared", ["'--source', required=True", "'--seed', type=int"])
def test_options_of_another_program_that_is_imported_are_not_the_scripts(
    tmp_path: Path, declared: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import arguments, helper\n"
        "if __name__ == '__main__':\n"
        "    arguments.parser.add_argument('--epochs')\n"
    )
    (tmp_path / "arguments.py").write_text("parser.add_argument('--lr', default=0.1)\n")
    (tmp_path / "helper.py").write_text(
        "def main():\n"
        f"    parser.add_argument({declared})\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    files = [tmp_path / name for name in ("train.py", "arguments.py", "helper.py")]
    options = read_script(files[0], files).options
    assert [option.flag for option in options] == ["--epochs", "--lr"]


def test_options_of_subcommands_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "commands = parser.add_subparsers()\n"
        "commands.add_parser('train').add_argument('--steps', required=True)\n"
    )
    assert facts(tmp_path / "main.py").options == []


def test_a_long_sum_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"TEXT = {' + '.join(['1'] * 400)}\n")
    assert facts(tmp_path / "train.py").options == []


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--data DIR", True),
        ("--data=DIR", True),
        ("-d DIR", True),
        ("-dDIR", True),
        ("--other d", False),
        ("--d DIR", False),
        ("", False),
    ],
)
def test_an_option_is_given_by_any_of_its_flags(tmp_path: Path, words: str, given: bool) -> None:
    (tmp_path / "train.py").write_text("parser.add_argument('-d', '--data', required=True)\n")
    (option,) = facts(tmp_path / "train.py").options
    assert (option.flag, option.name) == ("--data", "data")
    assert option.is_given(words.split()) == given


def test_directions_of_metrics() -> None:
    assert [lower_is_better(name) for name in ("val_loss", "val_bpb", "accuracy")] == [
        True,
        True,
        False,
    ]
