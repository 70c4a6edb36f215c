"""Guards during a run: signs in the last steps that it is going wrong, each with its why and its smallest fix.

A guard speaks once when its sign appears and again only after it had gone. The thresholds are rules of thumb; each
sentence says what was seen, so that a reader can disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limbeck.recipe.recipe import Recipe
from limbeck.training.state import StepRecord

__all__ = ["Alert", "alerts_of", "few_prompts_note"]

# Below these a teacher's texts seldom change how a model writes.
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
    """A guard's sentence, with a stable code."""

    code: str
    text: str


@dataclass(frozen=True)
class _Guard:
    code: str
    steady: bool  # whether it speaks of lengths, which mean something only while the practice limit stays the same
    holds: Callable[[StepRecord, StepRecord], bool]
    text: str


_GUARDS = (
    _Guard(
        "guard.cut-off",
        True,
        lambda now, first: now.cut_off_share >= CUT_OFF_SHARE,
        "{now.cut_off_share:.0%} of the answers reach the limit of {now.practice_limit} tokens, so "
        "the student hardly practises how to stop. Raise max_practice_tokens, or check that the stop tokens are "
        "those of the template (limbeck check shows them).",
    ),
    _Guard(
        "guard.empty",
        False,
        lambda now, first: now.empty_share >= EMPTY_SHARE,
        "{now.empty_share:.0%} of the answers are a stop token and nothing else. Look at the "
        "rendered prompts (limbeck check) and at the student's answers.",
    ),
    _Guard(
        "guard.repetition",
        False,
        lambda now, first: now.repetitive_share > REPETITIVE_SHARE,
        "{now.repetitive_share:.0%} of the answers go in circles at their end. Lower the learning "
        "rate or max_practice_tokens, or set objective: kl_mix.",
    ),
    _Guard(
        "guard.entropy",
        False,
        lambda now, first: (
            now.student_entropy < ENTROPY_SHARE_OF_START * min(first.student_entropy, now.teacher_entropy or 0.0)
        ),
        "The student's entropy fell from {first.student_entropy:.2f} to {now.student_entropy:.2f} "
        "nats per token, well below the teacher's {now.teacher_entropy:.2f}: it settles on few phrases. Lower the "
        "learning rate, or set objective: kl_mix.",
    ),
    _Guard(
        "guard.length",
        True,
        lambda now, first: now.mean_length > LENGTH_FACTOR * first.mean_length,
        "Answers grew from {first.mean_length:.0f} to {now.mean_length:.0f} tokens. Compare the "
        "stop tokens of student and teacher (limbeck check), or lower max_practice_tokens.",
    ),
    _Guard(
        "guard.engine",
        False,
        lambda now, first: (now.engine_gap or 0.0) > ENGINE_GAP_NATS,
        "Tokens had other log-probabilities when written than when trained, by up to "
        "{now.engine_gap:.2g} nats: the student that writes is not quite the one that trains.",
    ),
)


def alerts_of(history: Sequence[StepRecord]) -> list[Alert]:
    """What the guards say after the newest step: those whose sign holds in each of the last steps, for the first time.

    Args:
        history: every step so far, oldest first.
    """
    practised = [record for record in history if record.practice_limit is not None]
    if not practised or practised[-1] is not history[-1]:
        return []  # every sign is one of practice answers
    same_limit = [record for record in practised if record.practice_limit == practised[-1].practice_limit]
    return [
        Alert(guard.code, guard.text.format(now=seen[-1], first=seen[0]))
        for guard in _GUARDS
        if _begins(guard, seen := same_limit if guard.steady else practised)
    ]


def _begins(guard: _Guard, history: Sequence[StepRecord]) -> bool:
    """Whether the sign holds in each of the last steps and did not in the one before them."""
    if len(history) < NUM_STEPS:
        return False
    first, recent = history[0], history[-NUM_STEPS:]
    already = len(history) > NUM_STEPS and guard.holds(history[-NUM_STEPS - 1], first)
    return all(guard.holds(record, first) for record in recent) and not already


def few_prompts_note(recipe: Recipe, num_prompts: int) -> str:
    """What to say before an off-policy run on few prompts; nothing otherwise."""
    if recipe.route != "off-policy" or num_prompts >= FEW_PROMPTS:
        return ""
    if num_prompts >= VERY_FEW_PROMPTS:
        return f"{num_prompts} prompts are few for the off-policy route: {FEW_PROMPTS} and more change more habits."
    return (
        f"WARNING: only {num_prompts} prompts. A few dozen texts of a teacher rarely change how a model writes; the "
        f"student will mostly learn these texts by heart. Find {VERY_FEW_PROMPTS} prompts or more, or train on-policy, "
        "where new practice answers to the same prompts go on teaching."
    )
