"""YAML files, with the line of every key: a mistake is one line with file, line, key, found and allowed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, SequenceNode

from harness.core.errors import BadInput, one_line
from harness.core.validation import InvalidValue, Key, decode_value, dotted

MAX_BYTES = 2**20


@dataclass(frozen=True)
class Document:
    """The content of a file, and for each key the line or the flag that it comes from."""

    content: dict[str, Any]
    sources: dict[Key, str]  # `sweep.yaml:7`, or the flag that set it; () is the file as a whole

    def error(self, key: Key, problem: str) -> BadInput:
        """Return the error for a problem at `key`, in one line: `SOURCE: KEY: PROBLEM`."""
        message = one_line(problem)
        if key:
            message = f"{dotted(key)}: {message}"
        return BadInput(f"{self.source_of(key)}: {message}")

    def source_of(self, key: Key) -> str:
        """Return the source of a key, or else of the nearest key above it that has one."""
        while key and key not in self.sources:
            key = key[:-1]
        return self.sources[key]

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
        try:
            return decode_value(kind, value, refuse_unknown=True)
        except InvalidValue as error:
            raise self.error(key + error.key, error.problem) from None


def read_document(path: Path) -> Document:
    """Return the YAML mapping in a file; raises BadInput if it can't be read or is no mapping."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: can't be read: {error}; allowed: a YAML file in UTF-8") from None
    if len(content) > MAX_BYTES:
        raise BadInput(f"{path}: found more than {MAX_BYTES:,} bytes; allowed: at most as many")
    return parse_document(text, str(path))


def parse_document(text: str, source: str) -> Document:
    """Return the YAML mapping in `text`, which errors call `source`; raises BadInput for anything else."""
    content = parse_value(text, source)
    if not isinstance(content, dict):
        raise BadInput(f"{source}: found no mapping; allowed: keys with values")
    document = Document(content, {(): source})
    _note_lines(document, YAML(typ="safe", pure=True).compose(text), ())
    return document


def parse_value(text: str, source: str) -> Any:
    """Return a YAML value, such as `3`, `eager` or `[1, 2]`, as JSON has it; a date is text.

    Raises BadInput, which begins with `source`, for text that is no YAML, and for what JSON can't hold,
    such as an infinite number.
    """
    try:
        value = YAML(typ="safe", pure=True).load(text)
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    # OverflowError and IndexError come from such numbers as `!!int ""`, RecursionError from a
    # thousand lists in one another.
    except (YAMLError, ValueError, TypeError, OverflowError, IndexError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None and "\n" in text:
            source = f"{source}:{mark.line + 1}"
        problem = one_line(getattr(error, "problem", None) or error)
        raise BadInput(f"{source}: no valid YAML: {problem.partition(' with value')[0]}") from None


def _note_lines(document: Document, node: Any, key: Key) -> None:
    """Note the line of each key, and of each item of a list, below the node at `key`."""
    children = []
    if isinstance(node, MappingNode):
        children = [(name.value, name, value) for name, value in node.value]
    if isinstance(node, SequenceNode):
        children = [(number, item, item) for number, item in enumerate(node.value)]
    for part, marked, value in children:
        line = marked.start_mark.line + 1
        document.sources[(*key, part)] = f"{document.sources[()]}:{line}"
        _note_lines(document, value, (*key, part))
