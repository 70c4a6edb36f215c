"""What the machine gives is found out by measuring, and changes no number."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch

from limbeck import machine as machine_module
from limbeck.machine import forget_peak_memory, peak_memory_bytes, precision_kept, use_machine


@pytest.fixture(autouse=True)
def _precision_as_before():
    before, num_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision(before)


def test_matrix_products_round_like_float32_whatever_was_chosen():
    torch.set_float32_matmul_precision("medium")
    machine = use_machine("cpu")
    assert torch.get_float32_matmul_precision() == machine.matmul_precision
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(300, 700, generator=generator), torch.randn(700, 900, generator=generator)
    exact = left.double() @ right.double()
    assert ((left @ right).double() - exact).norm() < 1e-6 * exact.norm()


def test_a_run_that_goes_on_keeps_its_products():
    for precision in ("high", "highest"):
        assert use_machine("cpu", precision).matmul_precision == precision


def test_what_is_freed_is_kept_for_the_next_step_only_where_that_was_asked_for():
    script = (
        "from limbeck.machine import tune_process, use_machine\n"
        "def kept():\n"
        "    machine = use_machine('cpu')\n"
        "    return machine.keeps_memory, machine.large_pages\n"
        "before = kept()\n"
        "tune_process()\n"
        "tune_process()\n"  # a second run in one process
        "print(before, kept(), kept() == (use_machine('cpu').libc == 'glibc',) * 2)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("(False, False) ")
    assert done.stdout.strip().endswith("True")


def test_what_was_set_for_products_comes_back_also_after_an_error():
    torch.set_float32_matmul_precision("high")

    def fail():
        with precision_kept("medium"):
            assert torch.get_float32_matmul_precision() == "medium"
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert torch.get_float32_matmul_precision() == "high"


def test_the_peak_of_a_phase_is_not_that_of_an_earlier_one():
    large = torch.ones(25_000_000)
    before = peak_memory_bytes("cpu")
    assert before > large.numel() * 4
    del large
    forget_peak_memory("cpu")
    if sys.platform == "linux":
        assert peak_memory_bytes("cpu") <= before + 2**22
    again = torch.ones(50_000_000)
    assert peak_memory_bytes("cpu") > again.numel() * 4


class _Clock:
    """A clock that products of each number format move by their cost, in place of the thread's own."""

    def __init__(self, costs):
        self.costs, self.counted = costs, dict.fromkeys(costs, 0)

    def timeit(self, product, number, timer):
        dtype = product().dtype
        self.counted[dtype] += 1
        return self.costs[dtype]


@pytest.mark.parametrize(("cost", "pays"), [(0.2, True), (0.9, False), (1.0, False), (3.0, False), (60.0, False)])
def test_bfloat16_pays_where_its_products_take_clearly_less_time(monkeypatch, cost, pays):
    clock = _Clock({torch.float32: 1.0, torch.bfloat16: cost})
    monkeypatch.setattr(machine_module.timeit, "timeit", clock.timeit)
    machine_module._bf16_speed.cache_clear()
    torch.set_float32_matmul_precision("medium")
    before = torch.get_rng_state()
    found = machine_module.probe_machine("cpu")
    machine_module._bf16_speed.cache_clear()
    assert found.bf16_speed == pytest.approx(1 / cost)
    assert found.bf16 is pays
    # a slow product is not timed again once it is known to be
    assert clock.counted[torch.bfloat16] == (
        1 if cost > machine_module.PLAINLY_SLOWER else machine_module.PROBE_REPEATS
    )
    # and nothing is left changed
    assert torch.get_float32_matmul_precision() == "medium"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_probe_gives_the_threads_back():
    machine_module._bf16_speed.cache_clear()
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        assert machine_module.probe_machine("cpu").num_threads == num_threads
        assert torch.get_num_threads() == num_threads
        machine_module._bf16_speed.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="another kind of CPU has other libraries")
def test_without_units_for_it_bfloat16_does_not_pay():
    """The library is told to use what an older CPU has; whatever this machine has, it is then slower in bfloat16."""
    environ = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    script = "from limbeck.machine import probe_machine; print(probe_machine('cpu').bf16)"
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
