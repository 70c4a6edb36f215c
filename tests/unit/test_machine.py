"""What the machine gives is found out by measuring, and changes no number."""

from __future__ import annotations

import sys

import pytest
import torch

from limbeck.machine import forget_peak_memory, peak_memory_bytes, use_machine


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


def test_what_is_freed_is_kept_for_the_next_step():
    machine = use_machine("cpu")
    assert machine.keeps_memory == (machine.libc == "glibc")
    assert machine.large_pages == (machine.libc == "glibc")
    assert use_machine("cpu").keeps_memory == machine.keeps_memory  # a second run in one process


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
