"""The texts of `limbeck demo`."""

from __future__ import annotations

from collections.abc import Mapping

from limbeck.errors import note

__all__ = [
    "LABELS",
    "demo_about",
    "demo_chat",
    "demo_done",
    "demo_show",
    "demo_steps",
    "demo_task",
]

LABELS: Mapping[str, str] = {
    "baseline": "Is it worth distilling?",
    "examples": "Three held-out messages and the answers of each model",
    "model": "model",
    "grade": "grade",
    "answer": "answer",
    "right": "right",
    "wrong": "wrong",
    "next": "What to do next",
}


@note("demo.task")
def demo_task() -> str:
    return "The task: a customer writes to a billing desk, and a model answers with one line of JSON."


@note("demo.about")
def demo_about() -> str:
    return "Limbeck ships with two tiny models: a teacher that does this well, and a student that is often wrong."


@note("demo.steps")
def demo_steps() -> str:
    return (
        "1. Baseline check: both models answer held-out prompts. Is there anything to distil?\n"
        "2. On-policy distillation: the student generates answers to other prompts, and the teacher scores every "
        "token of them. No reference answers are used.\n"
        "3. Evaluation: the distilled student answers the held-out prompts. Did it work?"
    )


@note("demo.done")
def demo_done(*, seconds: int, run: str) -> str:
    return "The demo took {seconds:second|seconds}. Its run is in {run}"


@note("demo.show")
def demo_show() -> str:
    return "Show the run:"


@note("demo.chat")
def demo_chat() -> str:
    return "Chat with the distilled student:"
