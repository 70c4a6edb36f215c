"""The machine of a run: device, memory, threads. Probed once at the start of a run and recorded with it."""

from __future__ import annotations

import ctypes
import mmap
import platform
import resource
import sys
import time
import timeit
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from limbeck import messages

__all__ = [
    "Machine",
    "forget_peak_memory",
    "peak_memory_bytes",
    "precision_kept",
    "probe_machine",
    "tune_process",
    "use_machine",
]

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
# Rows, inner size and columns of the products that compare bfloat16 with float32: 0.1 s each where it is slow.
BF16_PROBE = (256, 512, 512)
# Once a product takes this many times as long as another there is nothing left to find out.
PLAINLY_SLOWER = 8.0
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class Machine:
    """What a run uses of the machine.

    free_bytes  free memory of the device at the time of the probe
    bf16_speed  how many times as fast a bfloat16 product is as a float32 product; None where it was not timed
    bf16        whether computing in bfloat16 saves time here
    """

    device: str
    device_name: str
    total_bytes: int
    free_bytes: int
    num_threads: int
    matmul_precision: str
    bf16: bool
    bf16_speed: float | None
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
        bf16_speed, bf16 = None, torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        memory = psutil.virtual_memory()
        free_bytes, total_bytes = _container_limit(memory.available, memory.total)
        device_name = _cpu_info("model name") or platform.processor() or platform.machine()
        bf16_speed = _bf16_speed()
        bf16 = bf16_speed * WORTH_SWITCHING > 1
    return Machine(
        device=str(chosen),
        device_name=device_name,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        num_threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        bf16=bf16,
        bf16_speed=bf16_speed,
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
    keeps_memory, large_pages = _tuned[-1]
    return replace(probe_machine(device), keeps_memory=keeps_memory, large_pages=large_pages)


@contextmanager
def precision_kept(inside: str | None = None) -> Generator[None]:
    """Whatever is set for float32 matrix products within the block, the setting of before comes back at its end.

    `inside` is set at its beginning.
    """
    before = torch.get_float32_matmul_precision()
    try:
        if inside is not None:
            torch.set_float32_matmul_precision(inside)
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# What `tune_process` reached: whether freed memory is kept, and whether the heap consists of large pages.
_tuned = [(False, False)]


def tune_process() -> None:
    """Set up this process for long runs on a CPU: glibc keeps freed memory, and its heap consists of large pages.

    The command line does it for itself. In a library it is the caller's decision, for it holds for all of the process
    and until its end: memory that was used once is not given back to the system. Elsewhere than on glibc nothing
    happens. Results do not change.
    """
    _tuned.append(_keep_freed_memory())


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
def _bf16_speed() -> float:
    """How many times as fast a product of bfloat16 numbers is as one of float32 on the CPU, each at its best.

    One thread computes and its own time counts, in turn, so that a busy neighbour has little say. Without units for
    bfloat16 such a product may take fifty times as long; the flags of a CPU do not say whether the libraries use them.
    """
    rows, inner, columns = BF16_PROBE
    exact = torch.ones(rows, inner), torch.ones(inner, columns)
    pairs = {torch.float32: exact, torch.bfloat16: (exact[0].bfloat16(), exact[1].bfloat16())}
    best_s = dict.fromkeys(pairs, float("inf"))
    before, num_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)
    try:
        for left, right in pairs.values():
            left @ right  # the first product of a kind sets its library up
        for _ in range(PROBE_REPEATS):
            for dtype, (left, right) in pairs.items():
                seconds = timeit.timeit(lambda a=left, b=right: a @ b, number=1, timer=time.thread_time)
                best_s[dtype] = min(best_s[dtype], seconds)
            if best_s[torch.bfloat16] > PLAINLY_SLOWER * best_s[torch.float32]:
                break
    finally:
        torch.set_num_threads(num_threads)
        torch.set_float32_matmul_precision(before)
    return best_s[torch.float32] / best_s[torch.bfloat16]


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
