"""The models of an evaluation, each with the prompts as it reads them; nothing heavier than a tokenizer is loaded here.

Models that split text alike are asked in one template, that of the first of them, so that the very same text goes to
all: a difference between two of them is then never one of formatting. A model of another family is asked in its own.
A model behind a chat API gets messages, and its server writes them as it does.
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
from limbeck.errors import ModelError, Refusal, VocabularyMismatch
from limbeck.models.load import load_config, load_generation_config, load_tokenizer
from limbeck.models.refs import ModelRef
from limbeck.models.vocabulary import compare_vocabularies
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from limbeck.teachers.hosted import HostedSettings
from limbeck.training.material import num_positions

__all__ = ["Named", "Role", "Side", "all_sides", "ask_once", "make_sides", "own_options", "refuse_too_long", "run_of"]

Role = Literal["teacher", "student", "distilled", "model"]


@dataclass(frozen=True)
class Named:
    """A model of an evaluation before anything of it is read; `hosted` is for one behind a chat API alone."""

    alias: str
    role: Role
    ref: ModelRef
    dtype: str = "float32"
    hosted: HostedSettings | None = None

    @property
    def name(self) -> str:
        """The reference, and where a hosted model is."""
        where = self.hosted and (self.hosted.alias or self.hosted.base_url)
        return f"{self.ref.text} at {where}" if where else self.ref.text


@dataclass(frozen=True)
class Side(Named):
    """A model with the prompts as it reads them; `dialogue` is None for one behind a chat API.

    Of those that are `alike`, the ids mean the same tokens.
    """

    prompts: tuple[Prompt, ...] = ()
    dialogue: Dialogue | None = None
    alike: bool = False
    notes: tuple[str, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def local(self) -> Dialogue:
        """The dialogue of a model that is here."""
        assert self.dialogue is not None, "a model behind a chat API is asked by messages"
        return self.dialogue


def ask_once(rows: Sequence[PromptRow]) -> tuple[tuple[PromptRow, ...], tuple[str, ...]]:
    """Each conversation once, with the reference answers of all its rows, and notes on those that stood there again.

    A repetition says nothing new of a model, and an interval would take it for one more prompt.
    """
    by_content: dict[str, list[PromptRow]] = defaultdict(list)
    for row in rows:
        by_content[row.content_hash].append(row)
    merged: list[PromptRow] = []
    num_unlike = 0
    for same in by_content.values():
        texts = [() if row.reference is None else (row.reference, *row.others) for row in same]
        num_unlike += len(set(texts)) > 1
        known = list(dict.fromkeys(text for each in texts for text in each))
        merged.append(replace(same[0], reference=known[0] if known else None, others=tuple(known[1:])))
    notes: list[str] = []
    if len(merged) < len(rows):
        notes.append(f"{len(rows) - len(merged)} of {len(rows)} rows repeat the prompt of another: each is asked once.")
    if num_unlike:
        told = "Prompts whose rows carry different reference answers"
        notes.append(f"{told}: {num_unlike}. Each of these answers counts as right.")
    return tuple(merged), tuple(notes)


def all_sides(named: Sequence[Named], rows: Sequence[PromptRow], **rendering: Any) -> list[Side]:
    """`make_sides` of the models that are here; those behind a chat API get the same prompts as messages."""
    here = [each for each in named if each.hosted is None]
    sides = {side.alias: side for side in (make_sides(here, rows, **rendering) if here else [])}
    asked = {each.source for each in (sides[here[0].alias].prompts if here else rows)}
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
        if row.source in asked
    )
    note = "{} is behind a chat API and is asked by messages, in the template of its server."
    return [
        sides.get(each.alias) or Side(**vars(each), prompts=prompts, notes=(note.format(each.alias),)) for each in named
    ]


def make_sides(
    named: Sequence[Named],
    rows: Sequence[PromptRow],
    *,
    max_tokens: int,
    template: str = "student",
    options: Mapping[str, object] | None = None,
    max_prompt_tokens: int = NO_LIMIT,
    on_long: Literal["refuse", "skip"] = "refuse",
) -> list[Side]:
    """Read configurations and tokenizers and render the rows; the first model's template is for all that are alike.

    Args:
        template: as in a recipe, where "student" is the first model and "teacher" the one of that role.
        options: for the template; None takes those of the run that the first model is of, if it is of one.

    Raises:
        Refusal: a model is behind an interface that this version does not ask.
        ModelError: a prompt and an answer of `max_tokens` have no place in a model.
    """
    _refuse_served(named)
    tokenizers = [load_tokenizer(each.ref) for each in named]
    first, tokenizer = named[0], tokenizers[0]
    teachers = [tokenizers[place] for place, each in enumerate(named) if each.role == "teacher"]
    names = {"student_name": first.ref.text, "teacher_name": "teacher"}
    shared = choose_template(template, tokenizer, teachers[0] if teachers else None, **names)
    variables = dict(options if options is not None else own_options(first.ref))
    sides: list[Side] = []
    for each, own in zip(named, tokenizers, strict=True):
        num_shared = _num_shared(tokenizer, own, first.ref, each.ref)
        asked, given, notes = shared, variables, _template_note(each, own, shared) if num_shared else ()
        if num_shared is None:
            asked = choose_template("student", own, None, student_name=each.ref.text, teacher_name=each.ref.text)
            given = dict(own_options(each.ref))
            notes = (f"{each.alias} splits text otherwise than {first.alias} and is asked in its own template.",)
        dialogue = make_dialogue(
            own,
            load_generation_config(each.ref),
            asked,
            given,
            num_real=num_shared or _num_shared(own, own, each.ref, each.ref) or 0,
            num_positions=num_positions(each.ref),
        )
        rendered = dialogue.render(rows, max_prompt_tokens=max_prompt_tokens, on_long=on_long)
        longest = max(len(prompt.ids) for prompt in rendered.prompts)
        refuse_too_long(each.ref.text, num_positions(each.ref), longest, max_tokens)
        sides.append(
            Side(
                **vars(each),
                prompts=rendered.prompts,
                dialogue=dialogue,
                alike=num_shared is not None,
                notes=(*notes, *(f"{each.alias}: {note}" for note in (*dialogue.stop.notes, *rendered.notes))),
            )
        )
    smallest = min(side.local.num_real for side in sides if side.alike)
    return [replace(side, dialogue=replace(side.local, num_real=smallest)) if side.alike else side for side in sides]


def run_of(ref: ModelRef) -> Run | None:
    """The run whose model or checkpoint a reference names."""
    if ref.kind != "run" or ref.path is None:
        return None
    return Run(ref.path.parent if ref.weights is None else ref.weights.parents[2])


def own_options(ref: ModelRef) -> Mapping[str, object]:
    """A run's model is asked as it was trained: with the template options of its recipe."""
    run = run_of(ref)
    return {} if run is None else load_recipe(run.recipe_path, [], {}).recipe.template_options


def _num_shared(
    first: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, first_ref: ModelRef, other_ref: ModelRef
) -> int | None:
    """How many ids mean the same token to both, None where ids differ."""
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


def _refuse_served(named: Sequence[Named]) -> None:
    for each in named:
        if each.ref.kind == "served":
            raise Refusal(
                "evaluation.not-offered",
                given=f"{each.alias} is {each.ref.text}, a scoring server.",
                needed="This version evaluates models whose weights this machine can hold, and chat APIs.",
                fix="Name a hub id, a folder, a .gguf file, run:NAME or openai:MODEL.",
            )


def _template_note(each: Named, tokenizer: PreTrainedTokenizerBase, shared: Template) -> tuple[str, ...]:
    if tokenizer.chat_template in (None, shared.source, shared.source.removeprefix(START)):
        return ()
    return (f"{each.alias} has a template of its own and is asked in the one that all are asked in.",)


def refuse_too_long(name: str, limit: int | None, longest: int, max_tokens: int) -> None:
    """Raises ModelError if a prompt of `longest` tokens and an answer have no place in a model of `limit` positions."""
    if limit is None or longest + max_tokens <= limit:
        return
    room = limit - longest
    raise ModelError(
        "model.too-short",
        given=f"The longest prompt has {longest} tokens, an answer up to {max_tokens}; {name} has {limit} positions.",
        needed="Every position of prompt and answer needs a place in each model.",
        fix=f"Give --max-tokens {room} or fewer, or leave the longest prompts out."
        if room > 0
        else f"Leave out the prompts of {limit} tokens and more, or name a model with more positions.",
    )
