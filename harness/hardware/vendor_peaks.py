"""Vendors' peaks of GPUs: dense FLOP/s by dtype, and memory bandwidth.

A GPU that is not in the table has no known peak; nothing is guessed.

Every figure is without sparsity and at boost clock. Data sheets that give the figures of matrix
units with sparsity give twice the number here. fp16 and bf16 accumulate in fp32, as torch's
products do.

Sources, by row:

- V100: NVIDIA V100 data sheet (SXM2, PCIe) and V100S product page.
- T4: NVIDIA T4 data sheet. The matrix units of Volta and Turing have neither tf32 nor bf16.
- A100: NVIDIA A100 data sheet; its variants differ in memory bandwidth alone.
- A10, A30, A40: their data sheets.
- RTX A6000, RTX 3090: NVIDIA GA102 white paper, table 2 and appendix A.
- L4, L40, L40S: their data sheets, halved where those say "with sparsity".
- RTX 4090: NVIDIA Ada white paper, appendix A.
- H100 SXM and PCIe: NVIDIA H100 white paper, table 2; H100 NVL: its data sheet, halved.
- H200 SXM and NVL, GH200: their data sheets, halved. The bandwidth of a GH200 depends on which
  memory it has, and is left out.
- B200: NVIDIA HGX B200 data sheet, an eighth of the board, halved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.records.environment import Hardware

TERA = 1e12
GIGA = 1e9

# The dtype whose peak a cell of this precision is compared with.
DTYPE_OF_PRECISION: Mapping[str, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "bf16:fsdp2": "bf16",
    "fp16": "fp16",
    "fp64": "fp64",  # of which no peak is listed: it is there to measure errors, not speed
}


@dataclass(frozen=True, kw_only=True)
class VendorPeaks:
    """The peaks of one GPU as its vendor publishes them."""

    flops: Mapping[str, float]  # FLOP/s by dtype; a dtype that the GPU lacks is absent
    bandwidth: float | None  # bytes/s of its memory


def _without_tf32(bandwidth: float, fp32: float, fp16: float) -> VendorPeaks:
    """Return a row of Volta or Turing, from GB/s and TFLOP/s."""
    return VendorPeaks(
        flops={"fp32": fp32 * TERA, "fp16": fp16 * TERA},
        bandwidth=bandwidth * GIGA,
    )


def _with_tf32(bandwidth: float | None, fp32: float, tf32: float, half: float) -> VendorPeaks:
    """Return a row of Ampere or later, from GB/s and TFLOP/s; `half` is of bf16 and of fp16."""
    return VendorPeaks(
        flops={
            "fp32": fp32 * TERA,
            "tf32": tf32 * TERA,
            "bf16": half * TERA,
            "fp16": half * TERA,
        },
        bandwidth=None if bandwidth is None else bandwidth * GIGA,
    )


_V100_SXM = _without_tf32(900, 15.7, 125)
_V100_PCIE = _without_tf32(900, 14.0, 112)

# By the name that the driver gives the GPU, without "NVIDIA" or "Tesla"; oldest generation first.
# A slice of a GPU (MIG) has another name, and no row because its vendor publishes no peak.
VENDOR_PEAKS: Mapping[str, VendorPeaks] = {
    "V100-SXM2-16GB": _V100_SXM,
    "V100-SXM2-32GB": _V100_SXM,
    "V100-PCIE-16GB": _V100_PCIE,
    "V100-PCIE-32GB": _V100_PCIE,
    "V100S-PCIE-32GB": _without_tf32(1134, 16.4, 130),
    "T4": _without_tf32(320, 8.1, 65),
    "A100-SXM4-40GB": _with_tf32(1555, 19.5, 156, 312),
    "A100-PCIE-40GB": _with_tf32(1555, 19.5, 156, 312),
    "A100-SXM4-80GB": _with_tf32(2039, 19.5, 156, 312),
    "A100 80GB PCIe": _with_tf32(1935, 19.5, 156, 312),
    "A10": _with_tf32(600, 31.2, 62.5, 125),
    "A30": _with_tf32(933, 10.3, 82, 165),
    "A40": _with_tf32(696, 37.4, 74.8, 149.7),
    "RTX A6000": _with_tf32(768, 38.7, 77.4, 154.8),
    "GeForce RTX 3090": _with_tf32(936, 35.6, 35.6, 71),
    "L4": _with_tf32(300, 30.3, 60, 121),
    "L40": _with_tf32(864, 90.5, 90.5, 181.05),
    "L40S": _with_tf32(864, 91.6, 183, 362.05),
    "GeForce RTX 4090": _with_tf32(1008, 82.6, 82.6, 165.2),
    "H100 80GB HBM3": _with_tf32(3350, 66.9, 494.7, 989.4),
    "H100 PCIe": _with_tf32(2000, 51.2, 378, 756),
    "H100 NVL": _with_tf32(3900, 60, 417.5, 835.5),
    "H200": _with_tf32(4800, 67, 494.5, 989.5),
    "H200 NVL": _with_tf32(4800, 60, 417.5, 835.5),
    "GH200 480GB": _with_tf32(None, 67, 494.5, 989.5),
    "B200": _with_tf32(8000, 75, 1125, 2250),
}


def vendor_peaks_of(gpu: str) -> VendorPeaks | None:
    """Return the row of a GPU by the name that torch and NVML give it, None if there is none."""
    return VENDOR_PEAKS.get(gpu.removeprefix("NVIDIA ").removeprefix("Tesla "))


def vendor_peak(hardware: Hardware, precision: str) -> float | None:
    """Return the peak FLOP/s of one GPU of a machine at a precision.

    The result is None if the machine has no GPU, different ones, one without a row, or one that
    lacks the dtype.
    """
    names = {gpu.name for gpu in hardware.gpus}
    if len(names) != 1:
        return None
    peaks = vendor_peaks_of(names.pop())
    if peaks is None:
        return None
    return peaks.flops.get(DTYPE_OF_PRECISION[precision])
