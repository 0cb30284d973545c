from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from harness.core.errors import BadInput
from harness.core.validation import choose
from harness.sweep.document import parse_document, parse_value, read_document
from workloads.settings import Between, Count, Settings


@dataclass(frozen=True, kw_only=True)
class Inner:
    kind: Literal["left", "right"] = "left"
    share: Annotated[float, Between(0, 1)] = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    count: Count = 1
    sizes: tuple[Count, ...] = ()
    inner: Inner | None = None
    many: list[Inner] = field(default_factory=list)
    named: dict[str, Inner | None] = field(default_factory=dict)


def outer(text: str) -> Outer:
    document = parse_document(text, "file.yaml")
    found: Outer = document.validate(Outer, document.content)
    return found


def problem(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        outer(text)
    return str(caught.value)


def test_whole_file_becomes_nested_dataclasses() -> None:
    text = (
        "name: x\ncount: 3\nsizes: [1, 2]\ninner: {kind: right}\n"
        "many: [{share: 1}]\nnamed: {a: , b: {share: 0.25}}\n"
    )
    assert outer(text) == Outer(
        name="x",
        count=3,
        sizes=(1, 2),
        inner=Inner(kind="right"),
        many=[Inner(share=1.0)],
        named={"a": None, "b": Inner(share=0.25)},
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("count: 1\n", "file.yaml: name: missing; it has no default"),
        (
            "name: x\nconut: 1\n",
            "file.yaml:2: conut: unknown key; did you mean 'count'? allowed: count, inner, many, ",
        ),
        (
            "name: x\nnamed:\n  a:\n    kin: left\n",
            "file.yaml:4: named.a.kin: unknown key; did you mean 'kind'? allowed",
        ),
        (
            "name: x\nsizes:\n  - 1\n  - a\n",
            'file.yaml:4: sizes[1]: found "a"; allowed: a whole number',
        ),
        ("name: x\ninner: {share: 2}\n", "file.yaml:2: inner.share: found 2; allowed: at most 1"),
        (
            "name: x\ninner: {kind: lefft}\n",
            "file.yaml:2: inner.kind: found \"lefft\"; did you mean 'left'? allowed: left, ",
        ),
        ("name: x\ninner: left\n", 'file.yaml:2: inner: found "left"; allowed: keys with values'),
    ],
)
def test_mistake_is_named_with_its_line(text: str, wanted: str) -> None:
    assert problem(text).startswith(wanted)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2E5", 200_000.0),
        ("-.5e+1", -5.0),
        ("3", 3),
        ("0.25", 0.25),
        ("'1e-3'", "1e-3"),
        ("2024-01-31", "2024-01-31"),
        ("bf16", "bf16"),
        ("1e", "1e"),
        ("compile:max-autotune", "compile:max-autotune"),
        ("[1, two]", [1, "two"]),
        ("", None),
    ],
)
def test_values_of_yaml(text: str, value: Any) -> None:
    assert parse_value(text, "--set x") == value


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\ncount: 3\r\n")
    assert read_document(path).content == {"name": "x", "count": 3}


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "*a"])
def test_value_of_a_flag_is_read_as_strictly_as_a_file(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--set x: [^\n]*$"):
        parse_value(text, "--set x")


def test_value_that_a_flag_has_set_is_blamed_on_the_flag() -> None:
    document = parse_document("name: x\nsizes:\n  - 1\n  - 2\n", "file.yaml")
    document.put(("sizes",), [3, 0], "--set sizes=3,0")
    with pytest.raises(
        BadInput, match=r"^--set sizes=3,0: sizes\[1\]: found 0; allowed: at least 1$"
    ):
        document.validate(Outer, document.content)


def test_flag_makes_the_mappings_on_its_way() -> None:
    document = parse_document("name: x\ninner: left\n", "file.yaml")
    document.put(("inner", "kind"), "lft", "--set inner.kind=lft")
    with pytest.raises(
        BadInput, match=r"^--set inner\.kind=lft: inner\.kind: found \"lft\"; did you mean 'left'"
    ):
        document.validate(Outer, document.content)


def test_error_without_a_place_of_its_own_has_that_of_the_key_above() -> None:
    document = parse_document("name: x\ninner:\n  kind: left\n", "file.yaml")
    assert str(document.error(("inner", "share"), "odd")) == "file.yaml:2: inner.share: odd"
    assert str(document.error((), "odd")) == "file.yaml: odd"
    assert "\n" not in str(document.error(("inner",), "two\nlines"))


@dataclass(frozen=True, kw_only=True)
class One(Settings):
    source: Literal["one"] = "one"


@dataclass(frozen=True, kw_only=True)
class Two(Settings):
    source: Literal["two"] = "two"
    path: Path


@pytest.mark.parametrize(
    ("value", "member"),
    [({}, One), ({"source": "one"}, One), ({"source": "two", "path": "."}, Two)],
)
def test_member_of_a_union_is_chosen_by_its_source(value: dict[str, Any], member: type) -> None:
    assert choose(One | Two, value) is member


@pytest.mark.parametrize("source", ["tow", ["two"], None])
def test_source_that_is_unknown(source: Any) -> None:
    with pytest.raises(ValueError, match=r"^source: found .*allowed: one, two$"):
        choose(One | Two, {"source": source})


@dataclass(frozen=True, kw_only=True)
class Unreadable(Settings):
    path: str | Path = "."


def test_type_that_can_not_be_read_is_refused_by_name() -> None:
    document = parse_document("path: here\n", "file.yaml")
    with pytest.raises(
        BadInput, match=r"^file.yaml: Unreadable: found a type that can't be read: .*Path"
    ):
        document.validate(Unreadable, document.content)
