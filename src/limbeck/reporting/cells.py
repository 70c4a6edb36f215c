"""A result in the cell of a notebook: a page of its own within the cell, so that no style of it touches the notebook.

It is made of the parts of the report, runs no script and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from limbeck.reporting.marked import sheets
from limbeck.reporting.page import ORDER, environment
from limbeck.reporting.rows import Rows

if TYPE_CHECKING:
    from limbeck.runs.marks import MarkSheet

__all__ = ["evaluation_cell", "figure", "marks_cell", "table_cell"]

LONG_CHARACTERS = 1200
LINE_PIXELS, TOP_PIXELS, COMPARISON_PIXELS, TABLE_PIXELS, MOST_PIXELS = 28, 90, 260, 560, 900


def evaluation_cell(result: Mapping[str, Any]) -> str:
    """Verdict, comparisons and models of an evaluation's result."""
    verdict = result["verdict"] or {"words": [], "band": 0}
    models = sorted(result["models"], key=lambda model: ORDER.index(model["role"]))
    height = TOP_PIXELS + TABLE_PIXELS + COMPARISON_PIXELS * len(result["comparisons"])
    words = [*verdict["words"], *result["notes"]]
    return _cell(f"Evaluation {result['name']}", words, height, result=result, models=models, band=verdict["band"])


def table_cell(title: str, sentences: Sequence[str], *tables: Iterable[Mapping[str, object]]) -> str:
    """Sentences and tables under a title; each table is rows of the same columns."""
    shown = [[{name: figure(value) for name, value in row.items()} for row in table] for table in tables]
    num_lines = len(sentences) + sum(len(table) + 1 for table in shown)
    return _cell(title, sentences, TOP_PIXELS + LINE_PIXELS * num_lines, tables=shown)


def marks_cell(sheet: MarkSheet) -> str:
    """Marked answers."""
    return _cell(f"{sheet.student}, read by {sheet.teacher}", (), MOST_PIXELS, marked=list(sheets(sheet)))


def figure(value: object) -> str:
    """A value of a table: a dash for none, a number in four digits."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
