"""What `limbeck recipe explain` shows."""

from __future__ import annotations

from limbeck.console import Printer
from limbeck.recipe.explain import explain, setting_names

__all__ = ["show_explanation"]


def show_explanation(printer: Printer, setting: str) -> None:
    """One setting in full, or all of them in a line each."""
    if not setting:
        printer.table([{"setting": name, "meaning": explain(name).meaning} for name in setting_names()])
        return
    explanation = explain(setting)
    printer.say(setting, style="bold")
    printer.say(explanation.meaning)
    printer.say(f"Routes: {', '.join(explanation.routes)}")
    if explanation.objective is not None:
        printer.say(f"Objective: {explanation.objective}")
    printer.say(f"Needs: {explanation.needs}")
    printer.say(f"How to choose: {explanation.how_to_choose}")
    printer.say(f"Default and why: {explanation.default_and_why}")
