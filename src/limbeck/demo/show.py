"""What `limbeck demo` says before and after."""

from __future__ import annotations

from limbeck.console import Printer
from limbeck.demo.story import DemoResult, Model, examples_to_show

__all__ = ["introduce_demo", "show_demo"]


def introduce_demo(printer: Printer) -> None:
    printer.say("A customer writes to a billing desk; a model answers with one line of JSON.")
    printer.say(
        "Two tiny models ship with Limbeck: a teacher that does this well and a student that often gets it wrong. "
        "On-policy, the student practises on messages without answers, and the teacher judges every token it writes."
    )


def show_demo(printer: Printer, result: DemoResult) -> None:
    """The three models on the same held-out prompts, three answers side by side, and where the run lies."""
    printer.rule(f"Exactly right on {len(result.prompts)} held-out messages")
    printer.table(
        [
            _row(name, model)
            for name, model in (
                ("student before", result.student),
                ("student distilled", result.distilled),
                ("teacher", result.teacher),
            )
        ]
    )
    if result.gap_recovered is None:
        printer.say("Teacher and student are too close to say which share of the gap was recovered.")
    else:
        gap = result.gap_recovered
        printer.say(
            f"The student recovered {gap.estimate:.0%} of the gap to its teacher "
            f"({gap.low:.0%} to {gap.high:.0%}, n = {gap.n}).",
            style="bold",
        )
    printer.rule("Three of them, side by side")
    for row in examples_to_show(result):
        printer.say(result.prompts[row], style="bold")
        for name, model in (
            ("before", result.student),
            ("distilled", result.distilled),
            ("teacher", result.teacher),
        ):
            printer.say(f"  {name:<9} {'right' if model.right[row] else 'wrong'}  {model.answers[row]}")
    printer.rule()
    printer.say(f"It took {result.seconds:.0f} s. The run lies in {result.run}")
    printer.say(f"Look at it:    limbeck show {result.run}")
    printer.say(f"Talk to it:    limbeck chat {result.run / 'model'}")


def _row(name: str, model: Model) -> dict[str, object]:
    exact = model.exact
    return {
        "": name,
        "exactly right": f"{exact.estimate:.1%}",
        "95 % interval": f"{exact.low:.1%} to {exact.high:.1%}",
        "n": exact.n,
    }
