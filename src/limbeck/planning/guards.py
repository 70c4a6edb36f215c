"""Guards during a run: signs in the last steps that something is wrong, each with its reason and its smallest fix.

A guard raises one alert when its sign appears, and another only after the sign had disappeared. The thresholds are
rules of thumb; each alert contains what was measured, so that users can judge for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limbeck.errors import Note
from limbeck.planning import messages
from limbeck.recipe.recipe import Recipe
from limbeck.training.state import StepRecord

__all__ = ["Alert", "alerts_of", "few_prompts_note"]

# With fewer prompts, a teacher's answers rarely change the style of a model.
VERY_FEW_PROMPTS, FEW_PROMPTS = 100, 300

NUM_STEPS = 5
CUT_OFF_SHARE = 0.9
EMPTY_SHARE = 0.3
REPETITIVE_SHARE = 0.05
ENTROPY_SHARE_OF_START = 0.5
ENGINE_GAP_NATS = 1e-2
LENGTH_FACTOR = 3.0


@dataclass(frozen=True)
class Alert:
    """The message of a guard, with a stable code."""

    code: str
    text: str


@dataclass(frozen=True)
class _Guard:
    code: str
    steady: bool  # whether it is about lengths, which are comparable only while the practice limit stays the same
    holds: Callable[[StepRecord, StepRecord], bool]
    text: Callable[[StepRecord, StepRecord], Note]


_GUARDS = (
    _Guard(
        "guard.cut-off",
        True,
        lambda now, first: now.cut_off_share >= CUT_OFF_SHARE,
        lambda now, first: messages.answers_truncated(share=now.cut_off_share, limit=now.practice_limit or 0),
    ),
    _Guard(
        "guard.empty",
        False,
        lambda now, first: now.empty_share >= EMPTY_SHARE,
        lambda now, first: messages.answers_empty(share=now.empty_share),
    ),
    _Guard(
        "guard.repetition",
        False,
        lambda now, first: now.repetitive_share > REPETITIVE_SHARE,
        lambda now, first: messages.answers_repetitive(share=now.repetitive_share),
    ),
    _Guard(
        "guard.entropy",
        False,
        lambda now, first: (
            now.student_entropy < ENTROPY_SHARE_OF_START * min(first.student_entropy, now.teacher_entropy or 0.0)
        ),
        lambda now, first: messages.entropy_fell(
            first=first.student_entropy, now=now.student_entropy, teacher=now.teacher_entropy or 0.0
        ),
    ),
    _Guard(
        "guard.length",
        True,
        lambda now, first: now.mean_length > LENGTH_FACTOR * first.mean_length,
        lambda now, first: messages.answers_grew(first=first.mean_length, now=now.mean_length),
    ),
    _Guard(
        "guard.engine",
        False,
        lambda now, first: (now.engine_gap or 0.0) > ENGINE_GAP_NATS,
        lambda now, first: messages.engine_differs(gap=now.engine_gap or 0.0),
    ),
)


def alerts_of(history: Sequence[StepRecord]) -> list[Alert]:
    """The alerts after the newest step, of guards whose sign holds in each of the last steps and did not before.

    Args:
        history: every step so far, oldest first.
    """
    practised = [record for record in history if record.practice_limit is not None]
    if not practised or practised[-1] is not history[-1]:
        return []  # all signs are about practice answers
    same_limit = [record for record in practised if record.practice_limit == practised[-1].practice_limit]
    return [
        Alert(guard.code, guard.text(seen[-1], seen[0]))
        for guard in _GUARDS
        if _begins(guard, seen := same_limit if guard.steady else practised)
    ]


def _begins(guard: _Guard, history: Sequence[StepRecord]) -> bool:
    """Whether the sign holds in each of the last steps and not in the one before them."""
    if len(history) < NUM_STEPS:
        return False
    first, recent = history[0], history[-NUM_STEPS:]
    already = len(history) > NUM_STEPS and guard.holds(history[-NUM_STEPS - 1], first)
    return all(guard.holds(record, first) for record in recent) and not already


def few_prompts_note(recipe: Recipe, num_prompts: int) -> str:
    """A note before an off-policy run with few prompts; empty otherwise."""
    if recipe.route != "off-policy" or num_prompts >= FEW_PROMPTS:
        return ""
    if num_prompts >= VERY_FEW_PROMPTS:
        return messages.few_prompts(num=num_prompts, enough=FEW_PROMPTS)
    return messages.very_few_prompts(num=num_prompts, enough=VERY_FEW_PROMPTS)
