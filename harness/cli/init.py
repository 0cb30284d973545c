"""Defines `harness init`: a first sweep, of a script as it is or of a small workload to change."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.core.errors import BadInput
from harness.core.paths import safe_folder_name
from harness.sweep.cell import PLACEHOLDER
from harness.sweep.sweepfile import NAME
from workloads.catalog import is_script

app = typer.Typer()

# A call of argparse that declares an option, and the number that is its default.
OPTION = re.compile(r"add_argument\(\s*[\"'](?P<name>--[\w-]+)[\"'](?P<more>[^)]*)\)")
DEFAULT = re.compile(r"default\s*=\s*(?P<value>\d+)\b")
SEED_OPTIONS = ("seed", "manualseed", "manual-seed")
EXAMPLE = Path(__file__).parent.parent / "guide" / "examples" / "first"
# A sweep that runs a script, whose words are texts of YAML.
SWEEP = """\
# Runs a script as it is, with its own loop. The guide's page on workloads says all of it.
name: {name}
workloads:
  {name}:
    uses: {script}
    # Words in braces get values: {{NAME}} of an option or an axis, {{seed}}, {{steps}}, a {{folder}} of its own.
    arguments: {arguments}
# Every combination of these is a cell, which is compared with the first.
matrix:
{batch_size}  num_threads: [1, 2]  # torch's own; 1 without this line, where torch by itself takes all cores
# To vary an option of the script, such as --lr: --lr {{lr}} in the arguments, options.lr: [0.001, 0.01] here.
seeds: 5  # 0 to 4; as many trials of a cell suffice for a verdict
# length: 300 steps  # ends each trial there; without it, the script ends itself
"""


@app.command(context_settings={"ignore_unknown_options": True})
def init(
    script: Annotated[
        Path | None, typer.Argument(metavar="[SCRIPT]", help="A training script with its own loop.")
    ] = None,
    arguments: Annotated[
        list[str], typer.Argument(metavar="[ARGUMENT]...", help="The script's own command line.")
    ] = [],  # noqa: B006 - typer copies it
) -> None:
    """Write a first sweep.

    For a script, it writes a sweep that runs the script as it is. Without one, it writes a small
    workload to change, workload.py, and sweep.yaml. No file is ever overwritten.

    Examples:
      harness init train.py
      harness init train.py --data DIR
      harness init
    """
    texts = {}
    if script is not None:
        texts[script.with_suffix(".yaml")] = sweep_of_script(script, arguments)
    else:
        for source in sorted(EXAMPLE.glob("*.*")):
            texts[Path(source.name)] = source.read_text(encoding="utf-8")
    for path in texts:
        if path.exists():
            raise BadInput(f"{path}: exists, and is not overwritten; move it, or run it as it is")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    sweep = next(path for path in texts if path.suffix == ".yaml")
    print(f"next  harness run {shlex.quote(str(sweep))}")


def sweep_of_script(script: Path, arguments: Sequence[str]) -> str:
    """Return the commented sweep file that runs a script as it is, with these arguments.

    Raises BadInput for a script that is missing, and for a file that is none.
    """
    _check_script(script)
    named_options = {word.partition("=")[0] for word in arguments}
    words = list(arguments)
    batch_size = ""
    text = script.read_text(encoding="utf-8")
    for match in OPTION.finditer(text):
        option = match["name"]
        if option in named_options:
            continue
        name = option.strip("-").replace("_", "-").lower()
        default = DEFAULT.search(match["more"])
        if name in SEED_OPTIONS:
            words += [option, "{seed}"]
        elif name == "batch-size" and default is not None:
            words += [option, "{batch_size}"]
            batch_size = f"  batch_size: {default['value']}\n"
    sweep_name = script.stem
    if sweep_name == "main":  # as every example is called
        sweep_name = script.absolute().parent.name
    return SWEEP.format(
        name=_quoted(safe_folder_name(sweep_name)),
        script=_quoted(script.name),
        arguments=_quoted(_command_line(words)),
        batch_size=batch_size,
    )


def _check_script(script: Path) -> None:
    """Raise BadInput for a script that is missing, and for a file that is none."""
    if script.suffix != ".py" or not NAME.fullmatch(script.stem):
        raise BadInput(
            f"{script}: found another name; allowed: a Python file of letters, digits, ., - and _"
        )
    try:
        has_loop = is_script(script.name, script.parent)
    except (ValueError, SyntaxError) as error:
        raise BadInput(str(error)) from None
    if not has_loop:
        raise BadInput(
            f"{script}: found a file with a workload; allowed: a script; name it as"
            f" `uses: {script.name}` in a sweep (harness init without a file writes one)"
        )


def _command_line(words: Sequence[str]) -> str:
    """Return words as a command line, which is split as a shell does, and not run by one."""
    quoted = []
    for word in words:
        is_placeholder = PLACEHOLDER.search(word) and " " not in word
        if not is_placeholder:  # whose braces would get quotes that they do not need
            word = shlex.quote(word)
        quoted.append(word)
    return " ".join(quoted)


def _quoted(text: str) -> str:
    """Return a text in quotes of YAML: some texts, such as `on`, would be read as another value."""
    return json.dumps(text, ensure_ascii=False)
