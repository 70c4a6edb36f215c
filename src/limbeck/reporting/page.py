"""An evaluation as one static HTML page: a single file that loads nothing and is complete without its script.

All text is escaped by jinja, and invisible characters are shown as escapes. The page's policy forbids every source
except its own style and script, which it identifies by their hashes.
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
from limbeck.errors import Stopped, UsageError
from limbeck.reporting.figures import FEW, count_text
from limbeck.reporting.marked import LEADING_SPACE, Sheet, sheets
from limbeck.reporting.messages import page as texts
from limbeck.reporting.messages.labels import DECISIONS, FILTERS, PAGE, QUESTIONS
from limbeck.reporting.rows import AnswerRow, Rows, collect, label
from limbeck.runs.evaluations import Evaluation, list_evaluations
from limbeck.runs.lines import event_line, write_text
from limbeck.runs.marks import MarkSheet, read_marks, worst_marks

__all__ = ["environment", "page", "visible_text", "write_page"]

TEMPLATES = Path(__file__).parent / "templates"
ORDER = ("student", "distilled", "teacher", "model")
LONG_CHARACTERS = 1200
NUM_MARKED = 5


def write_page(name: str, workspace: Path, output: Path | None = None) -> Path:
    """Write the page of an evaluation, by default to NAME.html here; for a run, that of its newest evaluation.

    Raises:
        UsageError: there is no such evaluation, it has no result yet, or `output` cannot be a page.
    """
    evaluation = _find(name, workspace)
    output = Path(f"{evaluation.name}.html") if output is None else output
    if output.suffix.lower() not in (".html", ".htm") or not output.parent.is_dir():
        raise texts.not_html(output=str(output), name=evaluation.name)
    result = evaluation.result()
    answers = {model["alias"]: evaluation.read_answers(model["alias"]) for model in result["models"]}
    workspace = evaluation.path.parents[1] if evaluation.path.parent.name == "evaluations" else workspace
    missing = [alias for alias, rows in answers.items() if not rows]
    if missing:
        text = texts.answers_missing(models=missing, folder=str(evaluation.path))
        result = {**result, "notes": [*result["notes"], text]}
    try:
        write_text(output, page(result, answers, _marks(evaluation, result, workspace)))
    except Stopped as error:  # its text is about runs that can be resumed
        raise texts.not_written(reason=error.given) from error
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
    """The evaluation's own marks; without any, the newest marks of the distilled student's run."""
    stored = sorted(evaluation.marks_path.glob("*.safetensors"))
    if stored:
        return [read_marks(path) for path in stored]
    runs = [model["ref"] for model in result["models"] if model["role"] == "distilled"]
    try:
        return [worst_marks(ref, workspace, NUM_MARKED) for ref in runs if ref.startswith("run:")]
    except UsageError:  # the run has no marks or no longer exists: the page is complete without them
        return []


def page(
    result: Mapping[str, Any],
    answers: Mapping[str, Sequence[Mapping[str, Any]]],
    marks: Sequence[MarkSheet] = (),
) -> str:
    """The whole HTML of an evaluation.

    Args:
        result: the content of `result.json`.
        answers: the records of each model's answers, by alias.
        marks: files of marks, in the order in which they are shown.
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
        headline=DECISIONS.get(decision, decision.capitalize()) if decision else texts.models_compared(num=len(models)),
        models=models,
        rows=rows,
        sets=[(identity, label(name, result["comparisons"]), rows.size(*name)) for name, identity in rows.ids.items()],
        filters=_filters(rows, [model["alias"] for model in models]),
        marked=marked,
        marked_keys={sheet.key: number for number, sheet in reversed(list(enumerate(marked, start=1)))},
        row_numbers={row.key: row.number for row in rows.rows},
        style=Markup(style),  # our own, with numbers filled in
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
    for name, value in {"labels": PAGE, "texts": texts, "few": FEW}.items():
        made.globals[name] = value  # type: ignore[assignment]
    made.filters |= {
        "show": visible_text,
        "points": points_text,
        "share": percent_text,
        "share_of": share_of,
        "short": short,
        "plain": plain,
        "word": word,
        "path": path,
    }
    return made


def policy(style: str, script: str) -> str:
    """The content security policy of the page: it allows this style and this script only."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def visible_text(text: object) -> Markup:
    """Escaped text, with invisible characters as visible escapes."""
    parts = (
        Markup('<span class="unseen">{}</span>').format(piece) if unseen else escape(piece)
        for piece, unseen in visible(str(text))
    )
    return Markup("").join(parts)


def plain(text: object) -> str:
    """The same without elements, for a title or an attribute."""
    return "".join(piece for piece, _ in visible(str(text)))


def word(token: str) -> Markup:
    """A token in running text, without the space before a word, which belongs to the text around it."""
    return visible_text(token.removeprefix(LEADING_SPACE) or token)


def path(text: str) -> Markup:
    """A path or reference that may break after its separators."""
    return Markup("<wbr>").join(visible_text(part) for part in re.split(r"(?<=[/:])", text))


def is_finite(value: float | str) -> TypeGuard[float]:
    """False for NaN and infinity, which JSON holds as texts."""
    return not isinstance(value, str) and math.isfinite(value)


def points_text(value: float | str) -> str:
    """A difference of shares in points, with its sign."""
    if not is_finite(value):
        return str(value)
    rounded = round(100 * value)
    return f"{rounded:+d}".replace("-", "−") if rounded else "0"


def percent_text(value: float | str) -> str:
    """A share in percent; only 0 is rounded to 0% and only 1 to 100%."""
    if not is_finite(value):
        return str(value)
    if 0 < value < 0.005:
        return "<1%"
    if 0.995 < value < 1:
        return ">99%"
    return f"{100 * value:.0f}%".replace("-", "−")


def share_of(interval: Mapping[str, Any]) -> str:
    """A share in percent, of fewer than 10 prompts a count."""
    return count_text(interval["estimate"], interval["n"]) or percent_text(interval["estimate"])


def short(value: float | str) -> str:
    """A number with three digits or more, and with thousands separators."""
    if not is_finite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _filters(rows: Rows, aliases: Sequence[str]) -> list[tuple[str, str, int]]:
    """The filters above the rows: id, label and size of each set that has rows."""
    offered: list[tuple[str, tuple[object, ...]]] = [(FILTERS["differ"], ("differ",))]
    offered += [(texts.lost_to(model=alias), ("lost", alias)) for alias in aliases]
    offered += [(label, (name,)) for name, label in FILTERS.items() if name != "differ"]
    return [(rows.ids[name], label, rows.size(*name)) for label, name in offered if name in rows.ids]


def _data(result: Mapping[str, Any], rows: Rows, marked: Sequence[Sheet]) -> Markup:
    """The content of the page as JSON, in ASCII and without characters that could end its element."""
    data = {"result": result, "rows": [_row(row) for row in rows.rows], "marks": [asdict(sheet) for sheet in marked]}
    plain_data = json.loads(event_line(data))  # NaN and infinity become texts
    text = json.dumps(plain_data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # without characters that are special in HTML


def _row(row: AnswerRow) -> dict[str, Any]:
    left_out = ("key", "source", "messages", "labels", "ids", "prompt", "reference")
    answers = {
        alias: [{name: value for name, value in sample.items() if name not in left_out} for sample in samples]
        for alias, samples in row.answers.items()
    }
    common = {"row": row.number, "key": row.key, "source": row.source, "labels": row.labels}
    return {**common, "messages": row.messages, "reference": row.reference, "answers": answers}
