"""What `limbeck demo` says before and after."""

from __future__ import annotations

from limbeck.console import Printer
from limbeck.embedded.story import DemoResult, examples_to_show
from limbeck.reporting.evaluation import show_evaluation

__all__ = ["introduce_demo", "show_demo"]


def introduce_demo(printer: Printer) -> None:
    printer.say("A customer writes to a billing desk; a model answers with one line of JSON.")
    printer.say(
        "Two tiny models ship with Limbeck: a teacher that does this well and a student that often gets it wrong. "
        "First both answer messages that nobody trains on: is there anything to distil? Then, on-policy, the student "
        "practises on other messages without answers, and the teacher judges every token it writes. Then the first "
        "messages again: did it work?"
    )


def show_demo(printer: Printer, result: DemoResult) -> None:
    """Both verdicts, three answers side by side, and where everything lies."""
    printer.rule("Is it worth it?")
    printer.say(result.worth.result()["verdict"]["words"][0], style="bold")
    show_evaluation(printer, result.after.result(), str(result.after.path))
    printer.rule("Three of them, side by side")
    for rows in examples_to_show(result.after):
        printer.say(rows["student"]["messages"][-1]["content"], style="bold")
        for alias, row in rows.items():
            printer.say(f"  {alias:<9} {'right' if row['grade'] == 1 else 'wrong'}  {row['answer']}")
    printer.rule()
    printer.say(f"It took {result.seconds:.0f} s. The run lies in {result.run}")
    printer.say(f"Look at it:    limbeck show {result.run}")
    printer.say(f"Talk to it:    limbeck chat {result.run / 'model'}")
