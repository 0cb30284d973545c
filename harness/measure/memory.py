"""What training takes at one rank: the memory held before its model is built, and the most held since.

Taken once the data is loaded and just before the model is built, so that neither the imports nor the data set count;
what is built, the steps, evaluations and checkpoints do. Loader workers are processes of their own and don't count,
but their batches do once this process touches them. What libraries load or keep on the way counts, foremost the
compiler; the optimizers' share of that, torch._dynamo, is loaded before. Pages of files, such as libraries' code, don't
count, as it depends on whether the process was forked which ones it has already. What the allocator keeps of what was
freed before is handed back first, as far as it can be, because it would hold what training takes.

The resident size is what the process has of the machine, and glibc keeps blocks of up to 32 MiB that were freed: under
FSDP2, which frees and takes its blocks all the time, it keeps more than there is in use. With
`MALLOC_MMAP_THRESHOLD_: "131072"` in a cluster profile's environment it hands back what is freed, at the cost of speed.
"""

from __future__ import annotations

import ctypes
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SELF = Path("/proc/self")
RESET_PEAK = "5"  # proc_pid_clear_refs(5): sets the peak resident size (VmHWM) to the present one


class PeakMemory:
    """Counts from its making. On a GPU, the allocator's peaks too."""

    def __init__(self, device: torch.device) -> None:
        import torch._dynamo  # 80 MiB, which every optimizer would load on the way

        self.device = device
        _trim()
        self.before, self.files = _status("VmRSS"), _status("RssFile")
        self.floor = 0 if _reset_peak() else _peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, int]:
        """Bytes: `resident`, the peak since the making; `resident_before`, the size at it, with the pages of files that
        were touched since; on a GPU `allocated` and `reserved`, the peaks of its allocator.

        Where the kernel's peak can't be reset and has not grown since, `resident` is the peak of the process's whole
        life, and `resident_before` is absent, as what was held since is not known.
        """
        found = {"resident": _peak()}
        if self.before is not None and found["resident"] > self.floor:
            touched = (_status("RssFile") or 0) - (self.files or 0)
            found["resident_before"] = self.before + max(0, touched)
        if self.device.type == "cuda":
            import torch

            found["allocated"] = torch.cuda.max_memory_allocated(self.device)
            found["reserved"] = torch.cuda.max_memory_reserved(self.device)
        return found


def training_bytes(memory: Mapping[str, int]) -> int | None:
    """What training took where it ran: on a GPU the most allocated, else the resident growth; None if unknown."""
    if "allocated" in memory:
        return memory["allocated"]
    return memory["resident"] - memory["resident_before"] if "resident_before" in memory else None


def _peak() -> int:
    """The kernel's high-water mark; getrusage's, which can't be reset and may be an ancestor's, where it tells none."""
    found = _status("VmHWM")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> int | None:
    try:
        found = re.search(
            rf"^{field}:\s+(\d+) kB$", (SELF / "status").read_text(encoding="utf-8"), re.MULTILINE
        )
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _reset_peak() -> bool:
    """Whether the kernel has done it; some containers forbid it."""
    try:
        (SELF / "clear_refs").write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return _status("VmHWM") is not None


def _trim() -> None:
    """Have glibc hand back what was freed; elsewhere nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
