"""The models of an evaluation, each with its prompts as token ids; nothing larger than a tokenizer is loaded here.

Models with the same vocabulary get exactly the same text, in the chat template of the first of them, so that formatting
cannot cause a difference between them. A model of another family gets prompts in its own template. A hosted API gets
messages, and its server applies the template.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from limbeck.data.dialogue import NO_LIMIT, Dialogue, make_dialogue
from limbeck.data.prompt import Prompt, PromptRow
from limbeck.data.templates import START, Template, choose_template
from limbeck.errors import VocabularyMismatch
from limbeck.evaluation.messages import models as messages
from limbeck.models.load import load_config, load_generation_config, load_tokenizer
from limbeck.models.refs import ModelRef
from limbeck.models.vocabulary import compare_vocabularies
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from limbeck.teachers.hosted import HostedSettings
from limbeck.training.material import num_positions

__all__ = [
    "EvaluatedModel",
    "ModelEntry",
    "Role",
    "prepare_all_models",
    "prepare_models",
    "refuse_too_long",
    "run_of",
    "template_options_of",
    "unique_prompts",
]

Role = Literal["teacher", "student", "distilled", "model"]


@dataclass(frozen=True)
class ModelEntry:
    """A model of an evaluation before any of its files is read; `hosted` has the settings of a hosted API."""

    alias: str
    role: Role
    ref: ModelRef
    dtype: str = "float32"
    hosted: HostedSettings | None = None

    @property
    def name(self) -> str:
        """The reference, and the address of a hosted API."""
        where = self.hosted and (self.hosted.alias or self.hosted.base_url)
        return f"{self.ref.text} at {where}" if where else self.ref.text


@dataclass(frozen=True)
class EvaluatedModel(ModelEntry):
    """A model with its prompts; a hosted API has no `dialogue`.

    Token ids have the same meaning in all models with `shares_vocabulary`. `notes` are about this model.
    """

    prompts: tuple[Prompt, ...] = ()
    dialogue: Dialogue | None = None
    shares_vocabulary: bool = False
    notes: tuple[str, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def local(self) -> Dialogue:
        """The dialogue of a local model."""
        assert self.dialogue is not None, "a hosted API gets messages"
        return self.dialogue


def unique_prompts(rows: Sequence[PromptRow]) -> tuple[tuple[PromptRow, ...], tuple[str, ...]]:
    """Each conversation once, with the reference answers of all of its rows, and notes on repeated ones.

    A repeated prompt gives no new information about a model, but an interval would count it as one more prompt.
    """
    by_content: dict[str, list[PromptRow]] = defaultdict(list)
    for row in rows:
        by_content[row.content_hash].append(row)
    merged: list[PromptRow] = []
    num_different = 0
    for same in by_content.values():
        texts = [() if row.reference is None else (row.reference, *row.others) for row in same]
        num_different += len(set(texts)) > 1
        known = list(dict.fromkeys(text for each in texts for text in each))
        merged.append(replace(same[0], reference=known[0] if known else None, others=tuple(known[1:])))
    notes: list[str] = []
    if len(merged) < len(rows):
        notes.append(messages.prompts_repeated(num=len(rows) - len(merged), total=len(rows)))
    if num_different:
        notes.append(messages.references_differ(num=num_different))
    return tuple(merged), tuple(notes)


def prepare_all_models(
    entries: Sequence[ModelEntry], rows: Sequence[PromptRow], **rendering: Any
) -> list[EvaluatedModel]:
    """`prepare_models` of the local models; hosted APIs get the same prompts as messages."""
    local = [each for each in entries if each.hosted is None]
    models = {model.alias: model for model in (prepare_models(local, rows, **rendering) if local else [])}
    sources = {each.source for each in (models[local[0].alias].prompts if local else rows)}
    prompts = tuple(
        Prompt(
            ids=(),
            text=json.dumps([asdict(turn) for turn in row.messages], ensure_ascii=False),
            messages=row.messages,
            content_hash=row.content_hash,
            occurrence=0,
            source=row.source,
            reference=row.reference,
            extra=row.extra,
            others=row.others,
        )
        for row in rows
        if row.source in sources
    )
    notes = (messages.template_of_server(),)
    return [models.get(each.alias) or EvaluatedModel(**vars(each), prompts=prompts, notes=notes) for each in entries]


def prepare_models(
    entries: Sequence[ModelEntry],
    rows: Sequence[PromptRow],
    *,
    max_tokens: int,
    template: str = "student",
    options: Mapping[str, object] | None = None,
    max_prompt_tokens: int = NO_LIMIT,
    on_long: Literal["refuse", "skip"] = "refuse",
) -> list[EvaluatedModel]:
    """Load configurations and tokenizers, and render the rows, for all models with the same vocabulary in one template.

    Args:
        template: as in a recipe, where "student" is the first model and "teacher" the model with that role.
        options: for the template; None uses those of the run that the first model comes from, if there is one.

    Raises:
        Refusal: a model is a scoring server.
        ModelError: a prompt and an answer of `max_tokens` do not fit into the positions of a model.
    """
    _refuse_scoring_servers(entries)
    tokenizers = [load_tokenizer(each.ref) for each in entries]
    first, tokenizer = entries[0], tokenizers[0]
    teachers = [tokenizers[place] for place, each in enumerate(entries) if each.role == "teacher"]
    names = {"student_name": first.ref.text, "teacher_name": "teacher"}
    shared = choose_template(template, tokenizer, teachers[0] if teachers else None, **names)
    variables = dict(options if options is not None else template_options_of(first.ref))
    models: list[EvaluatedModel] = []
    for each, own in zip(entries, tokenizers, strict=True):
        num_shared = _num_shared(tokenizer, own, first.ref, each.ref)
        used, given, notes = shared, variables, _template_note(own, shared) if num_shared else ()
        if num_shared is None:
            used = choose_template("student", own, None, student_name=each.ref.text, teacher_name=each.ref.text)
            given = dict(template_options_of(each.ref))
            notes = (messages.template_own(other=first.alias),)
        dialogue = make_dialogue(
            own,
            load_generation_config(each.ref),
            used,
            given,
            num_real=num_shared or _num_shared(own, own, each.ref, each.ref) or 0,
            num_positions=num_positions(each.ref),
        )
        rendered = dialogue.render(rows, max_prompt_tokens=max_prompt_tokens, on_long=on_long)
        longest = max(len(prompt.ids) for prompt in rendered.prompts)
        refuse_too_long(each.ref.text, num_positions(each.ref), longest, max_tokens)
        models.append(
            EvaluatedModel(
                **vars(each),
                prompts=rendered.prompts,
                dialogue=dialogue,
                shares_vocabulary=num_shared is not None,
                notes=(*notes, *dialogue.stop.notes, *rendered.notes),
            )
        )
    smallest = min(model.local.num_real for model in models if model.shares_vocabulary)
    return [
        replace(model, dialogue=replace(model.local, num_real=smallest)) if model.shares_vocabulary else model
        for model in models
    ]


def run_of(ref: ModelRef) -> Run | None:
    """The run that a reference to a model or checkpoint belongs to."""
    if ref.kind != "run" or ref.path is None:
        return None
    return Run(ref.path.parent if ref.weights is None else ref.weights.parents[2])


def template_options_of(ref: ModelRef) -> Mapping[str, object]:
    """The template options that the model of a run was trained with; none for other models."""
    run = run_of(ref)
    return {} if run is None else load_recipe(run.recipe_path, [], {}).recipe.template_options


def _num_shared(
    first: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, first_ref: ModelRef, other_ref: ModelRef
) -> int | None:
    """The number of ids that mean the same token in both models; None if ids differ."""
    rows = [int(load_config(ref).get_text_config().vocab_size) for ref in (first_ref, other_ref)]
    try:
        return compare_vocabularies(
            first,
            other,
            student_rows=rows[0],
            teacher_rows=rows[1],
            student_name=first_ref.text,
            teacher_name=other_ref.text,
        ).num_shared
    except VocabularyMismatch:
        return None


def _refuse_scoring_servers(entries: Sequence[ModelEntry]) -> None:
    for each in entries:
        if each.ref.kind == "served":
            raise messages.scoring_server(alias=each.alias, model=each.ref.text)


def _template_note(tokenizer: PreTrainedTokenizerBase, shared: Template) -> tuple[str, ...]:
    if tokenizer.chat_template in (None, shared.source, shared.source.removeprefix(START)):
        return ()
    return (messages.template_shared(),)


def refuse_too_long(name: str, limit: int | None, longest: int, max_tokens: int) -> None:
    """Raises ModelError if a prompt of `longest` tokens and an answer do not fit into a model of `limit` positions."""
    if limit is None or longest + max_tokens <= limit:
        return
    if longest >= limit:
        raise messages.prompt_too_long(model=name, num_positions=limit, prompt_tokens=longest)
    raise messages.answer_too_long(
        model=name, num_positions=limit, prompt_tokens=longest, max_tokens=max_tokens, fitting=limit - longest
    )
