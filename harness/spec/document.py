"""YAML files, read strictly: every mistake is one line with file, line, key, found and allowed.

A file is read in three steps. PyYAML composes its nodes with `_Loader`, which refuses what JSON can't
hold and stops at bounds on size and depth, so that a small file can't become a large one. A second
look at the nodes notes the line of each key, and refuses keys that YAML would silently merge or
convert. Then `Document.validate` turns the content into dataclasses, and names the line in errors.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import BadInput, one_line
from harness.core.validation import InvalidValue, Key, decode_value, dotted, shown
from harness.spec.text import problem_of_text

HINT = "(on, off, yes and no are booleans too: put quotes around a word)"
# What a file may hold. The largest sweep that makes sense, a list of inclusions, has some thousands
# of values, five levels deep.
MAX_BYTES = 2**20
MAX_NODES = 20_000  # values, keys included; PyYAML composes some 20,000 in a second
MAX_DEPTH = 32  # mappings and lists inside each other; deeper ones would end in a RecursionError
MAX_INTEGER = 2**63 - 1  # what every reader of JSON takes

TAG = "tag:yaml.org,2002:"  # begins the names of YAML's own types
# Decimal ones. PyYAML reads 010 as 8, 0x10 as 16, 1_0 as 10 and 1:30:00, a time limit, as 5400: what is
# meant as text, such as the value of a variable, would be another one.
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
# The types of scalars and collections that JSON has too. What is left out: timestamp, binary, set,
# omap, pairs, and the merge key `<<`.
PLAIN = {TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


class _OutOfBounds(yaml.MarkedYAMLError):
    """Valid YAML that no file of ours needs; `problem` is the whole message."""


class _Loader(yaml.SafeLoader):
    """Loads what JSON can hold and no more: a date stays text, and nothing is an alias.

    As in YAML 1.2, 1e-3 is a number and 1:30:00 is not. As in YAML 1.1, unquoted on, off, yes and
    no are booleans: `Document.validate` adds a hint where one of them stands for a word.
    """

    def __init__(self, text: str) -> None:
        """Make a loader of a text, at its beginning."""
        super().__init__(text)
        self._nodes = 0  # composed so far
        self._depth = 0  # of the node that is being composed

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node; raises _OutOfBounds for an alias, a tag, and beyond the bounds.

        Aliases of aliases double a value with every line. A tag chooses a constructor that its text
        need not fit.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        problem = None
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent):
            problem = f"found the alias *{event.anchor}; allowed: the value itself"
        elif tag is not None:
            problem = f"found the tag {tag.replace(TAG, '!!')}; allowed: values without tags"
        if self._nodes > MAX_NODES:
            problem = f"found more than {MAX_NODES:,} values; allowed: at most as many"
        if self._depth > MAX_DEPTH:
            problem = f"found nesting deeper than {MAX_DEPTH} levels; allowed: at most as many"
        if problem is not None:
            raise _OutOfBounds(problem=problem, problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Return the integer of a node; raises _OutOfBounds for one that JSON's readers refuse.

        Python refuses more than 4,300 decimal digits, and can't write an integer out that has as many, so
        the text is what is shown.
        """
        try:
            value = int(self.construct_yaml_int(node))
        except ValueError:
            value = MAX_INTEGER + 1
        if abs(value) <= MAX_INTEGER:
            return value
        problem = f"found {one_line(node.value, 40)}; allowed: an integer of at most 63 bits"
        raise _OutOfBounds(problem=problem, problem_mark=node.start_mark)


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag in PLAIN
}
_Loader.yaml_constructors[f"{TAG}int"] = _Loader.construct_integer


def _plain_resolvers(resolvers: list[tuple[str, re.Pattern[str]]]) -> list[Any]:
    """Return those of PyYAML's (tag, pattern) pairs that are for plain types, ours for integers.

    A resolver decides the type of an unquoted scalar. PyYAML keeps them by the character that the
    scalar begins with, and takes the first whose pattern matches.
    """
    plain: list[Any] = []
    for tag, pattern in resolvers:
        if tag == f"{TAG}int":
            plain.append((tag, INTEGER))
        elif tag in PLAIN:
            plain.append((tag, pattern))
    return plain


_Loader.yaml_implicit_resolvers = {
    character: _plain_resolvers(resolvers)
    for character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# PyYAML takes 1e-3 for text, because YAML 1.1 wants a point in every number with an exponent.
_Loader.add_implicit_resolver(
    f"{TAG}float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


@dataclass(frozen=True)
class Document:
    """The content of a file, and for each key the line or the flag that it comes from."""

    content: dict[str, Any]
    sources: dict[Key, str]  # `sweep.yaml:7`, or the flag that set it; () is the file as a whole

    def error(self, key: Key, problem: str) -> BadInput:
        """Return the error for a problem at `key`, in one line: `SOURCE: KEY: PROBLEM`."""
        source = self.source_of(key)
        message = one_line(problem)
        if key:
            message = f"{dotted(key)}: {message}"
        return BadInput(f"{source}: {message}")

    def source_of(self, key: Key) -> str:
        """Return the source of a key, or else of the nearest key above it that has one.

        A missing key has no line; the error then points at the mapping that lacks it.
        """
        for length in range(len(key), 0, -1):
            if key[:length] in self.sources:
                return self.sources[key[:length]]
        return self.sources[()]

    def put(self, key: Key, value: Any, source: str) -> None:
        """Set the value at `key` as if the file had it, making the mappings above it.

        A value on the way that is no mapping, such as null, is replaced by one. From now on errors
        at this key, and at all keys below it, name `source`.
        """
        mapping: dict[Any, Any] = self.content
        for depth, part in enumerate(key[:-1], start=1):
            if not isinstance(mapping.get(part), dict):
                mapping[part] = {}
                self.sources[key[:depth]] = source
            mapping = mapping[part]
        mapping[key[-1]] = value
        for other in list(self.sources):
            if other[: len(key)] == key:
                del self.sources[other]
        self.sources[key] = source

    def validate(self, kind: Any, value: Any, key: Key = ()) -> Any:
        """Return `value`, which is at `key`, as a `kind`; raises BadInput at the first mistake.

        Unknown keys of dataclasses are errors, and no type is converted silently.
        """
        for path, problem in _problems_of_scalars(value):
            raise self.error(key + path, problem)
        try:
            return decode_value(kind, value, refuse_unknown=True)
        except InvalidValue as error:
            problem = error.problem
            if isinstance(error.value, bool):
                word = shown(error.value)
                problem = problem.replace(f"found {word}", f"found the YAML boolean {word} {HINT}")
            raise self.error(key + error.key, problem) from None


def read_document(path: Path) -> Document:
    """Return the YAML mapping in a file; raises BadInput if it can't be read or is no UTF-8.

    A byte order mark, with which some editors begin a file, is skipped.
    """
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{path}:{line}: found byte 0x{content[error.start]:02x}; allowed: UTF-8 text"
        ) from None
    return parse_document(text, str(path))


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file; raises BadInput if it can't be read or is too large.

    Reading a pipe or a terminal would wait for whoever writes it.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise BadInput(f"{path}: found no regular file; allowed: a YAML file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror}; allowed: a YAML file") from None
    except ValueError:  # of a path with a NUL, which no file system takes
        raise BadInput(f"{path}: found a path with a NUL; allowed: a YAML file") from None
    if len(content) > MAX_BYTES:
        raise BadInput(f"{path}: found more than {MAX_BYTES:,} bytes; allowed: at most as many")
    return content


def parse_document(text: str, source: str) -> Document:
    """Return the YAML mapping in `text`.

    Raises BadInput for anything else, and for a key that is there twice. `source` is what errors
    call the text: the file's path.
    """
    keys = _KeySources(source)
    content = _load(text, keys)
    if not keys.sources:
        raise BadInput(f"{source}: found nothing; allowed: keys with values")
    if not isinstance(content, dict):
        raise BadInput(f"{source}: found no mapping; allowed: keys with values")
    return Document(content, {**keys.sources, (): source})


def _load(text: str, keys: _KeySources) -> Any:
    """Return the value of a text, None of an empty one, and note its keys; raises BadInput.

    Keys are noted before objects are made of the nodes, which drops the lines and silently takes
    the last of equal keys.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        keys.note(root, ())
        return loader.construct_document(root)
    # PyYAML lets through what `chr` raises, as for "\UFFFFFFFF".
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        location = keys.source if mark is None else keys.at(mark)
        problem = one_line(getattr(error, "problem", None) or error)
        if isinstance(error, _OutOfBounds):
            raise BadInput(f"{location}: {problem}") from None
        if "'\\t'" in problem:
            problem += "; allowed: blanks before a key, no tabs"
        raise BadInput(f"{location}: no valid YAML: {problem}") from None


@dataclass(frozen=True)
class _KeySources:
    """The keys of a text, each with where it comes from; keys that YAML would change are refused."""

    source: str  # the file's path, or a flag with its text
    has_lines: bool = True  # a flag has one line, whose number says nothing
    sources: dict[Key, str] = field(default_factory=dict)

    def at(self, mark: yaml.Mark) -> str:
        """Return what errors call a position in the text: `sweep.yaml:7`."""
        if self.has_lines:
            return f"{self.source}:{mark.line + 1}"
        return self.source

    def note(self, node: yaml.Node, key: Key) -> None:
        """Note every key below a node, which is at `key`.

        Raises BadInput for a key that is no text, or given twice.
        """
        self.sources[key] = self.at(node.start_mark)
        if isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.note(value, (*key, index))
        if not isinstance(node, yaml.MappingNode):
            return
        names: set[str] = set()
        for name_node, value in node.value:
            name = self._name(name_node, key)
            location = self.at(name_node.start_mark)
            if name in names:
                raise BadInput(f"{location}: {dotted((*key, name))}: given twice; allowed: once")
            names.add(name)
            self.note(value, (*key, name))
            self.sources[(*key, name)] = location

    def _name(self, node: yaml.Node, key: Key) -> str:
        """Return the text of a key below `key`; raises BadInput for a key of another type.

        An unquoted `on:`, for instance, would be the key True.
        """
        name = "?"  # a key may also be a list or a mapping
        if isinstance(node, yaml.ScalarNode):
            name = str(node.value)
            if node.tag == f"{TAG}str":
                return name
        kind = node.tag.removeprefix(TAG)
        raise BadInput(
            f"{self.at(node.start_mark)}: {dotted((*key, name))}: found a key of YAML type {kind};"
            " allowed: text (quote it)"
        )


def _problems_of_scalars(value: Any, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield what no value of a file may be, each with its key, whatever the type of the key is."""
    if isinstance(value, dict):
        for name, item in value.items():
            problem = problem_of_text(name)
            if problem is not None:
                yield key, problem
            yield from _problems_of_scalars(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems_of_scalars(item, (*key, index))
    else:
        problem = None
        if isinstance(value, float) and not math.isfinite(value):
            problem = f"found {value}; allowed: a finite number"  # JSON has no others
        elif isinstance(value, str):
            problem = problem_of_text(value)
        if problem is not None:
            yield key, problem


def parse_value(text: str, source: str) -> Any:
    """Return one YAML value from the command line, such as `3`, `eager` or `[1, 2]`.

    Raises BadInput, which begins with `source`, for text that is no YAML, and for a key that is
    there twice.
    """
    return _load(text, _KeySources(source, has_lines=False))
