"""Which variables are recorded, and which values are withheld."""

from __future__ import annotations

import pytest

from harness.core.variables import WITHHELD, recorded_value


@pytest.mark.parametrize(
    ("name", "is_recorded"),
    [
        ("NCCL_ALGO", True),
        ("OPENBLAS_L2_SIZE", True),
        ("PYTHONHASHSEED", True),
        ("LD_LIBRARY_PATH", True),
        ("TOKENIZERS_PARALLELISM", True),
        ("SLURM_JWT", False),
        ("TORCH_API_KEY", False),
        ("DB_PASSWORD", False),
        ("PLAIN", False),
    ],
)
def test_a_value_is_withheld_by_the_name_of_its_variable(name: str, is_recorded: bool) -> None:
    assert recorded_value(name, "hunter2") == ("hunter2" if is_recorded else WITHHELD)
