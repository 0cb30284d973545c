"""`harness guide`: the manual in the terminal."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path

import pytest

from harness.cli import guide, pages
from harness.cli.completion import complete_topics
from harness.cli.pages import FOLDER, Page, linked_topics, name_commands, read_pages
from tests.support.commands import harness
from tests.support.tree import TOP

GATE = """\
# Gate changes

Measure a change **against** another revision. It trains
both in turn.

See [the baselines](baseline.md#save) too.
"""
BASELINE = (
    "# Baselines\n\n```console\n$ harness gate baseline show\n```\n\nResults to `compare` with.\n"
)


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a manual of three pages, of which the index links two."""
    (tmp_path / "index.md").write_text("[Gate](gate.md), [base](baseline.md)", encoding="utf-8")
    (tmp_path / "gate.md").write_text(GATE, encoding="utf-8")
    (tmp_path / "baseline.md").write_text(BASELINE, encoding="utf-8")
    (tmp_path / "axes.md").write_text("Without the heading.", encoding="utf-8")
    for module in (guide, pages):
        monkeypatch.setattr(module, "read_pages", lambda: read_pages(tmp_path))
    return tmp_path


def test_topics_are_listed_with_title_and_summary_in_the_order_of_the_index(manual: Path) -> None:
    ended = harness("guide")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "gate      Gate changes",
        "          Measure a change against another revision.",
        "baseline  Baselines",
        "          Results to compare with.",
        "axes      axes",
        "          Without the heading.",
        "",
        "Show a page with: harness guide TOPIC; look for a word with: harness guide search WORD",
    ]


def test_a_page_is_printed_as_it_is_written_where_stdout_is_no_terminal(manual: Path) -> None:
    ended = harness("guide", "gate")
    assert (ended.code, ended.out) == (0, GATE)


class Terminal(io.StringIO):
    """A stream that says of itself that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_page_is_rendered_and_paged_on_a_terminal(
    manual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda self, content: paged.append(content))
    monkeypatch.setenv("LESS", "")  # the command sets it where it is not set
    monkeypatch.setattr("sys.stdout", Terminal())
    guide.guide("gate")
    (text,) = paged
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "Measure a change against another revision." in plain
    assert "the baselines (harness guide baseline)" in plain
    assert "**" not in plain


def test_an_unknown_topic_is_bad_input(manual: Path) -> None:
    ended = harness("guide", "gaet")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "harness: guide gaet: no such topic; did you mean 'gate'? allowed: axes, baseline, gate\n"
    )


def test_a_word_of_one_heading_shows_its_page(manual: Path) -> None:
    ended = harness("guide", "Changes")
    assert (ended.code, ended.out) == (0, GATE)


def test_a_word_of_several_pages_lists_them(manual: Path) -> None:
    ended = harness("guide", "the")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "harness guide gate  Gate changes",
        "     6  See [the baselines](baseline.md#save) too.",
        "harness guide axes  axes",
        "     1  Without the heading.",
    ]


def test_a_search_names_the_pages_and_their_lines_headings_first(manual: Path) -> None:
    ended = harness("guide", "search", "baselines")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "harness guide baseline  Baselines",
        "     1  # Baselines",
        "     4  $ harness gate baseline show",
        "harness guide gate      Gate changes",
        "     6  See [the baselines](baseline.md#save) too.",
    ]


def test_a_search_shows_some_lines_of_a_page_and_the_number_of_the_others(manual: Path) -> None:
    (manual / "axes.md").write_text("a seed\n" * 7, encoding="utf-8")
    lines = harness("guide", "search", "a", "seed").out.splitlines()
    assert len(lines) == 1 + guide.MOST_LINES + 1
    assert lines[-1] == "        and 2 more lines"


def test_a_search_for_what_no_page_has_is_bad_input(manual: Path) -> None:
    ended = harness("guide", "search", "teapot")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "harness: guide search teapot: found on no page; allowed: a word of the manual\n"
    )


def test_a_comment_in_code_is_no_heading() -> None:
    page = Page(topic="code", text="Text.\n\n```yaml\n# sweep.yaml\n```\n\n## Last\n")
    assert page.headings == ["Last"]


def test_the_shell_offers_topics(manual: Path) -> None:
    assert complete_topics("") == ["gate", "baseline", "axes"]
    assert complete_topics("ga") == ["gate"]


def test_links_to_pages_name_their_command() -> None:
    text = "See [running](run.md), [a part](gate.md#baselines) and [torch](https://pytorch.org)."
    assert name_commands(text) == (
        "See running (`harness guide run`), a part (`harness guide gate`) and"
        " [torch](https://pytorch.org)."
    )


def test_summary_is_empty_for_a_page_without_a_paragraph() -> None:
    assert Page(topic="empty", text="# Empty\n").summary == ""


class TestManual:
    """The pages that come with the harness."""

    @pytest.mark.parametrize(
        ("word", "topic"), [("strategies", "sweeps"), ("strategy", "sweeps"), ("slurm", "slurm")]
    )
    def test_a_word_shows_the_page_that_treats_it(self, word: str, topic: str) -> None:
        (page,) = [page for page in read_pages() if page.topic == topic]
        assert harness("guide", word).out == page.text

    def test_every_page_has_a_title_and_a_summary(self) -> None:
        for page in read_pages():
            assert page.title != page.topic, page.topic
            assert page.summary, page.topic

    def test_the_index_links_every_page_and_no_other(self) -> None:
        assert linked_topics() == [page.topic for page in read_pages()]

    def test_links_between_pages_lead_to_pages(self) -> None:
        topics = {page.topic for page in read_pages()} | {"index"}
        for page in read_pages():
            linked = {topic for _, topic in pages.PAGE_LINK.findall(page.text)}
            assert linked <= topics, page.topic

    def test_the_wheel_has_the_pages(self) -> None:
        """hatch packs every file below a package that git does not ignore."""
        settings = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
        wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
        assert FOLDER.relative_to(TOP).parts[0] in wheel["packages"]
        assert not {"exclude", "only-include"} & set(wheel)
        assert "*.md" not in (TOP / ".gitignore").read_text(encoding="utf-8")
