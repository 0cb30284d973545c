"""Lists the files of a workload's code: its module, and what that imports from its own tree.

They are found by reading `import` statements, also those inside functions, and calls of
`import_module` with a literal name, without importing anything. So the list is the same whatever
else a process has imported, and that of a built-in workload needs no torch. What is imported by a
name that is computed stays unseen.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from workloads.importing import OUR_PACKAGES

# Functions whose first argument is the name of a module, or that of a variable.
IMPORT_CALLS = ("importlib.import_module", "import_module", "__import__")
ENVIRONMENT_CALLS = (
    "os.getenv", "getenv", "os.environ.get", "environ.get", "os.environ.setdefault",
    "environ.setdefault", "os.environ.pop", "environ.pop",
)  # fmt: skip
PLAIN_STRING = re.compile(r"[bru]*[\"']", re.IGNORECASE)  # the beginning of one that runs no code
# The folder that holds a top-level package or module, None where its code is not the workload's.
FindRoot = Callable[[str], Path | None]


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """What is known of one file of code."""

    sha256: str  # of its text
    # Absolute names of what it imports. `from a import b` gives `a.b`, where b may be no module. A
    # relative import keeps its leading dots.
    imports: frozenset[str]
    variables: frozenset[str] = frozenset()  # of the environment, which it reads by literal names


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """Collects the files of a module and of all that it imports from its own tree."""

    find_root: FindRoot
    files: dict[str, Path] = field(default_factory=dict)  # by the path relative to its root
    # Modules that were looked for, by their absolute names: whether they may contain others.
    is_package: dict[str, bool] = field(default_factory=dict)

    def add_module(self, name: str) -> None:
        """Add a module by its absolute name, with the packages around it and what they import.

        The last part may be a name that the module before it defines.
        """
        parts = name.split(".")
        root = self.find_root(parts[0])
        if root is None:
            return
        for count in range(1, len(parts) + 1):
            parent = ".".join(parts[:count])
            if parent not in self.is_package:
                self._look_for(parent, root)
            if not self.is_package[parent]:
                return

    def _look_for(self, name: str, root: Path) -> None:
        """Add the file of a module below `root`, if there is one, and all that it imports."""
        path = root.joinpath(*name.split("."))
        init = path / "__init__.py"
        has_init = init.is_file()
        # Noted first, because files import each other. A folder without that file is a package too.
        self.is_package[name] = has_init or path.is_dir()
        file = init if has_init else None
        if not self.is_package[name]:
            file = _single_file(path)
        if file is not None:
            self.add_file(file, root)

    def add_file(self, path: Path, root: Path) -> None:
        """Add a file and all that it imports, unless it was added before."""
        relative = path.relative_to(root)
        if relative.as_posix() in self.files:
            return
        self.files[relative.as_posix()] = path
        if path.suffix != ".py":
            return
        for name in sorted(read_source(path).imports):
            self.add_module(_absolute_name(name, relative))


def files_of_file(path: Path) -> dict[str, Path]:
    """Return the files of a workload that is a single file, by their relative paths.

    Its folder must have been made importable.
    """
    walk = _Walk(find_root=_users_root)
    walk.add_file(path, path.parent)
    return walk.files


def files_of_module(name: str) -> dict[str, Path]:
    """Return the files of a user's module by their relative paths; none of an installed one."""
    walk = _Walk(find_root=_users_root)
    walk.add_module(name)
    return walk.files


def files_of_built_in(name: str) -> dict[str, Path]:
    """Return the files of a module of this package and of those that it imports from it."""
    package = Path(__file__).parent

    def find_root(top_level: str) -> Path | None:
        return package.parent if top_level == package.name else None

    walk = _Walk(find_root=find_root)
    walk.add_module(name)
    return walk.files


def read_source(path: Path) -> SourceFile:
    """Return the digest and the imports of a file; raises OSError if it can't be read."""
    status = path.stat()
    return _read_source(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _read_source(path: Path, modified: int, size: int) -> SourceFile:
    """Read a file, once for each state of it that a process sees."""
    content = path.read_bytes()
    imports: set[str] = set()
    variables: set[str] = set()
    if path.suffix == ".py":
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # whoever imports it will say so
            tree = ast.Module(body=[], type_ignores=[])
        imports.update(_imports(tree.body))
        # Visiting all nodes is slow, and hardly any file has these.
        if any(word in content for word in (b"import_module", b"__import__")):
            imports.update(_literal_arguments(tree, IMPORT_CALLS))
        if any(word in content for word in (b"environ", b"getenv")):
            variables.update(_literal_arguments(tree, ENVIRONMENT_CALLS))
            variables.update(_literal_keys(tree, "environ"))
    return SourceFile(
        sha256=hashlib.sha256(content).hexdigest(),
        imports=frozenset(imports),
        variables=frozenset(variables),
    )


def digest_code(path: Path) -> str:
    """Return the SHA-256 of a file's code; raises OSError if it can't be read.

    Comments, docstrings and blanks between tokens do not count, whichever version of Python reads
    it. Of what is no Python it is that of all bytes.
    """
    status = path.stat()
    return _digest_code(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _digest_code(path: Path, modified: int, size: int) -> str:
    """Digest a file, once for each state of it that a process sees."""
    content = path.read_bytes()
    if path.suffix == ".py":
        try:
            return hashlib.sha256("".join(_statements(content)).encode()).hexdigest()
        except (SyntaxError, ValueError, tokenize.TokenError):
            pass  # whoever imports it will say so
    return hashlib.sha256(content).hexdigest()


def _statements(content: bytes) -> Iterator[str]:
    """Yield the text of each logical line of a file, as tokens with a blank between them.

    A line of nothing but literals is left out: it is a docstring, or has no effect.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    lines = list(io.StringIO(content.decode(encoding), newline=None))
    line: list[str] = []
    is_docstring = True
    for kind, text in _tokens_of_python_311(lines):
        if kind in (tokenize.INDENT, tokenize.DEDENT):
            yield f"{tokenize.tok_name[kind]}\n"
        elif kind == tokenize.NEWLINE:
            if not is_docstring:
                yield " ".join(line) + "\n"
            line, is_docstring = [], True
        elif kind not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            line.append(text)
            is_docstring = is_docstring and PLAIN_STRING.match(text) is not None


def _tokens_of_python_311(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield type and text of the tokens of a file.

    An f-string is one token: Python has cut it into several since 3.12, which must change no id.
    """
    depth = 0  # of f-strings in f-strings
    begin = (0, 0)
    for token in tokenize.generate_tokens(iter(lines).__next__):
        name = tokenize.tok_name[token.type]
        if name in ("FSTRING_START", "TSTRING_START"):
            begin = begin if depth else token.start
            depth += 1
        elif name in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                yield tokenize.STRING, _text_between(lines, begin, token.end)
        elif not depth:
            yield token.type, token.string


def _text_between(lines: Sequence[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the text between two places, each a line, counted from 1, and a column from 0."""
    text = list(lines[begin[0] - 1 : end[0]])
    text[-1] = text[-1][: end[1]]
    text[0] = text[0][begin[1] :]
    return "".join(text)


def _literal_arguments(tree: ast.Module, names: Collection[str]) -> Iterator[str]:
    """Yield the first argument of each call of one of these functions, where that is a literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _dotted_name(node.func) in names:
            name = _literal(node.args[0])
            if name is not None:
                yield name


def _literal_keys(tree: ast.Module, mapping: str) -> Iterator[str]:
    """Yield the literal keys by which a mapping is read: `os.environ["X"]`, `"X" in environ`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key, owner = node.slice, node.value
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            key, owner = node.left, node.comparators[0]
        else:
            continue
        name = _literal(key)
        if name is not None and _dotted_name(owner).removeprefix("os.") == mapping:
            yield name


def _literal(node: ast.expr) -> str | None:
    """Return the text of a literal, None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _dotted_name(node: ast.expr) -> str:
    """Return `os.environ.get` for such an expression, nothing for one that is no dotted name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _imports(nodes: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements import, those in nested blocks and functions included.

    Only statements are visited, which are a tenth of all nodes. What only type checkers import has
    no part in any result.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            separator = "." if node.module else ""
            yield from (f"{module}{separator}{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            yield from _imports(node.orelse)
        else:
            yield from _imports(_inner_statements(node))


def _is_for_type_checkers(condition: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING` or `typing.TYPE_CHECKING`."""
    if isinstance(condition, ast.Attribute):
        return condition.attr == "TYPE_CHECKING"
    return isinstance(condition, ast.Name) and condition.id == "TYPE_CHECKING"


def _inner_statements(node: ast.stmt) -> list[ast.stmt]:
    """Return the statements in the blocks of a compound statement."""
    inner: list[ast.stmt] = []
    for block in ("body", "orelse", "finalbody"):
        inner += getattr(node, block, [])
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        inner += part.body
    return inner


def _absolute_name(name: str, importer: Path) -> str:
    """Return the absolute name of an import in a file, whose path is relative to its root."""
    module = name.lstrip(".")
    level = len(name) - len(module)
    if not level:
        return name
    package = importer.parent.parts
    parents = package[: len(package) - (level - 1)]
    return ".".join([*parents, module])


def _single_file(path: Path) -> Path | None:
    """Return the file of a module that is no package, None without one; `path` has no suffix."""
    for suffix in (*EXTENSION_SUFFIXES, ".py"):  # in the order in which Python looks
        candidate = path.with_name(path.name + suffix)
        if candidate.is_file():
            return candidate
    return None


def _users_root(top_level: str) -> Path | None:
    """Return the folder that holds a user's package or module, None for any other.

    Python's own modules, what is installed and what is ours are no user's.
    """
    if top_level in OUR_PACKAGES:
        return None
    try:
        spec = importlib.util.find_spec(top_level)
    except (ImportError, ValueError):  # no valid name, or a module that says nothing of itself
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations))).parent
    elif spec.has_location and spec.origin:
        root = Path(spec.origin).parent
    else:
        return None  # built into Python
    return None if is_installed(root) else root


def imported_packages(files: Mapping[str, Path]) -> list[str]:
    """Return the top-level names of installed packages that files of code import, sorted."""
    names: set[str] = set()
    for path in files.values():
        for name in read_source(path).imports:
            names.add(name.partition(".")[0])
    names -= {"", *OUR_PACKAGES, *sys.stdlib_module_names}
    return sorted(name for name in names if _users_root(name) is None)


def is_installed(folder: Path) -> bool:
    """Return whether a folder is one of Python's own, or of installed packages."""
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return True
    text = str(folder) + os.sep
    return text.startswith(_python_folders())


@lru_cache(maxsize=1)
def _python_folders() -> tuple[str, ...]:
    """Return the folders of Python's own modules and of installed packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_path(name) + os.sep for name in names)
