"""What the machine gives is found out by measuring, and changes no number."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from limbeck.machine import forget_peak_memory, peak_memory_bytes, precision_kept, use_machine


@pytest.fixture(autouse=True)
def _precision_as_before():
    before = torch.get_float32_matmul_precision()
    yield
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
