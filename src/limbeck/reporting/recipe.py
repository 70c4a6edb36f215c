"""What `limbeck recipe explain` shows."""

from __future__ import annotations

import re
import textwrap

from limbeck.console import PLAIN_WIDTH, Printer
from limbeck.recipe.explain import explain, setting_names

__all__ = ["show_explanation"]


def show_explanation(printer: Printer, setting: str) -> None:
    """One setting in full, or the first sentence of each; wrapped at the terminal's width, in a pipe at 80 columns."""
    if not setting:
        indent = max(map(len, setting_names())) + 2
        for name in setting_names():
            meaning = re.split(r"(?<!et al)\.(?: |$)", explain(name).meaning, maxsplit=1)[0]
            _say_wrapped(printer, meaning, label=name.ljust(indent), indent=indent)
        return
    explanation = explain(setting)
    printer.say(setting, style="bold")
    _say_wrapped(printer, explanation.meaning)
    _say_wrapped(printer, ", ".join(explanation.routes), label="Routes: ")
    if explanation.objective is not None:
        _say_wrapped(printer, explanation.objective, label="Objective: ")
    _say_wrapped(printer, explanation.needs, label="Accepts: ")
    _say_wrapped(printer, explanation.how_to_choose, label="How to choose: ")
    _say_wrapped(printer, explanation.default_and_why, label="Default: ")


def _say_wrapped(printer: Printer, text: str, *, label: str = "", indent: int = 0) -> None:
    width = printer.out.width if printer.out.is_terminal else PLAIN_WIDTH
    lines = textwrap.wrap(
        text,
        max(width, indent + 20),
        initial_indent=label,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        printer.say(line)
