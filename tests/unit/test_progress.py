"""The view of a run: a moving panel on a terminal, plain lines elsewhere, both within 80 columns."""

from __future__ import annotations

import io
import math
import random

import pytest
from rich.cells import cell_len
from rich.console import Console

from limbeck.console import Printer
from limbeck.progress import RunView, time_left_s


def step_event(step: int, **changes: object) -> dict[str, object]:
    return {
        "kind": "step",
        "step": step,
        "loss": 0.231,
        "writing_tokens_per_s": 1204.4,
        "reading_tokens_per_s": 93120.0,
        "updating_tokens_per_s": 3118.0,
        "cut_off_share": 0.043,
        "memory_bytes": 12 * 2**30,
        "step_s": 30.0,
        **changes,
    }


def plain_lines(events: list[dict[str, object]], steps: int) -> list[str]:
    err = io.StringIO()
    printer = Printer(out=err, err=err)
    with RunView(steps, printer.err) as view:
        for event in events:
            view.update(event)
    return err.getvalue().splitlines()


def panel_lines(events: list[dict[str, object]], steps: int, title: str = "calm-otter-17") -> list[str]:
    """What the last frame of the moving panel looks like on an 80-column screen without colours."""
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None, legacy_windows=False)
    with RunView(steps, console, title=title) as view:
        for event in events:
            view.update(event)
        screen.truncate(0)
        screen.seek(0)
    text = screen.getvalue().replace("\x1b[2K", "").replace("\x1b[1A", "").replace("\x1b[?25h", "").replace("\r", "")
    assert "\x1b" not in text
    return text.splitlines()


def test_plain_lines_come_every_n_steps_with_the_first_and_the_last() -> None:
    lines = plain_lines([step_event(step) for step in range(1, 43)], steps=42)
    numbers = [int(line.split()[0].removesuffix("/42")) for line in lines[2:]]
    assert numbers == [1, *range(2, 43, 2)]
    assert lines[1].split() == [
        "step",
        "loss",
        "generation",
        "scoring",
        "update",
        "truncated",
        "memory",
        "time",
        "left",
    ]
    assert lines[18].split() == ["32/42", "0.231", "1,204", "93,120", "3,118", "4%", "12.0", "GiB", "5", "min"]
    assert lines[-1].endswith("finished")


def test_a_long_run_prints_about_twenty_lines_by_default() -> None:
    assert len(plain_lines([step_event(step) for step in range(1, 1001)], steps=1000)) == 2 + 1 + 20


def test_plain_lines_hold_no_control_characters_and_fit_80_columns() -> None:
    large = step_event(
        95_000,
        loss=123456.789,
        writing_tokens_per_s=987654.3,
        reading_tokens_per_s=9.9e6,
        step_s=86400.0,
        cut_off_share=1.0,
    )
    bare = {"kind": "step", "step": 5_000}
    hostile = {"kind": "alert", "text": "\x1b]0;x\x07 entropy \u202e fell"}
    lines = plain_lines([large, large, large, large, bare, hostile], steps=100_000)
    assert all(line.isprintable() for line in lines)
    assert all(cell_len(line) <= 80 for line in lines), max(lines, key=cell_len)
    assert lines[-1] == "alert:  entropy \\u202e fell"
    assert lines[-2].split() == ["5000/100000", *["-"] * 6, *lines[-2].split()[7:]], (
        "what is not known is a dash, never a number"
    )


def test_a_loss_that_is_not_finite_is_named() -> None:
    lines = plain_lines([step_event(1, loss="NaN")], steps=1)
    assert lines[2].split()[1] == "NaN"


def test_the_panel_fits_80_columns_and_shows_every_figure() -> None:
    events: list[dict[str, object]] = [step_event(1, loss=0.412), *(step_event(step) for step in range(2, 121))]
    events += [
        {"kind": "evaluation", "step": 12345, "teacher_text_loss": 0.312, "student_text_loss": 0.241},
        {"kind": "phase", "phase": "scoring"},
        {"kind": "guard", "text": "not for this view"},
    ]
    lines = panel_lines(events, steps=200)
    text = "\n".join(lines)
    assert {cell_len(line) for line in lines if line} == {80}
    for shown in (
        "calm-otter-17", "120 of 200", "0.231 nats per token, 0.412 at first", "generation 1,204", "scoring 93,120",
        "update 3,118", "4% of practice answers", "12.0 GiB", "0.241 at step 12345", "40 min",
    ):  # fmt: skip
        assert shown in text
    assert "not for this view" not in text


def test_the_panel_is_whole_before_the_first_step_and_with_a_hostile_title() -> None:
    lines = panel_lines([{"kind": "phase", "phase": "saving"}], steps=10, title="\x1b[31m[red]" + "x" * 200)
    assert {cell_len(line) for line in lines if line} == {80}
    assert "0 of 10" in "\n".join(lines)
    assert "[red]xxx" in lines[0]


def test_time_left_is_the_exact_product_when_all_steps_are_alike() -> None:
    assert time_left_s([2.0] * 5, 10) == (20.0, 20.0)


def test_time_left_is_the_prediction_interval_of_a_sum() -> None:
    # Steps 1, 2, 3: mean 2, s = 1. For 4 steps to come: 8 ± 2·sqrt(4 + 16/3).
    half = 2 * math.sqrt(4 + 16 / 3)
    low, high = time_left_s([1.0, 2.0, 3.0], 4) or (0.0, 0.0)
    assert low == pytest.approx(8 - half)
    assert high == pytest.approx(8 + half)
    assert time_left_s([1.0, 2.0], 4) is None
    assert time_left_s([0.1, 10.0, 0.1], 1000) == (0.0, time_left_s([0.1, 10.0, 0.1], 1000)[1])  # type: ignore[index]


def test_the_range_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(3)
    num_trials, num_covered = 400, 0
    for _ in range(num_trials):
        low, high = time_left_s([rng.gauss(10, 2) for _ in range(20)], 50) or (0.0, 0.0)
        num_covered += low <= sum(rng.gauss(10, 2) for _ in range(50)) <= high
    # 95 % nominal; four standard errors of a share of 400 trials are 4.4 points.
    assert 0.95 - 0.044 <= num_covered / num_trials <= 0.95 + 0.044


@pytest.mark.parametrize(
    ("step_s", "left"),
    [(4.0, "40 s"), (30.0, "5 min"), (700.0, "117 min"), (3600.0, "10.0 h"), (36000.0, "100.0 h")],
)
def test_time_is_told_in_the_unit_that_suits(step_s: float, left: str) -> None:
    lines = plain_lines([step_event(step, step_s=step_s) for step in range(1, 6)], steps=15)
    assert lines[-1].endswith(left)
