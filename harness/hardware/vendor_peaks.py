"""Vendors' peaks: dense FLOP/s by GPU and dtype, and memory bandwidth. What is not in the table is unknown.

Every figure is without sparsity and at boost clock; data sheets that give matrix units with sparsity give twice the
number here. fp16 and bf16 accumulate in fp32, as torch's products do. Sources, row by row:

- V100: NVIDIA V100 data sheet (SXM2, PCIe) and V100S product page.
- T4: NVIDIA T4 data sheet. Volta and Turing have neither tf32 nor bf16 in their matrix units.
- A100: NVIDIA A100 data sheet; the variants differ in memory bandwidth alone.
- A10, A30, A40: their data sheets.
- RTX A6000, RTX 3090: NVIDIA GA102 white paper, table 2 and appendix A.
- L4, L40, L40S: their data sheets, halved where those say "with sparsity".
- RTX 4090: NVIDIA Ada white paper, appendix A.
- H100 SXM and PCIe: NVIDIA H100 white paper, table 2; H100 NVL: its data sheet, halved.
- H200 SXM and NVL, GH200: their data sheets, halved; GH200's bandwidth depends on its memory and is left out.
- B200: NVIDIA HGX B200 data sheet, an eighth of the board, halved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.records.environment import Hardware

TERA = 1e12

# The dtype whose peak a cell of this precision is held against.
DTYPE_OF_PRECISION: Mapping[str, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "bf16:fsdp2": "bf16",
    "fp16": "fp16",
}


@dataclass(frozen=True, kw_only=True)
class VendorPeaks:
    """What a vendor says of one GPU."""

    flops: Mapping[str, float]  # dtype -> FLOP/s
    bandwidth: float | None  # bytes/s of its memory


def _row(
    bandwidth: float | None,
    *,
    fp32: float,
    fp16: float,
    tf32: float | None = None,
    bf16: float | None = None,
) -> VendorPeaks:
    """From TFLOP/s and GB/s."""
    given = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp16": fp16}
    flops = {dtype: value * TERA for dtype, value in given.items() if value is not None}
    return VendorPeaks(flops=flops, bandwidth=None if bandwidth is None else bandwidth * 1e9)


def _ampere_on(bandwidth: float | None, fp32: float, tf32: float, half: float) -> VendorPeaks:
    return _row(bandwidth, fp32=fp32, tf32=tf32, bf16=half, fp16=half)


_V100_SXM = _row(900, fp32=15.7, fp16=125)
_V100_PCIE = _row(900, fp32=14.0, fp16=112)

# By the driver's name of the GPU without its maker. A slice (MIG) has a name of its own, and is rightly not here.
VENDOR_PEAKS: Mapping[str, VendorPeaks] = {
    "V100-SXM2-16GB": _V100_SXM,
    "V100-SXM2-32GB": _V100_SXM,
    "V100-PCIE-16GB": _V100_PCIE,
    "V100-PCIE-32GB": _V100_PCIE,
    "V100S-PCIE-32GB": _row(1134, fp32=16.4, fp16=130),
    "T4": _row(320, fp32=8.1, fp16=65),
    "A100-SXM4-40GB": _ampere_on(1555, 19.5, 156, 312),
    "A100-PCIE-40GB": _ampere_on(1555, 19.5, 156, 312),
    "A100-SXM4-80GB": _ampere_on(2039, 19.5, 156, 312),
    "A100 80GB PCIe": _ampere_on(1935, 19.5, 156, 312),
    "A10": _ampere_on(600, 31.2, 62.5, 125),
    "A30": _ampere_on(933, 10.3, 82, 165),
    "A40": _ampere_on(696, 37.4, 74.8, 149.7),
    "RTX A6000": _ampere_on(768, 38.7, 77.4, 154.8),
    "GeForce RTX 3090": _ampere_on(936, 35.6, 35.6, 71),
    "L4": _ampere_on(300, 30.3, 60, 121),
    "L40": _ampere_on(864, 90.5, 90.5, 181.05),
    "L40S": _ampere_on(864, 91.6, 183, 362.05),
    "GeForce RTX 4090": _ampere_on(1008, 82.6, 82.6, 165.2),
    "H100 80GB HBM3": _ampere_on(3350, 66.9, 494.7, 989.4),
    "H100 PCIe": _ampere_on(2000, 51.2, 378, 756),
    "H100 NVL": _ampere_on(3900, 60, 417.5, 835.5),
    "H200": _ampere_on(4800, 67, 494.5, 989.5),
    "H200 NVL": _ampere_on(4800, 60, 417.5, 835.5),
    "GH200 480GB": _ampere_on(None, 67, 494.5, 989.5),
    "B200": _ampere_on(8000, 75, 1125, 2250),
}


def vendor_peaks_of(gpu: str) -> VendorPeaks | None:
    """The row of a GPU by the name that torch and NVML give, or None."""
    return VENDOR_PEAKS.get(gpu.removeprefix("NVIDIA ").removeprefix("Tesla "))


def vendor_peak(hardware: Hardware, precision: str) -> float | None:
    """FLOP/s of one GPU of a machine as `environment` describes it; None where GPUs differ or one is unknown."""
    names = {gpu.name for gpu in hardware.gpus}
    found = vendor_peaks_of(names.pop()) if len(names) == 1 else None
    return None if found is None else found.flops.get(DTYPE_OF_PRECISION[precision])
