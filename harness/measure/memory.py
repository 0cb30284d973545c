"""Measures the memory that training takes at one rank.

The difference is taken between the memory in use just before the model is built and the peak since.
By then the data set is loaded, so neither it nor the imports count; the model, the steps,
evaluations and checkpoints do. Some details:

- What libraries load or keep on the way counts, above all the compiler. torch._dynamo, which every
  optimizer imports, is imported before.
- Loader workers are processes of their own and do not count, but their batches do once this process
  reads them.
- Pages of files, such as the code of libraries, do not count: how many of them a process has already
  depends on whether it was forked.
- Memory that was freed before is returned to the system first, as far as that is possible.
  Otherwise training would be served from it, and seem to take less.

The resident size is what the process occupies of the machine, which may be more than it uses: glibc
keeps freed blocks of up to 32 MiB, the limit to which it raises M_MMAP_THRESHOLD. FSDP2
frees and allocates its blocks all the time, and glibc then keeps more than there is in use. With
`MALLOC_MMAP_THRESHOLD_: "131072"` in the environment of a cluster profile the limit stays at 128
KiB, and larger blocks return to the system when they are freed, at the cost of speed.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SELF = Path("/proc/self")
KIB = 1024
# Written to /proc/self/clear_refs, this sets the peak of the resident size (VmHWM) to the present
# size; see proc_pid_clear_refs(5).
RESET_PEAK = "5"


class PeakMemory:
    """Measures the peak since it was created; on a GPU that of torch's allocator, too."""

    def __init__(self, device: torch.device) -> None:
        import torch

        # Any optimizer loads the compiler, 80 MiB that would otherwise count as memory of training.
        torch.optim.SGD([torch.zeros(1)], lr=0.1)
        self.device = device
        # Have glibc return freed memory to the system; other C libraries have no such function. It
        # walks all arenas, of which glibc gives most threads one of their own, so that memory that
        # another thread has freed is returned, too.
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if malloc_trim is not None:
            malloc_trim(0)
        self.resident_before = _status_bytes("VmRSS")
        self.file_pages_before = _status_bytes("RssFile")
        # The peak so far, where the kernel's cannot be reset: only a larger one is of training.
        self.earlier_peak = 0 if _reset_peak() else _peak_bytes()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def forget_peak(self) -> None:
        """Leave out the peak so far, which was not of training."""
        _reset_peak()
        if self.device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)

    def read(self) -> dict[str, int]:
        """Return the memory since creation, in bytes.

        - `resident`: the peak of the resident size.
        - `resident_before`: the resident size at creation, plus the pages of files that the process
          has touched since, which are no memory that training takes.
        - `allocated` and `reserved`, on a GPU: the peaks of torch's allocator.

        Where the kernel's peak cannot be reset and has not grown, `resident` is the peak of the
        process's whole life, and `resident_before` is absent because nothing is known since.
        """
        peak = _peak_bytes()
        memory = {"resident": peak}
        if self.resident_before is not None and peak > self.earlier_peak:
            touched = (_status_bytes("RssFile") or 0) - (self.file_pages_before or 0)
            memory["resident_before"] = self.resident_before + max(0, touched)
        if self.device.type == "cuda":
            import torch

            memory["allocated"] = torch.cuda.max_memory_allocated(self.device)
            memory["reserved"] = torch.cuda.max_memory_reserved(self.device)
        return memory


def _peak_bytes() -> int:
    """Return the peak of the resident size.

    Where the kernel reports no VmHWM, it is getrusage's: that one cannot be reset, and a process
    that was forked and then executed another program keeps its ancestor's.
    """
    peak = _status_bytes("VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else KIB  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status in bytes, None where there is none."""
    try:
        status = (SELF / "status").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.removesuffix("kB")) * KIB
    return None


def _reset_peak() -> bool:
    """Set the kernel's peak to the present size; return whether it could, as some containers forbid
    it.
    """
    try:
        (SELF / "clear_refs").write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return _status_bytes("VmHWM") is not None
