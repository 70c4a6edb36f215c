"""The machine of a run: device, memory, threads. Probed once at the start of a run and recorded with it."""

from __future__ import annotations

import ctypes
import mmap
import platform
import resource
import sys
import timeit
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from limbeck import messages

__all__ = ["Machine", "forget_peak_memory", "peak_memory_bytes", "probe_machine", "use_machine"]

CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
MAPS = Path("/proc/self/maps")
STATUS = Path("/proc/self/status")
FORGET_PEAK = Path("/proc/self/clear_refs")
# Parameters of mallopt: free memory at the top from which it is returned, extra memory per request, and the size from
# which a block gets its own mapping.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MALLOC_SETTINGS = {M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 2**20, M_MMAP_THRESHOLD: 2**30}
HEAP_BYTES = 2**31 - 2**20  # mallopt takes an int
TOUCH_BYTES = 2**26
# Relative error of a float32 product of the probe's size: 2e-7 as measured, against 2e-3 in bfloat16.
FLOAT32_ERROR = 1e-6
PROBE_REPEATS = 5
WORTH_SWITCHING = 0.8
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class Machine:
    """What a run uses of the machine; `free_bytes` is the free memory of the device at the time of the probe."""

    device: str
    device_name: str
    total_bytes: int
    free_bytes: int
    num_threads: int
    matmul_precision: str
    bf16: bool
    libc: str
    python: str
    libraries: dict[str, str]
    keeps_memory: bool = False
    large_pages: bool = False


def probe_machine(device: str = "auto") -> Machine:
    """Probe the machine without changing any setting.

    Args:
        device: `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: the device does not exist here.
    """
    chosen = _choose_device(device)
    if chosen.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(chosen)
        device_name = torch.cuda.get_device_name(chosen)
        bf16 = torch.cuda.is_bf16_supported()
    else:
        memory = psutil.virtual_memory()
        free_bytes, total_bytes = _container_limit(memory.available, memory.total)
        device_name = _cpu_info("model name") or platform.processor() or platform.machine()
        bf16 = torch.backends.cpu.get_cpu_capability() == "AVX512" and "avx512_bf16" in _cpu_info("flags").split()
    return Machine(
        device=str(chosen),
        device_name=device_name,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        num_threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        bf16=bf16,
        libc=platform.libc_ver()[0],
        python=platform.python_version(),
        libraries={name: version(name) for name in LIBRARIES},
    )


def use_machine(device: str = "auto", matmul_precision: str | None = None) -> Machine:
    """Choose the fastest settings that keep float32 precision, then probe the machine.

    `matmul_precision` is the recorded choice of an earlier session of the same run; without it, it is measured.
    """
    if matmul_precision is None:
        matmul_precision = _fastest_exact_precision() if _choose_device(device).type == "cpu" else "highest"
    torch.set_float32_matmul_precision(matmul_precision)
    keeps_memory, large_pages = _keep_freed_memory()
    return replace(probe_machine(device), keeps_memory=keeps_memory, large_pages=large_pages)


def _fastest_exact_precision() -> str:
    """The fastest matmul precision whose products still have float32 accuracy.

    On a CPU without 16-bit units, "medium" selects another library that also computes in float32; with such units it
    rounds to bfloat16. So the error is measured.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(256, 512, generator=generator), torch.randn(512, 1024, generator=generator)
    exact = left.double() @ right.double()
    seconds: dict[str, float] = {}
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        error = ((left @ right).double() - exact).norm() / exact.norm()
        if error <= FLOAT32_ERROR:
            seconds[precision] = min(timeit.repeat(lambda: left @ right, number=1, repeat=PROBE_REPEATS))
    # keep torch's own setting unless another one is clearly faster
    fastest = min(seconds, key=lambda precision: seconds[precision])
    return fastest if seconds[fastest] < WORTH_SWITCHING * seconds["highest"] else "highest"


@cache
def _keep_freed_memory() -> tuple[bool, bool]:
    """Make glibc keep freed memory for later allocations, and use large pages for its heap; whether each succeeded.

    Every step allocates the same sizes again. By default, large blocks are returned to the system at once, which then
    clears each page again; and under nested virtual memory, a page walk costs more than the read. Does nothing on other
    C libraries.
    """
    if platform.libc_ver()[0] != "glibc":
        return False, False
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    kept = all(libc.mallopt(setting, num_bytes) for setting, num_bytes in MALLOC_SETTINGS.items())
    # Reserve address space for the whole run; memory that is used later then comes in large pages.
    reserve_bytes = min(HEAP_BYTES, psutil.virtual_memory().available // 2)
    libc.mallopt(M_TOP_PAD, reserve_bytes)
    libc.free(libc.malloc(TOUCH_BYTES))
    libc.mallopt(M_TOP_PAD, MALLOC_SETTINGS[M_TOP_PAD])
    start, end = next(
        (int(place, 16) for place in line.split()[0].split("-"))
        for line in MAPS.read_text().splitlines()
        if line.endswith("[heap]")
    )
    return kept, libc.madvise(start, end - start, mmap.MADV_HUGEPAGE) == 0


def forget_peak_memory(device: str | torch.device) -> None:
    """Reset the peak memory. On a CPU this works on Linux only; elsewhere the peak only grows."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):  # not writable in some containers
            FORGET_PEAK.write_text("5")


def peak_memory_bytes(device: str | torch.device) -> int:
    """Peak memory of this process since the last `forget_peak_memory`: resident, or reserved on a GPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "linux":
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _choose_device(device: str) -> torch.device:
    num_gpus = torch.cuda.device_count()
    known = ["cpu"]
    if num_gpus:
        known += ["cuda", *(f"cuda:{number}" for number in range(num_gpus))]
    if device == "auto":
        device = "cuda" if num_gpus else "cpu"
    if device not in known:
        raise messages.no_device(device=device, known=known)
    return torch.device(device)


def _container_limit(free_bytes: int, total_bytes: int) -> tuple[int, int]:
    """Free and total bytes within the memory limit of the container, if there is one."""
    try:
        limited_bytes = (CGROUP / "memory.max").read_text().strip()
        used_bytes = int((CGROUP / "memory.current").read_text())
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return free_bytes, total_bytes
    if limited_bytes == "max":
        return free_bytes, total_bytes
    # the page cache counts as used, but is released when memory is needed
    used_bytes -= int(statistics.get("inactive_file", 0))
    return min(free_bytes, int(limited_bytes) - used_bytes), min(total_bytes, int(limited_bytes))


def _cpu_info(name: str) -> str:
    """The value of `name` for the first core in /proc/cpuinfo, empty if there is none."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
