"""Hosted APIs in an evaluation: they get messages, through the ledger of the workspace.

Replies in the ledger are never requested again, so a resumed evaluation requests only what failed. Each model has its
own account in each evaluation, to which the caps of its settings apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.answers import GenerationSettings, make_answer_row, prompt_samples
from limbeck.evaluation.answering.evaluated import EvaluatedModel
from limbeck.evaluation.messages import models as messages
from limbeck.models.refs import ModelRef
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.recipe import Recipe
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.store import WriteEvent
from limbeck.teachers.hosted import ChatFailure, HostedSettings, HostedTeacher, ParsedReply

__all__ = ["generate_hosted_answers", "hosted_settings", "hosted_teacher", "settings_of_recipe"]

# The labels of replies that contain the model's answer; other replies have a label only.
ANSWERED = ("ok", "cut-off", "empty", "refused", "unknown-end")


def settings_of_recipe(recipe: Recipe, role: str) -> dict[str, Any]:
    """The recipe's settings of a hosted teacher; a hosted judge has the same address and caps."""
    if recipe.teacher is None or not recipe.teacher.startswith("openai:"):
        return {}
    if role == "teacher":
        return {**dict(recipe.hosted), "parameters": recipe.teacher_options}
    return {**dict(recipe.hosted), "answers_as": None}


def hosted_settings(
    ref: ModelRef, alias: str, options: EvaluationOptions, given: Mapping[str, Any] = MappingProxyType({})
) -> HostedSettings | None:
    """The settings of a hosted API from the options, then from `given` (for the same address); None for other models.

    Raises:
        UsageError: a setting is unknown, or its value is invalid.
    """
    own = options.hosted_settings(alias)
    if ref.kind != "hosted":
        return None
    try:
        return HostedSettings(**{**({} if "base_url" in own else given), **own})
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise messages.hosted_setting_invalid(
            name=name, model=alias, value=repr(first["input"]), problem=first["msg"]
        ) from None


def hosted_teacher(evaluation: Evaluation, evaluated: EvaluatedModel) -> HostedTeacher:
    """The client of a hosted model, with the model's account in this evaluation."""
    assert evaluated.hosted is not None
    workspace = evaluation.path.parents[1]
    account = f"{evaluation.path.parent.name}/{evaluation.name}/{evaluated.alias}"
    return HostedTeacher(evaluated.ref, evaluated.hosted, workspace=workspace, account=account)


def generate_hosted_answers(
    evaluation: Evaluation, evaluated: EvaluatedModel, settings: GenerationSettings, log: WriteEvent
) -> None:
    """Generate the answers of a hosted model; those that failed before are requested again.

    The ledger stores each reply as it arrives; the evaluation stores the answers when all have arrived.

    Raises:
        Stopped, UsageError, Refusal: from the client.
    """
    assert evaluated.hosted is not None
    texts = sha256("\0".join(prompt.text for prompt in evaluated.prompts).encode("utf-8", "replace")).hexdigest()
    facts = {
        "weights": None,
        "model": evaluated.name,
        "parameters": dict(evaluated.hosted.parameters),
        "prompts": texts,
    }
    evaluation.learn(evaluated.alias, facts)
    samples = prompt_samples(evaluated, settings)
    known = evaluation.read_answers(evaluated.alias)
    if len(known) == len(samples) and all(row["failure"] is None for row in known):
        return
    found = hosted_teacher(evaluation, evaluated).generate(
        [(json.loads(prompt.text), sample) for prompt, sample in samples],
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        on_progress=lambda text: log("phase", phase=messages.hosted_progress(model=evaluated.alias, progress=text)),
    )
    log("phase", phase=messages.hosted_received(model=evaluated.alias, num=len(samples)))
    rows = [_row(*each, answer) for each, answer in zip(samples, found, strict=True)]
    evaluation.write_answers(evaluated.alias, rows)


def _row(prompt: Prompt, sample: int, found: ParsedReply | ChatFailure) -> dict[str, object]:
    if isinstance(found, ChatFailure):
        return make_answer_row(prompt, sample, failure=f"{found.kind}: {found.text}")
    if found.label not in ANSWERED:
        return make_answer_row(prompt, sample, failure=found.label)
    counts = {"length": found.output_tokens, "num_prompt_tokens": found.input_tokens}
    cut_off = found.label == "cut-off"
    return make_answer_row(prompt, sample, answer=found.text, cut_off=cut_off, label=found.label, **counts)
