"""The vendors' table: what is in it is a dense peak, what is not in it has none."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from harness.hardware.vendor_peaks import DTYPE_OF_PRECISION, VENDOR_PEAKS, vendor_peak
from harness.records.environment import Hardware
from harness.sweep.axes import Axes


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "bf16:fsdp2", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp32", 66.9),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "fp16", 756),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla T4", "fp16", 65),
    ],
)
def test_known_gpus(name: str, precision: str, tera: float) -> None:
    assert vendor_peak(hardware(name), precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("names", "precision"),
    [
        (["NVIDIA H100 80GB HBM3 MIG 1g.10gb"], "fp32"),
        (["NVIDIA H1000"], "fp32"),
        (["NVIDIA A100"], "fp32"),
        (["H100"], "fp32"),
        ([""], "fp32"),
        ([], "fp32"),
        (["Tesla V100-SXM2-16GB"], "bf16"),  # which it lacks
        (["Tesla T4"], "tf32"),
        (["NVIDIA A100-SXM4-80GB", "NVIDIA A10"], "bf16"),
    ],
)
def test_what_is_unknown_or_lacks_the_dtype_has_no_peak(names: list[str], precision: str) -> None:
    assert vendor_peak(hardware(*names), precision) is None


def test_every_precision_of_the_axis_has_a_dtype() -> None:
    assert set(DTYPE_OF_PRECISION) == set(get_args(get_type_hints(Axes)["precision"]))


@pytest.mark.parametrize("name", VENDOR_PEAKS)
def test_rows_are_dense_and_in_order(name: str) -> None:
    """Narrower dtypes are no slower; sparsity's doubling would break the ratios that dense figures
    have.
    """
    row = VENDOR_PEAKS[name]
    assert row["fp32"] <= row.get("tf32", row["fp16"]) <= row["fp16"]
    assert row.get("bf16", row["fp16"]) == row["fp16"]
    if "tf32" in row:
        assert row["fp16"] / row["tf32"] == pytest.approx(2, rel=0.02)


def hardware(*names: str) -> Hardware:
    return Hardware(cpu="", usable_cores=1, gpus=list(names))
