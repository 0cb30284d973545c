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
from contextlib import suppress
from pathlib import Path

import torch

SELF = Path("/proc/self")
MIB = 2**20


class PeakMemory:
    """Measures the peak since it was created; on a GPU that of torch's allocator, too."""

    def __init__(self, device: torch.device) -> None:
        # Any optimizer loads the compiler, 80 MiB that would otherwise count as memory of training.
        torch.optim.SGD([torch.zeros(1)], lr=0.1)
        self.device = device
        # Have glibc return freed memory to the system; other C libraries have no such function.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        self.before = _resident_bytes()
        # The peak so far, where the kernel's cannot be reset: only a larger one is of training.
        self.earlier_peak = 0 if self.forget_peak() else self.before.get("VmHWM", 0)

    def forget_peak(self) -> bool:
        """Leave out the peak so far; return whether the kernel could, which containers may forbid."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            # This sets the peak of the resident size (VmHWM) to the present size, see
            # proc_pid_clear_refs(5).
            (SELF / "clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return False
        return True

    def read(self) -> dict[str, float]:
        """Return the memory since creation, as numbers of a trial; what is not known is left out.

        - `resident`: the peak of the resident size.
        - `allocated` and `reserved`, on a GPU: the peaks of torch's allocator.
        - `training`: what training took. On a GPU that is the peak of what torch allocated, elsewhere
          the growth of the resident size, without the pages of files that the process has touched.

        Where the kernel's peak cannot be reset and has not grown, `resident` is the peak of the
        process's whole life, and `training` is absent because nothing is known since.
        """
        memory = {}
        now = _resident_bytes()
        if "VmHWM" in now:
            memory["resident"] = now["VmHWM"]
            if now["VmHWM"] > self.earlier_peak:
                touched = now["RssFile"] - self.before["RssFile"]
                memory["training"] = now["VmHWM"] - self.before["VmRSS"] - max(0, touched)
        if self.device.type == "cuda":
            memory["allocated"] = torch.cuda.max_memory_allocated(self.device)
            memory["training"] = memory["allocated"]
            memory["reserved"] = torch.cuda.max_memory_reserved(self.device)
        return {f"memory_{kind}_mib": size / MIB for kind, size in memory.items()}


def _resident_bytes() -> dict[str, int]:
    """Return VmHWM, VmRSS and RssFile of this process in bytes, as far as the kernel reports them."""
    sizes = {}
    with suppress(OSError):
        for line in (SELF / "status").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in ("VmHWM", "VmRSS", "RssFile"):
                sizes[name] = 1024 * int(value.removesuffix("kB"))
    return sizes
