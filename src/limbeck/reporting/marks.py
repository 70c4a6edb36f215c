"""The terminal view of `limbeck mark`: answers with their worst tokens marked, and the teacher's choice there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from limbeck.console import Printer
from limbeck.reporting.messages import terminal
from limbeck.reporting.messages.labels import MARKS

if TYPE_CHECKING:  # views of stored runs do not import numpy or torch
    from limbeck.runs.marks import Continuation, Mark, MarkedAnswer, MarkSheet

__all__ = ["marks_as_json", "show_marks"]

# Brackets, which show a mark without colour too, and the style.
PENS = {"serious": ("«", "»", "bold red"), "mild": ("‹", "›", "yellow"), "unsure": ("(", ")", "dim underline")}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def show_marks(printer: Printer, sheet: MarkSheet, beta: float) -> None:
    """Each answer with its marks and a table of them; the teacher's own ending, if there is one; a legend."""
    for answer in sheet.answers:
        marks = answer.marks(beta)
        printer.rule(_title(sheet, answer))
        printer.say(_prompt(answer), style="dim")
        printer.say("")
        printer.say_parts(_running_text(answer, marks))
        printer.say("")
        if marks:
            printer.table([_mark_row(number, mark, answer) for number, mark in enumerate(marks, 1)])
        printer.say(terminal.marks_num(num=len(marks), tokens=len(answer)))
        if not marks:
            printer.say(terminal.marks_agree())
        if sheet.continued is not None:
            _show_ending(printer, answer, sheet.continued)
    printer.rule()
    printer.say_whole(terminal.marks_scored(student=sheet.student, teacher=sheet.teacher))
    printer.say(terminal.marks_legend_mistake())
    printer.say(terminal.marks_legend_agrees())
    printer.say(terminal.marks_legend_uncertain())
    printer.say(terminal.marks_probabilities())
    printer.say(terminal.marks_beta(beta=f"{beta:g}"))


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
    return answer.source if sheet.step is None else terminal.marks_title(source=answer.source, step=sheet.step)


def _prompt(answer: MarkedAnswer) -> str:
    return answer.messages[-1]["content"] if answer.messages else answer.prompt


def _running_text(answer: MarkedAnswer, marks: list[Mark]) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    start = 0
    for number, mark in enumerate(marks, 1):
        left, right, style = PENS[mark.kind]
        parts.append((answer.shown(start, mark.position), ""))
        parts.append((f"{left}{answer.piece(mark.position).shown}{right}{str(number).translate(RAISED)}", style))
        start = mark.position + 1
    return [*parts, (answer.shown(start), ""), (MARKS["truncated"] if answer.cut_off else "", "dim")]


def _mark_row(number: int, mark: Mark, answer: MarkedAnswer) -> dict[str, object]:
    position, best = mark.position, answer.candidates(mark.position)[0]
    if mark.kind == "serious":
        kind = "first_mistake" if mark.turning_point else "mistake"
    elif mark.kind == "unsure":
        kind = "uncertain"
    else:
        kind = "less_likely" if answer.teacher_rank[position] else "agrees"
    return {
        "": number,
        MARKS["position"]: position,
        MARKS["token"]: answer.piece(position).shown,
        MARKS["student"]: _percent(answer.student_logp[position]),
        MARKS["teacher"]: _percent(answer.teacher_logp[position]),
        MARKS["choice"]: f"{best.piece.shown} {_percent(best.teacher_logp)}",
        MARKS["nats"]: f"{mark.nats:.2f}",
        MARKS["kind"]: MARKS[kind],
    }


def _percent(logp: float) -> str:
    """A probability in percent, never rounded to 0% or 100%."""
    probability = math.exp(logp)
    return "<1%" if probability < 0.005 else ">99%" if probability > 0.995 else f"{probability:.0%}"


def _show_ending(printer: Printer, answer: MarkedAnswer, rest: Continuation) -> None:
    printer.rule(terminal.marks_continued(position=rest.position))
    theirs = rest.text + (MARKS["truncated"] if rest.cut_off else "")
    printer.table([{MARKS["student_ending"]: answer.text(rest.position), MARKS["teacher_ending"]: theirs}])
