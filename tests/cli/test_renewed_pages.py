"""What the guide shows of commands is renewed by running them, and what it shows of files is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.perf.guide import renewed, with_files
from tests.support.pages import GUIDE

PAGE = """\
```yaml
# a.yaml
name: a
```

```console renew
$ mkdir -p results/runs/demo/mlp-0123456789-s0-r0
$ ls -d results/runs/demo/mlp-aaaaaaaaaa-s0-r0 && cat a.yaml
an older
output
$ false  # exit code 1
```

```console
$ false
as it is
```
"""


def test_outputs_that_are_shown_are_renewed_and_nothing_else(tmp_path: Path) -> None:
    before, after = PAGE.split("$ ls")[0], PAGE.split("output\n")[1]
    command = "$ ls -d results/runs/demo/mlp-0123456789-s0-r0 && cat a.yaml\n"
    output = "results/runs/demo/mlp-0123456789-s0-r0\nname: a\n"
    assert renewed(PAGE, tmp_path) == before + command + output + after


def test_files_that_are_shown_are_renewed_and_nothing_else(tmp_path: Path) -> None:
    page = "# A\n<!-- results/a.md -->\nan older\ntable\n<!-- end -->\nas it is\n"
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a.md").write_text("| new |\n")
    renewed_page = with_files(page, tmp_path)
    assert renewed_page == "# A\n<!-- results/a.md -->\n\n| new |\n\n<!-- end -->\nas it is\n"
    assert with_files(renewed_page, tmp_path) == renewed_page


@pytest.mark.parametrize("page", sorted(GUIDE.glob("*.md")), ids=lambda page: page.stem)
def test_the_guide_shows_files_as_they_are(page: Path) -> None:
    """`python -m tests.programs.perf.guide --tables PAGE` renews what is older."""
    text = page.read_text(encoding="utf-8")
    assert with_files(text) == text
