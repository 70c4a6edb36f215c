"""The parts of the benchmarks that compute little: shapes, floor, tables, baselines, and the page made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]

import common  # noqa: E402
import loss_side  # noqa: E402
import performance_page  # noqa: E402
import scaling  # noqa: E402
import sides  # noqa: E402
import vs_trl  # noqa: E402
from common import Shape, Table, command_line, figure, render, shape_of  # noqa: E402
from floor import Rates, Weights, Work, floor_s, weights_of  # noqa: E402
from link import fingerprint  # noqa: E402

from builders import tiny_llama  # noqa: E402


def test_a_shape_is_prompts_by_tokens_or_a_name():
    assert shape_of("8x64") == Shape("8x64", 8, 64, exact=True)
    assert shape_of("natural").student == "teacher"
    assert not shape_of("natural").exact
    with pytest.raises(ValueError, match="8 by 64"):
        shape_of("8 by 64")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.000123, "1.2e-04"), (0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (12345.6, "12,346")],
)
def test_figures_have_three_digits(value, text):
    assert figure(value) == text


def test_a_table_is_markdown_with_numbers_to_the_right():
    assert render(Table("t", ("side", "s"), (("a", "10.5"), ("longer", "2")))) == (
        "| side   |    s |\n| ------ | ---: |\n| a      | 10.5 |\n| longer |    2 |"
    )


def test_a_command_leaves_out_what_is_this_machines_own():
    arguments = ["/somewhere/loss.py", "--tokens", "8", "--peers", "/elsewhere", "--save", "--betas", "1"]
    assert command_line(arguments) == "python benchmarks/loss.py --tokens 8 --betas 1"


def test_weights_are_counted_as_the_model_has_them(tmp_path):
    model = tiny_llama(vocab_size=384)
    model.config.save_pretrained(tmp_path)
    matrices = {name: weight.numel() for name, weight in model.named_parameters() if weight.ndim == 2}
    found = weights_of(tmp_path)
    assert found.head == matrices.pop("lm_head.weight") == matrices.pop("model.embed_tokens.weight")
    assert found.body == sum(matrices.values())


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    student, teacher = Weights(body=3, head=2), Weights(body=5, head=4)
    work = Work(prompt_tokens=10, new_tokens=20, decode_steps=4)
    tokens = 30
    by_flops = Rates(float32_flops=1.0, bf16_flops=2.0, read_bytes=1e9)
    expected = {
        "writing": 2 * (3 * tokens + 2 * 20),
        "reading": 2 * (5 * tokens + 4 * 20),
        "updating": 6 * (3 * tokens + 2 * 20),
    }
    assert floor_s(work, student, teacher, by_flops, "float32") == expected
    assert floor_s(work, student, teacher, by_flops, "bf16") == {phase: s / 2 for phase, s in expected.items()}
    # without units for bf16 a step in it may multiply in float32, and no step beats its own floor
    without_units = Rates(float32_flops=1.0, bf16_flops=0.02, read_bytes=1e9)
    assert floor_s(work, student, teacher, without_units, "bf16") == expected
    by_bytes = Rates(float32_flops=1e9, bf16_flops=1e9, read_bytes=1.0)
    assert floor_s(work, student, teacher, by_bytes, "float32")["writing"] == 4 * 5 * 4
    assert floor_s(work, student, teacher, by_bytes, "bf16")["writing"] == 4 * 5 * 2
    assert floor_s(work, student, teacher, by_bytes, "bf16")["updating"] == 8 * 5 * 4


def reply(step_s, **more):
    phases = {"writing": 0.5 * step_s, "reading": 0.25 * step_s, "updating": 0.25 * step_s}
    work = {"num_tokens": 64, "prompt_tokens": 40, "longest": 8}
    return {"step_s": step_s, "seconds": phases, "peak_bytes": 2**30, "faults": 0, **work, **more}


def test_a_ratio_is_the_median_over_rounds_of_the_same_group():
    slow_machine = vs_trl.Group(
        {"trl-plain": [reply(4.0), reply(40.0), reply(4.0)], "limbeck-float32": [reply(2.0)] * 3}
    )
    assert slow_machine.ratio("trl-plain", "limbeck-float32") == 2.0


def test_a_side_is_summed_up_over_its_groups_and_tabled(tmp_path):
    for name in ("student", "teacher"):
        (tmp_path / name).mkdir()
        tiny_llama(vocab_size=384).config.save_pretrained(tmp_path / name)
    groups = {
        "trl-plain": vs_trl.Group({"trl-plain": [reply(4.0)], "limbeck-float32": [reply(2.0)]}),
        "trl-tuned": vs_trl.Group({"trl-tuned": [reply(3.0)], "limbeck-float32": [reply(2.0)]}),
    }
    given = vs_trl.Common(tmp_path, tmp_path, tmp_path, steps=1, warmup=0, stored=False, device="cpu")
    shape = shape_of("8x8")
    found = vs_trl.summary(shape, groups, Rates(1e6, 1e6, 1e6), given)
    assert found["limbeck-float32"]["faster_than"] == {"trl-plain": 2.0, "trl-tuned": 1.5}
    assert found["limbeck-float32"]["num_steps"] == 2
    assert found["limbeck-float32"]["tokens_per_s"] == 32.0
    table = vs_trl.table_of(shape, found, stored=False)
    assert [len(row) for row in table.rows] == [len(table.columns)] * 3
    ours = dict(zip(table.columns, table.rows[1], strict=True))
    assert {key: ours[key] for key in ("side", "writing", "vs trl-plain", "vs trl-tuned")} == {
        "side": "limbeck-float32",
        "writing": "50 %",
        "vs trl-plain": "2.00",
        "vs trl-tuned": "1.50",
    }


def test_a_worker_sees_nothing_of_the_parents_malloc(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("PYTHONPATH", "src")
    plain = sides.worker_environment(peer=True, keep_memory=False)
    assert not [name for name in plain if name.startswith("MALLOC_")]
    assert "PYTHONPATH" not in plain
    assert sides.worker_environment(peer=False, keep_memory=True)["MALLOC_MMAP_THRESHOLD_"] == str(2**40)


def test_fingerprints_tell_token_ids_apart():
    assert fingerprint([(1, 2), (3,)]) == fingerprint([[1, 2], [3]]) != fingerprint([[1, 2, 3]])


@pytest.mark.parametrize(("costs", "linear"), [([3.0, 2.0, 2.1], True), ([3.0, 1.0, 1.2], False)])
def test_linear_means_no_unit_costs_more_than_before(costs, linear):
    assert scaling.is_linear(costs) is linear


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_naive_loss_is_the_fused_one(beta):
    generator = torch.Generator().manual_seed(0)
    sides_NH = [torch.randn(5, 8, generator=generator, dtype=torch.float64) for _ in range(2)]
    heads_VH = [torch.randn(11, 8, generator=generator, dtype=torch.float64) for _ in range(2)]
    arguments = (sides_NH[0], heads_VH[0], sides_NH[1], heads_VH[1], beta)
    torch.testing.assert_close(loss_side.naive(*arguments), loss_side.fused()(*arguments))


def test_what_a_benchmark_saves_is_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(common, "BASELINES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["loss.py", "--save"])
    table = Table("beta 1", ("loss", "s"), (("fused", "1.69"),))
    about = {"date": "2026-01-02", "machine": "A CPU", "threads": 2, "libraries": {"torch": "2.13.0"}}
    common.finish("loss", [table], {"fused": 1.69}, about, save=True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["results"] == {"fused": 1.69}
    page = performance_page.performance_page(performance_page.load_baselines(tmp_path))
    assert "2026-01-02, A CPU, 2 threads; torch 2.13.0." in page
    assert "    python benchmarks/loss.py\n" in page
    assert render(table) in page
    # the other kind of CPU has its own file, and its own part of the page
    slow = Table("beta 1", ("loss", "s"), (("fused", "9.99"),))
    common.finish("loss", [slow], {"fused": 9.99}, {**about, "machine": "Another", "bf16": False}, save=True)
    page = performance_page.performance_page(performance_page.load_baselines(tmp_path))
    assert render(table) in page
    assert page.index(render(table)) < page.index("on a CPU without units for bf16") < page.index(render(slow))
    others = ("vs_trl", "rollouts", "routes", "precision", "scaling")
    assert f"Not saved yet: {', '.join(f'`benchmarks/{name}.py`' for name in others)}." in page
