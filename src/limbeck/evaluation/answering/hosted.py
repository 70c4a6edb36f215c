"""Models behind a chat API in an evaluation: asked by messages, through the ledger of the workspace.

What the ledger holds is not asked again, so an evaluation that goes on asks for what failed and nothing else. Each
model has an account of its own in each evaluation: the caps of its settings hold for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.answers import Answering, Log, answer_row, asked_of
from limbeck.evaluation.answering.sides import Side
from limbeck.models.refs import ModelRef
from limbeck.recipe.evaluation import EvaluationOptions, option_refused
from limbeck.recipe.recipe import Recipe
from limbeck.runs.evaluations import Evaluation
from limbeck.teachers.hosted import ChatFailure, HostedSettings, HostedTeacher, ParsedReply

__all__ = ["answer_hosted", "hosted_settings", "hosted_teacher", "settings_of_recipe"]

# The labels of replies that say what the model answered; of the others nothing is known but that they came.
ANSWERED = ("ok", "cut-off", "empty", "refused", "unknown-end")


def settings_of_recipe(recipe: Recipe, role: str) -> dict[str, Any]:
    """What a recipe says of its teacher's chat API; a judge there is another model, with an address and caps alike."""
    if recipe.teacher is None or not recipe.teacher.startswith("openai:"):
        return {}
    if role == "teacher":
        return {**dict(recipe.hosted), "parameters": recipe.teacher_options}
    return {**dict(recipe.hosted), "answers_as": None}


def hosted_settings(
    ref: ModelRef, alias: str, options: EvaluationOptions, given: Mapping[str, Any] = MappingProxyType({})
) -> HostedSettings | None:
    """How a model is asked, None if its weights are here: by the options, then by what is `given`, at one address.

    Raises:
        UsageError: a setting is not known, or its value is not meant so.
    """
    said = options.hosted_settings(alias)
    if ref.kind != "hosted":
        return None
    try:
        return HostedSettings(**{**({} if "base_url" in said else given), **said})
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        told = "Correct it; limbeck recipe explain hosted tells them all."
        raise option_refused(f"hosted {name} of {alias} is {first['input']!r}: {first['msg']}", told) from None


def hosted_teacher(evaluation: Evaluation, side: Side) -> HostedTeacher:
    """Who asks for a hosted side."""
    assert side.hosted is not None
    workspace, account = evaluation.path.parents[1], f"{evaluation.path.parent.name}/{evaluation.name}/{side.alias}"
    return HostedTeacher(side.ref, side.hosted, workspace=workspace, account=account)


def answer_hosted(evaluation: Evaluation, side: Side, answering: Answering, log: Log) -> None:
    """Let a hosted model answer; what failed before is asked again. Raises Stopped, UsageError or Refusal.

    The ledger has each reply as it comes; the evaluation gets the answers when all are there.
    """
    assert side.hosted is not None
    texts = sha256("\0".join(prompt.text for prompt in side.prompts).encode("utf-8", "replace")).hexdigest()
    facts = {"weights": None, "model": side.name, "parameters": dict(side.hosted.parameters), "prompts": texts}
    evaluation.learn(side.alias, facts)
    asked = asked_of(side, answering)
    known = evaluation.read_answers(side.alias)
    if len(known) == len(asked) and all(row["failure"] is None for row in known):
        return
    found = hosted_teacher(evaluation, side).generate(
        [(json.loads(prompt.text), sample) for prompt, sample in asked],
        max_tokens=answering.max_tokens,
        temperature=answering.temperature,
        seed=answering.seed,
        on_progress=lambda text: log("phase", phase=f"{side.alias} answers: {text}"),
    )
    log("phase", phase=f"{side.alias} answers, {len(asked)} of them at its chat API")
    rows = [_row(*each, answer) for each, answer in zip(asked, found, strict=True)]
    evaluation.write_answers(side.alias, rows)


def _row(prompt: Prompt, sample: int, found: ParsedReply | ChatFailure) -> dict[str, object]:
    if isinstance(found, ChatFailure):
        return answer_row(prompt, sample, failure=f"{found.kind}: {found.text}")
    if found.label not in ANSWERED:
        return answer_row(prompt, sample, failure=found.label)
    counts = {"length": found.output_tokens, "num_prompt_tokens": found.input_tokens}
    cut_off = found.label == "cut-off"
    return answer_row(prompt, sample, answer=found.text, cut_off=cut_off, label=found.label, **counts)
