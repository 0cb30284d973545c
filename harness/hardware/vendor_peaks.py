"""Vendors' peaks of GPUs: dense FLOP/s by dtype.

A GPU that is not in the table has no known peak; nothing is guessed.

Every figure is without sparsity and at boost clock. Data sheets that give the figures of matrix
units with sparsity give twice the number here. fp16 and bf16 accumulate in fp32, as torch's
products do.

Sources, by row:

- V100: NVIDIA V100 data sheet (SXM2, PCIe) and V100S product page.
- T4: NVIDIA T4 data sheet. The matrix units of Volta and Turing have neither tf32 nor bf16.
- A100: NVIDIA A100 data sheet.
- A10, A30, A40: their data sheets.
- RTX A6000, RTX 3090: NVIDIA GA102 white paper, table 2 and appendix A.
- L4, L40, L40S: their data sheets, halved where those say "with sparsity".
- RTX 4090: NVIDIA Ada white paper, appendix A.
- H100 SXM and PCIe: NVIDIA H100 white paper, table 2; H100 NVL: its data sheet, halved.
- H200 SXM and NVL, GH200: their data sheets, halved.
- B200: NVIDIA HGX B200 data sheet, an eighth of the board, halved.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.records.environment import Hardware

TERA = 1e12

# The dtype whose peak a cell of this precision is compared with.
DTYPE_OF_PRECISION: Mapping[str, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "bf16:fsdp2": "bf16",
    "fp16": "fp16",
    "fp64": "fp64",  # of which no peak is listed: it is there to measure errors, not speed
}


def _peaks(fp32: float, tf32: float | None, half: float) -> Mapping[str, float]:
    """Return the FLOP/s by dtype of a row in TFLOP/s.

    `half` is of fp16 and of bf16. Without `tf32` the GPU is older than Ampere, and has neither.
    """
    if tf32 is None:
        return {"fp32": fp32 * TERA, "fp16": half * TERA}
    return {
        "fp32": fp32 * TERA,
        "tf32": tf32 * TERA,
        "bf16": half * TERA,
        "fp16": half * TERA,
    }


# By the name that the driver gives the GPU, without "NVIDIA" or "Tesla"; oldest generation first.
# A slice of a GPU (MIG) has another name, and no row because its vendor publishes no peak.
VENDOR_PEAKS: Mapping[str, Mapping[str, float]] = {
    "V100-SXM2-16GB": _peaks(15.7, None, 125),
    "V100-SXM2-32GB": _peaks(15.7, None, 125),
    "V100-PCIE-16GB": _peaks(14.0, None, 112),
    "V100-PCIE-32GB": _peaks(14.0, None, 112),
    "V100S-PCIE-32GB": _peaks(16.4, None, 130),
    "T4": _peaks(8.1, None, 65),
    "A100-SXM4-40GB": _peaks(19.5, 156, 312),
    "A100-PCIE-40GB": _peaks(19.5, 156, 312),
    "A100-SXM4-80GB": _peaks(19.5, 156, 312),
    "A100 80GB PCIe": _peaks(19.5, 156, 312),
    "A10": _peaks(31.2, 62.5, 125),
    "A30": _peaks(10.3, 82, 165),
    "A40": _peaks(37.4, 74.8, 149.7),
    "RTX A6000": _peaks(38.7, 77.4, 154.8),
    "GeForce RTX 3090": _peaks(35.6, 35.6, 71),
    "L4": _peaks(30.3, 60, 121),
    "L40": _peaks(90.5, 90.5, 181.05),
    "L40S": _peaks(91.6, 183, 362.05),
    "GeForce RTX 4090": _peaks(82.6, 82.6, 165.2),
    "H100 80GB HBM3": _peaks(66.9, 494.7, 989.4),
    "H100 PCIe": _peaks(51.2, 378, 756),
    "H100 NVL": _peaks(60, 417.5, 835.5),
    "H200": _peaks(67, 494.5, 989.5),
    "H200 NVL": _peaks(60, 417.5, 835.5),
    "GH200 480GB": _peaks(67, 494.5, 989.5),
    "B200": _peaks(75, 1125, 2250),
}


def vendor_peak(hardware: Hardware, precision: str) -> float | None:
    """Return the peak FLOP/s of one GPU of a machine at a precision.

    The result is None if the machine has no GPU, different ones, one without a row, or one that
    lacks the dtype.
    """
    names = set(hardware.gpus)
    if len(names) != 1:
        return None
    (name,) = names
    name = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    peaks = VENDOR_PEAKS.get(name, {})
    return peaks.get(DTYPE_OF_PRECISION[precision])
