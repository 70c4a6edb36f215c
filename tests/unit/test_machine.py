"""What the machine gives is found out by measuring, and changes no number."""

from __future__ import annotations

import pytest
import torch

from limbeck.machine import use_machine


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
