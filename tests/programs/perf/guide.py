"""Renews what the guide's pages show of commands and of files.

    python -m tests.programs.perf.guide export measurement
    python -m tests.programs.perf.guide --tables measurement      files only: nothing is run

What follows `<!-- results/bench/bench.md -->`, up to `<!-- end -->`, becomes the content of that file.
The commands of blocks that begin with ```` ```console renew ```` are run in the order of the page, in an
empty folder with the page's files. What a command prints takes the place of what the page shows of
it; a command of which it shows nothing is only run. Nothing else of a page is changed: sentences that
speak of a figure are to be read again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.pages import FENCE, GUIDE, stated_exit_code, write_files
from tests.support.tree import TOP

PROMPT = "$ "
SHOWN_FILE = re.compile(
    r"^<!-- (?P<path>results/[\w./-]+) -->\n(?P<text>.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL
)
TRIAL_ID = re.compile(r"\b(?P<label>[\w.]+)-[0-9a-f]{10}(?P<repeat>-s\d+-r\d+)\b")


@dataclass(frozen=True)
class Shown:
    """A command and what a page shows of its output."""

    command: str
    output: str


def shown_commands(block: str) -> Iterator[Shown]:
    """Yield the commands of a console block with what follows each of them."""
    for part in re.split(rf"^{re.escape(PROMPT)}", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Shown(command, output)


def with_present_ids(command: str, folder: Path) -> str:
    """Return a command with the ids that its trials have now, which follow from the workload's code."""

    def present(match: re.Match[str]) -> str:
        pattern = f"results/runs/*/{match['label']}-*{match['repeat']}"
        names = [path.name for path in folder.glob(pattern)]
        return names[0] if len(names) == 1 else match[0]

    return TRIAL_ID.sub(present, command)


def run(command: str, folder: Path) -> str:
    """Run a command in a folder and return what it prints; raises RuntimeError for another exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    print(f"{PROMPT}{command}", file=sys.stderr, flush=True)
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != stated_exit_code(command):
        raise RuntimeError(f"{command}: exit code {ended.returncode}: {ended.stderr[-500:]}")
    lines = [line.rstrip() for line in ended.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines)


def renewed(text: str, folder: Path) -> str:
    """Return a page with what its commands print now."""
    write_files(text, folder)

    def renew(match: re.Match[str]) -> str:
        if match["info"].split() != ["console", "renew"]:
            return match[0]
        block = ""
        for shown in shown_commands(match["text"]):
            command = with_present_ids(shown.command, folder)
            output = run(command, folder)
            block += f"{PROMPT}{command}\n{output if shown.output else ''}"
        return match[0].replace(match["text"], block)

    return FENCE.sub(renew, text)


def with_files(text: str, folder: Path = TOP) -> str:
    """Return a page with what the files that it shows contain now, relative to a folder.

    Raises FileNotFoundError for a file that is not there.
    """

    def show(match: re.Match[str]) -> str:
        path = match["path"]
        content = (folder / path).read_text(encoding="utf-8")
        return f"<!-- {path} -->\n\n{content}\n<!-- end -->"

    return SHOWN_FILE.sub(show, text)


def main() -> None:
    """Renew the pages that are named, each once all of its commands have ended well."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.guide", description=__doc__
    )
    parser.add_argument("page", nargs="+", help="the name of a page, such as export")
    parser.add_argument("--tables", action="store_true", help="files only; commands are not run")
    options = parser.parse_args()
    for name in options.page:
        path = GUIDE / f"{name}.md"
        text = with_files(path.read_text(encoding="utf-8"))
        if not options.tables:
            with tempfile.TemporaryDirectory(prefix="guide-") as folder:
                text = renewed(text, Path(folder))
        path.write_text(text, encoding="utf-8")
        load = os.getloadavg()[0]
        print(f"{path}: renewed, load {load:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
