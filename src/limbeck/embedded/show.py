"""The terminal view of `limbeck demo`: an introduction, and the result."""

from __future__ import annotations

from typing import Protocol

from limbeck.console import Printer
from limbeck.embedded import messages
from limbeck.embedded.messages import LABELS
from limbeck.embedded.story import examples_to_show
from limbeck.reporting.evaluation import show_evaluation
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.store import Run

__all__ = ["introduce_demo", "show_demo"]


class FinishedDemo(Protocol):
    """The demo's result, of the demo itself or of the package's function."""

    @property
    def worth(self) -> Evaluation: ...
    @property
    def after(self) -> Evaluation: ...
    @property
    def run(self) -> Run: ...
    @property
    def seconds(self) -> float: ...


def introduce_demo(printer: Printer) -> None:
    """What the demo is about to do."""
    printer.say(messages.demo_task(), style="bold")
    printer.say(messages.demo_about())
    printer.say(messages.demo_steps())


def show_demo(printer: Printer, result: FinishedDemo) -> None:
    """Both verdicts, three prompts with the answers of each model, and the folder of the run."""
    printer.rule(LABELS["baseline"])
    printer.say(result.worth.result()["verdict"]["words"][0], style="bold")
    show_evaluation(printer, result.after.result(), str(result.after.path))
    printer.rule(LABELS["examples"])
    for rows in examples_to_show(result.after):
        printer.say(rows["student"]["messages"][-1]["content"], style="bold")
        printer.table(
            [
                {
                    LABELS["model"]: alias,
                    LABELS["grade"]: LABELS["right" if row["grade"] == 1 else "wrong"],
                    LABELS["answer"]: row["answer"],
                }
                for alias, row in rows.items()
            ]
        )
    path = result.run.path
    printer.rule(LABELS["next"])
    printer.say(messages.demo_done(seconds=round(result.seconds), run=str(path)))
    for text, command in (
        (messages.demo_show(), f"limbeck show {path}"),
        (messages.demo_chat(), f"limbeck chat {path / 'model'}"),
    ):
        printer.say(text)
        printer.say_whole(f"  {command}", style="bold")
