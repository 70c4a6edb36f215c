"""A result in a notebook cell: a page in a frame, so that its style does not affect the notebook.

It uses the macros of the report, runs no script and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from limbeck.console import is_number
from limbeck.reporting.marked import sheets
from limbeck.reporting.messages import page as texts
from limbeck.reporting.messages.labels import NOTEBOOK
from limbeck.reporting.page import ORDER, environment
from limbeck.reporting.rows import Rows

if TYPE_CHECKING:
    from limbeck.runs.marks import MarkSheet

__all__ = ["evaluation_cell", "figure", "marks_cell", "table_cell"]

LONG_CHARACTERS = 1200
LINE_PIXELS, TOP_PIXELS, COMPARISON_PIXELS, TABLE_PIXELS, MOST_PIXELS = 28, 90, 260, 560, 900


def evaluation_cell(result: Mapping[str, Any]) -> str:
    """Verdict, comparisons and models of an evaluation."""
    verdict = result["verdict"] or {"words": [], "band": 0}
    models = sorted(result["models"], key=lambda model: ORDER.index(model["role"]))
    height = TOP_PIXELS + TABLE_PIXELS + COMPARISON_PIXELS * len(result["comparisons"])
    words = [*verdict["words"], *result["notes"]]
    title = texts.cell_evaluation(name=result["name"])
    return _cell(title, words, height, result=result, models=models, band=verdict["band"])


def table_cell(title: str, sentences: Sequence[str], *tables: Iterable[Mapping[str, object]]) -> str:
    """Sentences and tables under a title; the rows of a table have the same columns."""
    shown = [
        [{NOTEBOOK.get(name, name): figure(value) for name, value in row.items()} for row in table] for table in tables
    ]
    num_lines = len(sentences) + sum(len(table) + 1 for table in shown)
    return _cell(title, sentences, TOP_PIXELS + LINE_PIXELS * num_lines, tables=shown)


def marks_cell(sheet: MarkSheet) -> str:
    """Marked answers."""
    title = texts.cell_marks(student=sheet.student, teacher=sheet.teacher)
    return _cell(title, (), MOST_PIXELS, marked=list(sheets(sheet)))


def figure(value: object) -> str:
    """A value of a table: a dash for None, four digits of a float, thousands separators in an integer."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if is_number(value) else str(value)


def _cell(title: str, sentences: Sequence[str], height: int, **parts: Any) -> str:
    known: dict[str, Any] = {"result": {"measure": {"kind": ""}, "comparisons": []}, "models": [], "band": 0}
    known |= {"tables": [], "marked": [], "rows": Rows(), "long_characters": LONG_CHARACTERS}
    templates = environment()
    style = Markup(templates.get_template("report.css").render(sets=()))
    page = templates.get_template("result.html").render(
        title=title, sentences=sentences, style=style, **{**known, **parts}
    )
    frame = '<iframe sandbox srcdoc="{}" style="border: 0; width: 100%; height: {}px" title="{}"></iframe>'
    return frame.format(escape(page), min(height, MOST_PIXELS), escape(title))
