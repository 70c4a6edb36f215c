"""An evaluation as one static page: it opens by double click, loads nothing, and reads in full without its script.

All text goes through jinja's escaping, and characters that cannot be seen are shown as escapes. The page forbids itself
every source but its own style and script, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from limbeck.console import visible
from limbeck.report.marked import LEADING_SPACE, sheets
from limbeck.report.rows import Row, Rows, collect

if TYPE_CHECKING:
    from limbeck.runs.marks import MarkSheet

__all__ = ["environment", "page", "show"]

TEMPLATES = Path(__file__).parent / "templates"
QUESTIONS = {"worth": "Is it worth distilling?", "after": "Did it work?", "compare": "Which answers better?"}
DECISIONS = {"don't": "Don’t distil", "not sure": "Not sure yet", "check grader and leak": "Check grader and leak"}
ORDER = ("student", "distilled", "teacher", "model")
LONG_CHARACTERS = 1200
LABELS = {
    "differ": "one model is better than another",
    "lost": "lost to the other model",
    "both_bad": "both bad",
    "cut_off": "cut off",
    "empty": "an empty answer",
    "failed": "no answer",
    "not_graded": "not graded",
    "graded": "graded",
    "asked": "asked",
    "answered": "answered",
}
PAIR_LABELS = {
    "compared": "both {first} and {second} are graded",
    "not_compared": "{first} or {second} is not graded",
    "first_better": "{first} better than {second}",
    "second_better": "{second} better than {first}",
    "tied": "{first} and {second} tied",
    "both_good": "{first} and {second} both good",
    "both_bad": "{first} and {second} both bad",
    "longer_won": "the longer answer won, of {first} and {second}",
    "longer_lost": "the shorter answer won, of {first} and {second}",
    "won_by_length": "{first} or {second} won with a longer or shorter answer",
}


def page(
    result: Mapping[str, Any],
    answers: Mapping[str, Sequence[Mapping[str, Any]]],
    marks: Sequence[MarkSheet] = (),
) -> str:
    """The whole HTML of an evaluation.

    Args:
        result: what `result.json` holds.
        answers: the lines of each model's answers, by alias.
        marks: files of marks, in the order they are shown.
    """
    models = sorted(result["models"], key=lambda model: ORDER.index(model["role"]))
    rows = collect(result, {model["alias"]: answers.get(model["alias"], ()) for model in models})
    marked = [sheet for each in marks for sheet in sheets(each)]
    templates = environment()
    style = templates.get_template("report.css").render(sets=rows.ids.values())
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    decision = (result["verdict"] or {}).get("decision")
    return templates.get_template("report.html").render(
        result=result,
        question=QUESTIONS[result["kind"]],
        headline=DECISIONS.get(decision, decision.capitalize()) if decision else f"{len(models)} models compared",
        models=models,
        rows=rows,
        sets=[(identity, _label(name, result["comparisons"]), rows.size(*name)) for name, identity in rows.ids.items()],
        filters=_filters(rows, [model["alias"] for model in models]),
        marked=marked,
        marked_keys={sheet.key: number for number, sheet in reversed(list(enumerate(marked, start=1)))},
        row_numbers={row.key: row.number for row in rows.rows},
        style=Markup(style),  # noqa: S704 - ours, and made from numbers
        script=Markup(script),  # noqa: S704
        policy=policy(style, script),
        data=_data({"result": result, "rows": [_row(row) for row in rows.rows], "marks": [asdict(one) for one in marked]}),
    )


def environment() -> Environment:
    """The templates and their filters, for every page that Limbeck makes."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"show": show, "points": points, "share": share, "short": short, "word": word, "path": path}
    made.globals["LONG_CHARACTERS"] = LONG_CHARACTERS
    return made


def policy(style: str, script: str) -> str:
    """What the page may load: this style and this script, and nothing else from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def show(text: object) -> Markup:
    """Text as text: escaped, with each character that cannot be seen as a visible escape."""
    parts = (
        Markup('<span class="unseen">{}</span>').format(piece) if unseen else escape(piece)
        for piece, unseen in visible(str(text))
    )
    return Markup("").join(parts)


def word(token: str) -> Markup:
    """A token as it stands in running text: the space before a word belongs to the text around it."""
    return show(token.removeprefix(LEADING_SPACE) or token)


def path(text: str) -> Markup:
    """A path or reference that may break into lines at its joints."""
    return Markup("<wbr>").join(show(part) for part in re.split(r"(?<=[/:])", text))


def points(value: float) -> str:
    """A difference of shares in points, with its sign."""
    rounded = round(100 * value)
    return f"{rounded:+d}".replace("-", "−") if rounded else "0"


def share(value: float) -> str:
    """A share in per cent; what is neither none nor all does not become it by rounding."""
    if 0 < value < 0.005:
        return "<1%"
    if 0.995 < value < 1:
        return ">99%"
    return f"{100 * value:.0f}%".replace("-", "−")


def short(value: float) -> str:
    """A number in three digits or so, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _filters(rows: Rows, aliases: Sequence[str]) -> list[tuple[str, str, int]]:
    """The sets that the bar above the rows offers: id, label and size, only those with rows."""
    offered: list[tuple[str, tuple[object, ...]]] = [("Only where they differ", ("differ",))]
    offered += [(f"Lost to {alias}", ("lost", alias)) for alias in aliases]
    offered += [("Both bad", ("both_bad",)), ("Cut off", ("cut_off",)), ("Empty", ("empty",)), ("Failed", ("failed",))]
    offered += [("Not graded", ("not_graded",))]
    return [(rows.ids[name], label, rows.size(*name)) for label, name in offered if name in rows.ids]


def _label(name: tuple[object, ...], comparisons: Sequence[Mapping[str, Any]]) -> str:
    """What the rows of a set have in common."""
    what, *about = name
    if what == "slice":
        return f"{about[0]}: {about[1]}"
    if about and isinstance(about[0], int):
        first, second = (comparisons[about[0]][side] for side in ("first", "second"))
        return PAIR_LABELS[str(what)].format(first=first, second=second)
    return LABELS[str(what)] + (f" ({about[0]})" if about else "")


def _data(data: Mapping[str, Any]) -> Markup:
    """JSON that cannot end its element, and is ASCII."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - holds no character that means something to HTML


def _row(row: Row) -> dict[str, Any]:
    left_out = ("key", "source", "occurrence", "messages", "labels", "ids", "prompt", "reference")
    answers = {
        alias: [{name: value for name, value in sample.items() if name not in left_out} for sample in samples]
        for alias, samples in row.answers.items()
    }
    common = {"row": row.number, "key": row.key, "source": row.source, "labels": row.labels}
    return {**common, "messages": row.messages, "reference": row.reference, "answers": answers}
