"""What `limbeck mark` shows: answers as text with their worst tokens marked, and what the teacher would have said."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from limbeck.console import Printer

if TYPE_CHECKING:  # looking at runs must not wait for numpy or torch
    from limbeck.runs.marks import Continuation, Mark, MarkedAnswer, MarkSheet

__all__ = ["marks_as_json", "show_marks"]

# Brackets, so that marks are there without colour too, and style.
PENS = {"serious": ("«", "»", "bold red"), "mild": ("‹", "›", "yellow"), "unsure": ("(", ")", "dim underline")}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
NUM_SHOWN_CHARACTERS = 14


def show_marks(printer: Printer, sheet: MarkSheet, beta: float) -> None:
    """Each answer with its marks, then a note on each mark; at the end the teacher's own ending, if there is one."""
    for answer in sheet.answers:
        marks = answer.marks(beta)
        printer.rule(_title(sheet, answer))
        printer.say(_question(answer), style="dim")
        printer.say("")
        printer.say_parts(_running_text(answer, marks))
        printer.say("")
        if marks:
            printer.table([_note(number, mark, answer) for number, mark in enumerate(marks, 1)])
        share = f"{len(marks)} of {len(answer)} tokens are marked."
        printer.say(share if marks else f"{share} Student and teacher agree wherever the answer goes.")
        if sheet.continued is not None:
            _show_ending(printer, answer, sheet.continued)
    printer.rule()
    printer.say(f"{sheet.teacher} marks {sheet.student}.")
    printer.say("«x» mistake: the teacher is sure of another token. ‹x› it says x, or nearly.")
    printer.say("(x) the teacher is unsure itself: no real mistake.")
    printer.say("student, teacher: the probability that each gives to what is written.")
    printer.say(f"nats: the divergence of the two there, at beta {beta:g}, unit scale.")


def marks_as_json(sheet: MarkSheet, beta: float) -> list[dict[str, object]]:
    """One object for each answer."""
    rest = sheet.continued
    return [
        {
            **{name: getattr(sheet, name) for name in ("student", "teacher", "step")},
            "beta": beta,
            **{name: getattr(answer, name) for name in ("key", "source", "prompt", "cut_off")},
            "answer": answer.text(),
            "num_tokens": len(answer),
            "mean_nats": sum(answer.nats(beta)) / len(answer),
            "marks": [_fields(mark, answer) for mark in answer.marks(beta)],
            "continued": None
            if rest is None
            else {"position": rest.position, "text": rest.text, "cut_off": rest.cut_off},
        }
        for answer in sheet.answers
    ]


def _fields(mark: Mark, answer: MarkedAnswer) -> dict[str, object]:
    position, best = mark.position, answer.candidates(mark.position)[0]
    return {
        **mark._asdict(),
        "token": answer.piece(position).shown,
        "student_probability": math.exp(answer.student_logp[position]),
        "teacher_probability": math.exp(answer.teacher_logp[position]),
        "teacher_rank": int(answer.teacher_rank[position]),
        "teacher_token": best.piece.shown,
        "teacher_token_probability": math.exp(best.teacher_logp),
        "student_entropy": float(answer.student_entropy[position]),
        "teacher_entropy": float(answer.teacher_entropy[position]),
    }


def _title(sheet: MarkSheet, answer: MarkedAnswer) -> str:
    return answer.source + ("" if sheet.step is None else f", step {sheet.step}")


def _question(answer: MarkedAnswer) -> str:
    return answer.messages[-1]["content"] if answer.messages else answer.prompt


def _running_text(answer: MarkedAnswer, marks: list[Mark]) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    start = 0
    for number, mark in enumerate(marks, 1):
        left, right, style = PENS[mark.kind]
        parts.append((answer.shown(start, mark.position), ""))
        parts.append((f"{left}{answer.piece(mark.position).shown}{right}{str(number).translate(RAISED)}", style))
        start = mark.position + 1
    return [*parts, (answer.shown(start), ""), (" [cut off]" if answer.cut_off else "", "dim")]


def _note(number: int, mark: Mark, answer: MarkedAnswer) -> dict[str, object]:
    position, best = mark.position, answer.candidates(mark.position)[0]
    if mark.kind == "serious":
        what = "turning point" if mark.turning_point else "mistake"
    elif mark.kind == "unsure":
        what = "teacher unsure"
    else:
        what = "less likely" if answer.teacher_rank[position] else "right, but unsure"
    return {
        "": number,
        "at": position,
        "written": _short(answer.piece(position).shown),
        "student": _percent(answer.student_logp[position]),
        "teacher": _percent(answer.teacher_logp[position]),
        "teacher says": f"{_short(best.piece.shown)} {_percent(best.teacher_logp)}",
        "nats": f"{mark.nats:.2f}",
        "what": what,
    }


def _short(text: str) -> str:
    return text if len(text) <= NUM_SHOWN_CHARACTERS else text[: NUM_SHOWN_CHARACTERS - 1] + "…"


def _percent(logp: float) -> str:
    """A probability for people, which is never rounded to impossible or certain."""
    probability = math.exp(logp)
    return "<1%" if probability < 0.005 else ">99%" if probability > 0.995 else f"{probability:.0%}"


def _show_ending(printer: Printer, answer: MarkedAnswer, rest: Continuation) -> None:
    printer.rule(f"From position {rest.position}")
    theirs = rest.text + (" [cut off]" if rest.cut_off else "")
    printer.table([{"as written": answer.text(rest.position), "the teacher goes on": theirs}])
