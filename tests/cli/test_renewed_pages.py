"""What the guide shows of commands is renewed by running them."""

from __future__ import annotations

from pathlib import Path

from tests.perf.guide import renewed

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
