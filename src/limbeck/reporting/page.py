"""An evaluation as one static page: it opens by double click, loads nothing, and reads in full without its script.

All text goes through jinja's escaping, and characters that cannot be seen are shown as escapes. The page forbids itself
every source but its own style and script, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from limbeck.console import visible
from limbeck.errors import LimbeckError, Stopped, UsageError
from limbeck.reporting.marked import LEADING_SPACE, Sheet, sheets
from limbeck.reporting.rows import Row, Rows, collect, label
from limbeck.runs.evaluations import Evaluation, list_evaluations
from limbeck.runs.lines import event_line, write_text
from limbeck.runs.marks import MarkSheet, read_marks, worst_marks

__all__ = ["environment", "page", "show", "write_page"]

TEMPLATES = Path(__file__).parent / "templates"
QUESTIONS = {"worth": "Is it worth distilling?", "after": "Did it work?", "compare": "Which answers better?"}
DECISIONS = {"don't": "Don’t distil", "not sure": "Not sure yet", "check grader and leak": "Check grader and leak"}
ORDER = ("student", "distilled", "teacher", "model")
LONG_CHARACTERS = 1200
NUM_MARKED = 5


def write_page(name: str, workspace: Path, output: Path | None = None) -> Path:
    """Write the page of an evaluation, by default to NAME.html here; of a run, that of its newest evaluation.

    Raises:
        UsageError: there is no such evaluation, it has no result yet, or `output` is no name of a page.
    """
    evaluation = _find(name, workspace)
    output = Path(f"{evaluation.name}.html") if output is None else output
    if output.suffix.lower() not in (".html", ".htm") or not output.parent.is_dir():
        raise UsageError(
            "report.not-html",
            given=f"The report is to be written to {str(output)!r}.",
            needed="It is a page for a browser: it ends in .html and lies in a folder that is there.",
            fix=f"Make the folder, or write to {evaluation.name}.html.",
        )
    result = evaluation.result()
    answers = {model["alias"]: evaluation.read_answers(model["alias"]) for model in result["models"]}
    workspace = evaluation.path.parents[1] if evaluation.path.parent.name == "evaluations" else workspace
    gone = [alias for alias, rows in answers.items() if not rows]
    if gone:
        text = f"The answers of {', '.join(gone)} are no longer in {evaluation.path}: their rows cannot be shown."
        result = {**result, "notes": [*result["notes"], text]}
    try:
        write_text(output, page(result, answers, _marks(evaluation, result, workspace)))
    except Stopped as error:  # which is about runs: a report has nothing to go on with
        fix = "Free space, give the permission, or write to another folder with -o."
        raise LimbeckError(
            "report.not-written", given=error.given, needed="A page is written whole or not at all.", fix=fix
        ) from error
    return output


def _find(name: str, workspace: Path) -> Evaluation:
    known = list_evaluations(workspace)
    if all(each.name != name for each in known):
        refs = {f"run:{name}", name}
        for each in known:
            if each.finished and any(model["ref"].partition("@")[0] in refs for model in each.result()["models"]):
                return each
    return Evaluation.find(workspace, name)


def _marks(evaluation: Evaluation, result: Mapping[str, Any], workspace: Path) -> list[MarkSheet]:
    """The evaluation's own marks; else those that the distilled student's run made last."""
    stored = sorted(evaluation.marks_path.glob("*.safetensors"))
    if stored:
        return [read_marks(path) for path in stored]
    runs = [model["ref"] for model in result["models"] if model["role"] == "distilled"]
    try:
        return [worst_marks(ref, workspace, NUM_MARKED) for ref in runs if ref.startswith("run:")]
    except UsageError:  # the run made none, or is gone: the page is whole without
        return []


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
        long_characters=LONG_CHARACTERS,
        result=result,
        question=QUESTIONS[result["kind"]],
        headline=DECISIONS.get(decision, decision.capitalize()) if decision else f"{len(models)} models compared",
        models=models,
        rows=rows,
        sets=[(identity, label(name, result["comparisons"]), rows.size(*name)) for name, identity in rows.ids.items()],
        filters=_filters(rows, [model["alias"] for model in models]),
        marked=marked,
        marked_keys={sheet.key: number for number, sheet in reversed(list(enumerate(marked, start=1)))},
        row_numbers={row.key: row.number for row in rows.rows},
        style=Markup(style),  # ours, and made from numbers
        script=Markup(script),
        policy=policy(style, script),
        data=_data(result, rows, marked),
    )


@cache
def environment() -> Environment:
    """The templates and their filters, for every page that Limbeck makes."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "show": show,
        "points": points,
        "share": share,
        "short": short,
        "plain": plain,
        "word": word,
        "path": path,
    }
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


def plain(text: object) -> str:
    """The same for a place that takes no elements: a title or a label."""
    return "".join(piece for piece, _ in visible(str(text)))


def word(token: str) -> Markup:
    """A token as it stands in running text: the space before a word belongs to the text around it."""
    return show(token.removeprefix(LEADING_SPACE) or token)


def path(text: str) -> Markup:
    """A path or reference that may break into lines at its joints."""
    return Markup("<wbr>").join(show(part) for part in re.split(r"(?<=[/:])", text))


def is_finite(value: float | str) -> TypeGuard[float]:
    """False for what is not a number or infinite, which JSON holds as a text."""
    return not isinstance(value, str) and math.isfinite(value)


def points(value: float | str) -> str:
    """A difference of shares in points, with its sign."""
    if not is_finite(value):
        return str(value)
    rounded = round(100 * value)
    return f"{rounded:+d}".replace("-", "−") if rounded else "0"


def share(value: float | str) -> str:
    """A share in per cent; what is neither none nor all does not become it by rounding."""
    if not is_finite(value):
        return str(value)
    if 0 < value < 0.005:
        return "<1%"
    if 0.995 < value < 1:
        return ">99%"
    return f"{100 * value:.0f}%".replace("-", "−")


def short(value: float | str) -> str:
    """A number in three digits or so, thousands apart."""
    if not is_finite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _filters(rows: Rows, aliases: Sequence[str]) -> list[tuple[str, str, int]]:
    """The sets that the bar above the rows offers: id, label and size, only those with rows."""
    offered: list[tuple[str, tuple[object, ...]]] = [("Only where they differ", ("differ",))]
    offered += [(f"Lost to {alias}", ("lost", alias)) for alias in aliases]
    offered += [("Both bad", ("both_bad",)), ("Cut off", ("cut_off",)), ("Empty", ("empty",)), ("Failed", ("failed",))]
    offered += [("Not graded", ("not_graded",))]
    return [(rows.ids[name], label, rows.size(*name)) for label, name in offered if name in rows.ids]


def _data(result: Mapping[str, Any], rows: Rows, marked: Sequence[Sheet]) -> Markup:
    """Everything on the page as JSON that cannot end its element, and is ASCII."""
    data = {"result": result, "rows": [_row(row) for row in rows.rows], "marks": [asdict(sheet) for sheet in marked]}
    plain_data = json.loads(event_line(data))  # numbers that are not finite are texts
    text = json.dumps(plain_data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # holds no character that means something to HTML


def _row(row: Row) -> dict[str, Any]:
    left_out = ("key", "source", "messages", "labels", "ids", "prompt", "reference")
    answers = {
        alias: [{name: value for name, value in sample.items() if name not in left_out} for sample in samples]
        for alias, samples in row.answers.items()
    }
    common = {"row": row.number, "key": row.key, "source": row.source, "labels": row.labels}
    return {**common, "messages": row.messages, "reference": row.reference, "answers": answers}
