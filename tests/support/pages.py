"""Reads Markdown pages: the commands and files that they print, and whether these still work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer import Context
from typer.exceptions import TyperException

from harness.cli.main import command_tree
from harness.gate.limits import read_gate
from harness.sweep import cluster, sweep
from tests.support.tree import TOP

README = TOP / "README.md"
GUIDE = TOP / "harness" / "guide"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```\s*$", re.M | re.S
)
FILE_NAME = re.compile(r"^# (?P<name>[\w./-]+\.(?:yaml|yml|py|toml|sh|csv))$")
EXIT_CODE = re.compile(r"#.*\bexit code (?P<code>\d+)")
SHELL_LANGUAGES = ("console", "bash", "sh")
TOP_OPTIONS = ("--version", "--install-completion", "--show-completion")  # `harness` alone has them
RUN_LIMIT = 600  # seconds that one command of a page may take


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    line: int  # where it starts, from 1
    language: str
    is_run: bool  # whether a test executes its commands
    text: str

    @property
    def file_name(self) -> str | None:
        """Return the name of the file that it prints, which is its first line as a comment."""
        match = FILE_NAME.match(self.text.partition("\n")[0])
        return match["name"] if match else None


def documented_pages() -> list[Path]:
    """Return the README and the pages of the manual."""
    return [README, *sorted(GUIDE.glob("*.md"))]


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found_blocks: list[Block] = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        language, _, more = match["info"].strip().partition(" ")
        is_run = language in SHELL_LANGUAGES and more == "run"
        found_blocks.append(Block(line=line, language=language, is_run=is_run, text=match["text"]))
    return found_blocks


def commands(block: Block) -> list[str]:
    """Return the command lines of a block: of a console those after `$ `, of a script all of them.

    A line that ends with a backslash goes on in the next one.
    """
    if block.language not in SHELL_LANGUAGES:
        return []
    joined = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def harness_calls(command: str) -> list[list[str]]:
    """Return the arguments of each call of `harness` in a command line, which may chain several."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    lexer.wordchars += "…%:@=!,[]{}+^"
    calls: list[list[str]] = []
    is_start = True  # whether the next word is a program's name
    arguments: list[str] | None = None
    for token in lexer:
        if set(token) <= set(";&|()<>"):
            is_start = token not in (">", ">>", "<")
            arguments = None
        elif is_start and re.fullmatch(r"\w+=.*", token):
            continue  # a variable that is set for this program
        elif is_start:
            is_start = False
            if Path(token).name == "harness":
                arguments = []
                calls.append(arguments)
        elif arguments is not None:
            arguments.append(token)
    return calls


def parse_problem(arguments: list[str]) -> str | None:
    """Return what is wrong with a call of `harness`, None if command, options and arguments exist."""
    tree = command_tree()
    if not arguments or arguments[0] in TOP_OPTIONS:
        return None
    name, *remaining = arguments
    command: Any = tree.get_command(Context(tree), name)
    if command is None:
        return f"no such command: {name}"
    if "--help" in remaining:  # to parse it would print the help
        return None
    try:
        # A command keeps the names of its help option from its first context, whoever made that.
        command.make_context("harness", remaining, **tree.context_settings)
    except TyperException as error:
        return error.format_message()
    return None


def wrong_options(paragraph: str) -> list[str]:
    """Return the options that a paragraph gives the command that it has named last, and that this lacks."""
    command: Any = None
    tree = command_tree()
    problems = []
    for code in re.findall(r"`([^`]+)`", paragraph):
        words = code.split()
        if words[0] == "harness":
            command = tree.get_command(Context(tree), words[1]) if len(words) > 1 else None
        elif " -" in code and not code.startswith("-"):  # another program
            command = None
        options = {name for param in getattr(command, "params", ()) for name in param.opts}
        for option in re.findall(r"(?<!\S)--[a-z-]+", code):
            if command is not None and option not in options:
                problems.append(f"harness {command.name}: {option}")
    return problems


def write_files(text: str, folder: Path) -> list[Path]:
    """Write the files that a page prints; of two with the same name the later one stays."""
    paths = [write_file(block, folder) for block in blocks(text) if block.file_name]
    return list(dict.fromkeys(paths))


def write_file(block: Block, folder: Path) -> Path:
    """Write the file that a block prints."""
    path = folder / str(block.file_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text.partition("\n")[2], encoding="utf-8")
    return path


def check_file(path: Path) -> None:
    """Read a file as the harness does; raises what its reader raises."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        compile(text, str(path), "exec")
    if path.suffix not in (".yaml", ".yml"):
        return
    keys = yaml.safe_load(text)
    if "workloads" in keys:
        assert sweep.load_sweep(path).trials()
    elif "launcher" in keys or "slurm" in keys or "device" in keys:
        cluster.load_profile(str(path))
    else:
        read_gate(path)


def run_page(text: str, folder: Path) -> list[str]:
    """Execute a page's `run` blocks in a folder, with its files in it; return what did not end as
    stated.

    A file is written when its block comes, so that a later one of the same name replaces it for
    what follows.
    """
    problems: list[str] = []
    for block in blocks(text):
        if block.file_name:
            write_file(block, folder)
        for command in commands(block) if block.is_run else []:
            problem = _run(command, folder)
            if problem:
                problems.append(f"line {block.line}: {problem}")
    return problems


def _run(command: str, folder: Path) -> str | None:
    """Execute one command in bash and return what went wrong, with the end of its output.

    Its exit code has to be the one that a comment at its end states, else 0.
    """
    stated = EXIT_CODE.search(command)
    exit_code = int(stated["code"]) if stated else 0
    environment = {name: value for name, value in os.environ.items() if name != "HARNESS_RESULTS"}
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=RUN_LIMIT,
        check=False,
    )
    if ended.returncode == exit_code:
        return None
    return f"{command}: exit code {ended.returncode}, not {exit_code}:\n{ended.stdout[-2000:]}"
