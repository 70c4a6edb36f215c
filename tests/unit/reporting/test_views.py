"""Views fit into wide and narrow windows, and say figures in words and units that need no legend."""

from __future__ import annotations

import io
import json

import pytest
from rich.cells import cell_len
from rich.console import Console
from test_evaluation import RESULT, interval

from evaluation_story import mark_sheet, story
from limbeck.console import Printer
from limbeck.embedded.messages import LABELS
from limbeck.embedded.show import introduce_demo, show_demo
from limbeck.reporting.check import machine_rows, show_machine
from limbeck.reporting.evaluation import axis, show_evaluation
from limbeck.reporting.figures import count_text, share_range, size_text
from limbeck.reporting.marks import show_marks
from limbeck.reporting.page import page, share_of
from limbeck.results import Run
from limbeck.runs.evaluations import Evaluation


def lines_at(columns, show):
    """The lines that a view prints in a window of so many columns, without the lines that are never wrapped."""
    out = io.StringIO()
    printer = Printer(out=out, err=out)
    printer.out = Console(file=out, width=columns, force_terminal=False, markup=False)
    show(printer)
    return [line for line in out.getvalue().splitlines() if not line.startswith(("  limbeck ", "Answers of "))]


def test_a_share_of_few_prompts_is_a_count():
    assert share_range(interval(3 / 7, 0.1, 0.8, n=7)) == "3 of 7"
    assert share_range(interval(0.5, 0.1, 0.8, n=5)) == "2.5 of 5"  # grades between 0 and 1
    assert share_range(interval(0.43, 0.36, 0.5, n=10)) == "43% (36 to 50)"
    assert share_of(interval(3 / 7, 0.1, 0.8, n=7)) == "3 of 7"
    assert share_of(interval(0.43, 0.36, 0.5, n=10)) == "43%"
    assert count_text("NaN", 3) is None
    assert count_text(float("nan"), 3) is None


def test_no_percentage_of_few_prompts_is_in_a_view_or_on_a_page():
    result, answers, _ = story("worth", num=8, hostile=False)
    shown = lines_at(80, lambda printer: show_evaluation(printer, {**result, "verdict": None, "notes": []}))
    shown = [line for line in shown if "95% interval" not in line]
    assert any(" of 8" in line for line in shown)
    assert not [line for line in shown if "%" in line]
    html = page(result, answers)
    assert "of 8</a></strong></li>" in html


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 MiB"), (58 * 2**20, "58 MiB"), (2**30 // 8, "0.1 GiB"), (6.2 * 2**30, "6.2 GiB"), (2**41, "2,048.0 GiB")],
)
def test_sizes_are_in_gib_unless_they_are_small(num_bytes, text):
    assert size_text(num_bytes) == text


def test_the_axis_of_a_narrow_window_has_its_figures_on_a_line_of_their_own():
    figures, drawn = axis(interval(0.5, 0.25, 0.75), 0.1, 40).splitlines()
    assert figures == "+50 (+25 to +75)"
    assert len(drawn) == 39
    bar = drawn[5:34]
    assert (bar[14], bar[21]) == ("|", "●")
    assert (bar.index("━"), bar.rindex("━")) == (18, 24)  # round(1.25 * 14) and round(1.75 * 14)


@pytest.mark.parametrize("columns", [40, 80])
def test_views_fit_the_window_and_keep_every_figure(columns):
    lines = lines_at(columns, lambda printer: show_evaluation(printer, RESULT))
    assert max(map(cell_len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    for figure in ("+31 (+24 to +38)", "43% (36 to 50)", "80% (75 to 85)", "194/200", "1,234.50 EUR", "12.3", "0.871"):
        assert figure in text
    sheet = mark_sheet(["a"])
    lines = lines_at(columns, lambda printer: show_marks(printer, sheet, 1.0))
    assert max(map(cell_len, lines)) <= columns
    assert "first" in " ".join(lines).split(), "the label of the first mistake"


def test_the_machine_is_shown_in_gib_and_words(tmp_path):
    machine = {"free_bytes": 3 * 2**30 // 2, "total_bytes": 2**31, "bf16": False, "num_threads": 2, "torch": "2.0"}
    rows = {row["property"]: row["value"] for row in machine_rows(machine)}
    assert rows == {
        "free memory": "1.5 GiB", "total memory": "2.0 GiB", "bfloat16 saves time": "no", "threads": 2, "torch": "2.0",
    }  # fmt: skip
    text = "\n".join(lines_at(80, lambda printer: show_machine(printer, machine, {"LIMBECK_SEED": "3"})))
    assert "Environment variables: LIMBECK_SEED=3" in text
    assert "none set" in "\n".join(lines_at(80, lambda printer: show_machine(printer, machine, {})))


def test_the_demo_shows_both_verdicts_three_prompts_and_commands(tmp_path):
    class Done:
        run, seconds = Run(tmp_path / "runs" / "calm-otter-17"), 61.0

    for kind in ("worth", "after"):
        result, answers, _ = story(kind, num=30, hostile=False)
        with Evaluation.create(tmp_path, kind) as evaluation:
            evaluation.begin({"kind": kind})
            for alias, rows in answers.items():
                evaluation.write_answers(alias, [{**row, "grade": row["grade"] or 0.0} for row in rows])
            evaluation.write_result({**result, "name": kind})
        setattr(Done, kind, Evaluation(evaluation.path))
    out = io.StringIO()
    printer = Printer(out=out, err=out)
    introduce_demo(printer)
    show_demo(printer, Done())
    text = out.getvalue()
    assert max(map(cell_len, (line for line in text.splitlines() if "  limbeck" not in line and "/" not in line))) <= 80
    for shown in ("1. Baseline check", LABELS["examples"], "61 seconds", f"limbeck chat {Done.run.path / 'model'}"):
        assert shown in text
    worth = json.loads((tmp_path / "evaluations" / "worth" / "result.json").read_text())
    assert " ".join(worth["verdict"]["words"][0].split()) in " ".join(text.split())
