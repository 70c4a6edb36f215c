"""Show two runs side by side: what differs in their recipes, and the first step at which their numbers do.

    python scripts/compare_runs.py RUN RUN

Each RUN is a run's folder. Loss, gradient norm and both held-out measures stand beside each other, step by step; `=`
means the same bit for bit, else the relative difference is given. Exit code 0 if all recorded numbers and the final
weights are the same, 1 if not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limbeck.runs.store import Run, current_events

# What two runs of one recipe differ in anyway.
OWN = {"name", "workspace"}
SHOWN = {"step": ("loss", "grad_norm"), "evaluation": ("teacher_text_loss", "student_text_loss")}
EXACT = ("learning_rate", "num_completion_tokens", "mean_length", "max_length", "own_answers_loss")


def compare(first: Run, second: Run) -> tuple[list[str], bool]:
    """The lines to show, and whether the two runs are the same."""
    sides = [current_events(run.read_events()) for run in (first, second)]
    settings = [_settings(events) for events in sides]
    changed = [
        f"{name}: {settings[0].get(name)} | {settings[1].get(name)}"
        for name in sorted(settings[0].keys() | settings[1].keys())
        if name not in OWN and settings[0].get(name) != settings[1].get(name)
    ]
    numbers = [_numbers(events) for events in sides]
    where = sorted(numbers[0].keys() | numbers[1].keys(), key=lambda key: (key[0], key[1] != "step"))
    differing = [key for key in where if numbers[0].get(key) != numbers[1].get(key)]
    lines = list(changed)
    for key in where:
        lines += _compared(key, numbers[0].get(key, {}), numbers[1].get(key, {}))
    weights = [next((event["weights"] for event in events if event["kind"] == "done"), None) for events in sides]
    told = "no difference in any step" if not differing else f"the first difference is at step {differing[0][0]}"
    same_weights = weights[0] == weights[1]
    lines += [f"weights: {'=' if same_weights else f'{weights[0]} | {weights[1]}'}", told]
    return lines, not changed and not differing and same_weights


def _settings(events: list[dict[str, Any]]) -> dict[str, object]:
    return next((event["settings"] for event in events if event["kind"] == "start"), {})


def _numbers(events: list[dict[str, Any]]) -> dict[tuple[int, str], dict[str, Any]]:
    """By step and kind of event, what must be the same in two runs that are."""
    return {
        (event["step"], event["kind"]): {name: event.get(name) for name in (*SHOWN[event["kind"]], *EXACT)}
        for event in events
        if event["kind"] in SHOWN
    }


def _compared(key: tuple[int, str], first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    for name in (*SHOWN[key[1]], *EXACT):
        mine, its = first.get(name), second.get(name)
        if name in SHOWN[key[1]] or mine != its:
            yield f"step {key[0]:>4} {name:<18} {mine!s:>22} {its!s:>22}  {_difference(mine, its)}"


def _difference(mine: object, its: object) -> str:
    if mine == its:
        return "="
    if isinstance(mine, float | int) and isinstance(its, float | int):
        return f"{abs(mine - its) / max(abs(mine), abs(its)):.1e}"
    return "on one side alone"


def main(arguments: list[str]) -> int:
    """Show the comparison; the exit code."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    lines, same = compare(*(Run.open(Path(argument)) for argument in arguments))
    print("\n".join(lines))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
