"""`harness init`: a first sweep, of a script as it is or of a small workload to change."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import safe_folder_name
from harness.sweep.cell import PLACEHOLDER
from harness.sweep.sweepfile import NAME
from workloads.catalog import is_script

# A call of argparse that declares an option, and the number that is its default.
OPTION = re.compile(r"add_argument\(\s*[\"'](?P<name>--[\w-]+)[\"'](?P<more>[^)]*)\)")
DEFAULT = re.compile(r"default\s*=\s*(?P<value>\d+)\b")
EXAMPLE = Path(__file__).parent.parent / "guide" / "examples" / "first"
# A sweep that runs a script, whose words are texts of YAML.
SWEEP = """\
# Runs a script as it is, with its own loop. The guide's page on workloads says all of it.
name: {name}
workloads:
  {name}:
    uses: {script}
    # Words in braces get values: {{NAME}} of an option or an axis, {{seed}}, {{steps}}, {{folder}} (the trial's own).
    arguments: {arguments}
{axes}# Every combination of these is a cell, which is compared with the first.
matrix:
  num_threads: [1, 2]
seeds: 5  # 0 to 4; as many trials of a cell suffice for a verdict
# length: 300 steps  # ends each trial there; without it, the script ends itself
"""


def start_from_example(folder: Path) -> list[Path]:
    """Write a small workload and its sweep into `folder`; return their paths.

    Raises BadInput if one of the files exists.
    """
    texts = {}
    for source in sorted(EXAMPLE.iterdir()):
        if source.is_file():
            texts[folder / source.name] = source.read_text(encoding="utf-8")
    return _write(texts)


def start_from_script(script: Path, arguments: Sequence[str]) -> list[Path]:
    """Write a sweep that runs a script as it is, next to it; return its path.

    `arguments` are those that the script needs. Raises BadInput for a script that is missing, and if the
    sweep file exists.
    """
    if script.suffix != ".py":
        raise BadInput(f"{script}: found no .py; allowed: a Python file")
    if not NAME.fullmatch(script.stem):
        raise BadInput(f"{script}: found another name; allowed: letters, digits, ., - and _")
    try:
        if not is_script(script.name, script.parent):
            raise BadInput(
                f"{script}: found a file with a workload; allowed: a script; name it as"
                f" `uses: {script.name}` in a sweep (harness init without a file writes one)"
            )
    except (ValueError, SyntaxError) as error:
        raise BadInput(str(error)) from None
    options = declared_options(script.read_text(encoding="utf-8"))
    return _write({script.with_suffix(".yaml"): sweep_text(script, arguments, options)})


def declared_options(text: str) -> dict[str, str]:
    """Return the options that a script declares with argparse, each with its default, as texts."""
    options = {}
    for match in OPTION.finditer(text):
        default = DEFAULT.search(match["more"])
        options[match["name"]] = default["value"] if default else ""
    return options


def sweep_text(script: Path, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """Return the commented sweep file that runs a script as it is.

    Of the script's `options` those for a seed and a batch size get the values of the trial, unless
    `arguments` have them.
    """
    given = {word.partition("=")[0] for word in arguments}
    filled = list(arguments)
    axes = ""
    for name, default in options.items():
        if name not in given and name.strip("-").lower() in ("seed", "manualseed", "manual-seed"):
            filled += [name, "{seed}"]
        if name not in given and name.strip("-").replace("_", "-") == "batch-size" and default:
            filled += [name, "{batch_size}"]
            axes = f"    axes: {{batch_size: {default}}}\n"
    words = []
    for word in filled:
        # Braces need no quotes: the command line is split as a shell does, and not run by one.
        is_plain = PLACEHOLDER.search(word) and " " not in word
        words.append(word if is_plain else shlex.quote(word))
    # Every example is called main.
    name = script.absolute().parent.name if script.stem == "main" else script.stem
    return SWEEP.format(
        name=_quoted(safe_folder_name(name)),
        script=_quoted(script.name),
        arguments=_quoted(" ".join(words)),
        axes=axes,
    )


def _quoted(text: str) -> str:
    """Return a text in quotes of YAML: some texts, such as `on`, would be read as another value."""
    return json.dumps(text, ensure_ascii=False)


def _write(texts: Mapping[Path, str]) -> list[Path]:
    """Write new files; raises BadInput, before anything is written, if one of them exists."""
    for path in texts:
        if path.exists():
            raise BadInput(f"{path}: exists, and is not overwritten; move it, or run it as it is")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)
