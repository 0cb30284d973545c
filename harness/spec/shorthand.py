"""Short ways to write a sweep file: `seeds: 3`, `length: 5 epochs`, `checkpoint: best`, `target: NAME`.

They are replaced by what they stand for before the file is checked. Nothing after that knows them,
so a cell's id does not depend on which form was written.
"""

from __future__ import annotations

import re
from typing import Any

from harness.core.errors import did_you_mean
from harness.core.validation import Key, shown
from harness.spec.document import Document

LENGTHS = ("length", "evaluate")  # the keys whose value is a length
MAX_SEEDS = 10_000
LENGTH = re.compile(r"(?P<count>[0-9]{1,18}) *(?P<unit>epoch|step)s?")


def expand_shorthand(document: Document) -> None:
    """Replace the short forms of a sweep file; raises BadInput for one that means nothing."""
    content = document.content
    _expand(document, (), content)
    checkpoint = content.get("checkpoint")
    if isinstance(checkpoint, str):
        if checkpoint not in ("best", "none"):
            hint = did_you_mean(checkpoint, ["best", "none", "{every: 10m, keep: 2}"])
            raise document.error(("checkpoint",), f"found {checkpoint!r}; {hint}")
        content["checkpoint"] = {"best": checkpoint == "best"}
    workloads = content.get("workloads")
    if not isinstance(workloads, dict):
        return  # which validation refuses
    for label, entry in workloads.items():
        if entry is None:  # a workload as it is declared
            workloads[label] = {}
        elif isinstance(entry, dict):
            _expand(document, ("workloads", label), entry)
            if isinstance(entry.get("target"), str):
                entry["target"] = {"name": entry["target"]}


def _expand(document: Document, key: Key, content: dict[str, Any]) -> None:
    """Replace the short forms among the keys of the sweep, or of a workload, which is at `key`."""
    seeds = content.get("seeds")
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MAX_SEEDS:
            problem = (
                f"found {seeds}; allowed: how many seeds, from 1 to {MAX_SEEDS:,} (3: seeds 0, 1 and"
                f" 2), or a list of them ([{seeds}])"
            )
            raise document.error((*key, "seeds"), problem)
        content["seeds"] = list(range(seeds))
    for name in LENGTHS:
        if name in content:
            content[name] = _expand_length(document, (*key, name), content[name])


def _expand_length(document: Document, key: Key, value: Any) -> Any:
    """Return {"epochs": 5} for `5 epochs`, a mapping as it is; raises BadInput for other values."""
    if isinstance(value, dict):
        return value
    match = LENGTH.fullmatch(str(value).strip())
    if match is None or not int(match["count"]):
        problem = f"found {shown(value)}; allowed: a length such as 5 epochs or 300 steps"
        raise document.error(key, problem)
    return {f"{match['unit']}s": int(match["count"])}
