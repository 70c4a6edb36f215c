"""Results of functions that load models: the check of a recipe and the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from limbeck.embedded.story import DemoResult
from limbeck.planning.check import CheckReport
from limbeck.reporting.cells import table_cell
from limbeck.reporting.check import check_as_json, size_text
from limbeck.results import Evaluation, Run

__all__ = ["Check", "Demo", "as_check", "as_demo"]


@dataclass(frozen=True)
class Check(CheckReport):
    """The check of a recipe: prompts as the student's tokens, models and memory; with loaded weights also the objective
    check."""

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON values, with sizes in bytes."""
        return check_as_json(self)

    def _repr_html_(self) -> str:
        shown, memory = self.to_dict(), self.memory
        prompts = shown["prompts"]
        verdict = "which fits" if memory.fits else "which DOES NOT FIT"
        sentences = [
            f"Objective: {self.objective}",
            f"{prompts['train']} prompts train and {prompts['held_out']} are held out; the longest has "
            f"{prompts['longest']} tokens.",
            f"The {memory.peak_phase} phase takes most memory, about {size_text(memory.peak_bytes)} of "
            f"{size_text(memory.free_bytes)}, {verdict}.",
            *map(str, self.material.notes),
        ]
        sizes = [{"component": name, "size": size_text(size)} for name, size in memory.components.items()]
        findings = [
            {"check": each.name, "measured": each.value, "must be": each.limit, "passed": each.passed}
            for each in self.findings
        ]
        return table_cell("Check", sentences, prompts["first"], sizes, findings)


@dataclass(frozen=True)
class Demo:
    """The demo's run and its evaluations before and after training."""

    worth: Evaluation
    after: Evaluation
    run: Run
    seconds: float

    def _repr_html_(self) -> str:
        return self.worth._repr_html_() + self.after._repr_html_()


def as_check(report: CheckReport) -> Check:
    """The report as the public functions return it."""
    return Check(**vars(report))


def as_demo(done: DemoResult) -> Demo:
    """The demo's result as the public functions return it."""
    return Demo(Evaluation(done.worth.path), Evaluation(done.after.path), Run(done.run.path), done.seconds)
