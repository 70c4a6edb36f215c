"""The terminal view of `limbeck recipe explain`."""

from __future__ import annotations

import re
import textwrap

from limbeck.console import Printer
from limbeck.recipe.explain import explain, setting_names
from limbeck.reporting.messages.labels import EXPLAIN

__all__ = ["show_explanation"]

LEAST_TEXT_COLUMNS = 20


def show_explanation(printer: Printer, setting: str) -> None:
    """One setting in full, or the first sentence of each."""
    if not setting:
        names = setting_names()
        for name in names:
            meaning = re.split(r"(?<!et al)\.(?: |$)", explain(name).meaning, maxsplit=1)[0]
            _say_labelled(printer, meaning, name, max(map(len, names)) + 2)
        return
    explanation = explain(setting)
    printer.say(setting, style="bold")
    printer.say(explanation.meaning)
    printer.say(EXPLAIN["routes"] + ", ".join(explanation.routes))
    if explanation.objective is not None:
        printer.say(EXPLAIN["objective"] + explanation.objective)
    printer.say(EXPLAIN["accepts"] + explanation.needs)
    printer.say(EXPLAIN["choose"] + explanation.how_to_choose)
    printer.say(EXPLAIN["default"] + explanation.default_and_why)


def _say_labelled(printer: Printer, text: str, label: str, indent: int) -> None:
    """A text next to its label; below it where the window is too narrow for both."""
    if printer.out.width < indent + LEAST_TEXT_COLUMNS:
        printer.say(label, style="bold")
        label, indent = "", 2
    lines = textwrap.wrap(
        text,
        printer.out.width,
        initial_indent=label.ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        printer.say_whole(line)
