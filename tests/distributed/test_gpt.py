"""The decoder trains the same under every strategy that shares its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.running import by_label, run

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"strategy": "ddp", "world_size": 2},
    "fsdp2": {"strategy": "fsdp2", "world_size": 2},
    "checkpointing": {"activation_checkpointing": True, "grad_accum_steps": 2},
}


def test_losses_agree_with_one_process(tmp_path: Path) -> None:
    content = {
        "name": "gpt",
        "workloads": {
            label: {"uses": "gpt", "data": {"sequence": 32}, "axes": axes}
            for label, axes in VARIANTS.items()
        },
        "length": {"steps": 12},
        "evaluate": {"steps": 12},
        "matrix": {"batch_size": 16},
    }
    path = tmp_path / "gpt.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    records = by_label(run(path, slots=4))
    assert {label: record.failure for label, record in records.items()} == dict.fromkeys(VARIANTS)
    expected = records["single"]
    assert expected.loss is not None
    for record in records.values():
        assert record.loss is not None
        assert record.order_digest == expected.order_digest
        np.testing.assert_allclose(record.loss, expected.loss, rtol=1e-5)
        assert record.rank0 is not None
        assert record.rank0.tokens_per_sample == 32
