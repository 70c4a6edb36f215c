"""Progress and results in the cell of a notebook."""

from __future__ import annotations

import html
import re
import sys
from types import ModuleType

from limbeck.reporting.cells import evaluation_cell, table_cell
from limbeck.reporting.notebook import in_notebook, progress

EVENTS = (
    {"kind": "phase", "phase": "loading models"},
    {"kind": "start", "run": "calm-otter-17", "steps": 4, "objective": "reverse KL"},
    {"kind": "step", "step": 1, "loss": 1.5, "step_s": 0.1},
    {"kind": "alert", "text": "Answers grew."},
    {"kind": "done"},
)


class ZMQInteractiveShell:
    """What IPython calls the shell of a notebook's kernel."""


class Handle:
    def __init__(self, shown):
        self.shown = [shown]

    def update(self, shown):
        self.shown.append(shown)


def pretend_notebook(monkeypatch, shell):
    handles = []

    def display(shown, display_id):
        handles.append(Handle(shown))
        return handles[-1]

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell
    displays.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return handles


def test_outside_a_notebook_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    for event in EVENTS:
        progress(None, None)[0](event)
    assert capsys.readouterr() == ("", "")
    handles = pretend_notebook(monkeypatch, object())  # IPython on a terminal
    assert not in_notebook()
    progress(None, None)[0](EVENTS[1])
    assert handles == []


def test_in_a_notebook_a_run_has_one_place_that_is_drawn_anew(monkeypatch, capsys):
    handles = pretend_notebook(monkeypatch, ZMQInteractiveShell())
    listen, watch = progress(None, None)
    for event in EVENTS:
        listen(event)
    watch("writing")
    assert len(handles) == 1
    last = handles[0].shown[-1]._repr_mimebundle_()
    assert set(last) == {"text/html", "text/plain"}
    for text in last.values():
        assert "calm-otter-17" in text
        assert "1 of 4" in text
        assert "Answers grew." in text
        assert "writing" in text
    assert capsys.readouterr() == ("", "")


def test_who_listens_is_told_instead(monkeypatch):
    handles = pretend_notebook(monkeypatch, ZMQInteractiveShell())
    told = []
    progress(told.append, None)[0](EVENTS[0])
    assert told == [EVENTS[0]]
    assert handles == []


def inside(cell):
    """The page within a cell."""
    found = re.fullmatch(r'<iframe sandbox srcdoc="(.*)" style="[^"]*" title="[^"]*"></iframe>', cell, re.DOTALL)
    return html.unescape(found[1])


def test_a_cell_is_a_page_of_its_own_in_which_text_stays_text():
    hostile = '"></iframe><script>alert(1)</script>'
    cell = table_cell(hostile, [hostile], [{hostile: hostile, "loss": 1.23456, "none": None}])
    assert cell.count("<iframe") == 1
    assert "<script" not in cell
    page = inside(cell)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "1.235" in page
    assert "–" in page


def test_an_evaluation_is_shown_with_its_verdict_and_models():
    interval = {"estimate": 0.5, "low": 0.25, "high": 0.75, "n": 8}
    model = {"alias": "student", "role": "student", "ref": "a/b", "score": interval, "length": None}
    model |= dict.fromkeys(("num_asked", "num_answered", "num_failed", "num_cut_off", "num_empty", "num_not_graded"), 8)
    model |= dict.fromkeys(("tokens_per_s", "latency_p50_s", "latency_p95_s", "cost_per_1000"), None)
    model |= {"divergence_to_teacher": None, "agreement": None}
    result = {"name": "swift-heron-12", "verdict": {"words": ["Not sure yet."], "band": 0.1}, "notes": ["A note."]}
    result |= {"models": [model], "comparisons": [], "measure": {"kind": "grader"}}
    page = inside(evaluation_cell(result))
    for text in ("swift-heron-12", "Not sure yet.", "A note.", "Student", "4 of 8"):
        assert text in page
    model["score"] = {**interval, "n": 40}
    page = inside(evaluation_cell(result))
    for text in ("<strong>50%</strong>", "25% to 75%, 40 grades"):
        assert text in page
