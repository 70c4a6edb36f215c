"""From a recipe to everything the first step needs, cheapest checks first.

    1. configurations and tokenizers   do the models split text alike, what ends an answer
    2. prompts                         rows, held-out split, rendered once to ids
    3. weights                         only now, and then how each model writes on this machine

Whatever is wrong with prompts or pair is said before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from limbeck.data.chat import (
    Prompt,
    RenderedPrompts,
    StopSet,
    Template,
    choose_template,
    compare_stops,
    pad_id,
    render_prompts,
    stop_ids,
)
from limbeck.data.rows import Row, RowSet, read_rows
from limbeck.data.split import split_held_out
from limbeck.errors import LimbeckError, ModelError, Refusal
from limbeck.machine import Machine
from limbeck.models.adapters import attach_adapters, without_adapters
from limbeck.models.load import LanguageModel, load_config, load_generation_config, load_model, load_tokenizer
from limbeck.models.refs import ModelRef, parse_ref
from limbeck.models.vocabulary import VocabularyComparison, compare_vocabularies
from limbeck.recipe.schema import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.probe import WritingMethod, choose_method
from limbeck.training.optim import make_optimizer
from limbeck.training.state import TrainState

__all__ = ["Material", "Models", "load_models", "make_state", "prepare_material", "shares_base"]


@dataclass(frozen=True)
class Material:
    """The pair compared and the prompts rendered: all that can be known without weights."""

    student_ref: ModelRef
    teacher_ref: ModelRef
    tokenizer: PreTrainedTokenizerBase
    vocabulary: VocabularyComparison
    template: Template
    stop: StopSet
    pad_id: int
    rows: RowSet
    train: RenderedPrompts
    held_out: RenderedPrompts
    notes: tuple[str, ...]

    @property
    def longest_prompt(self) -> int:
        return max(len(prompt.ids) for prompt in (*self.train.prompts, *self.held_out.prompts))


@dataclass(frozen=True)
class Models:
    """Student and teacher with their logits cut to the shared vocabulary, and how each writes."""

    student: LanguageModel
    teacher: LanguageModel
    student_writing: WritingMethod
    teacher_writing: WritingMethod


def prepare_material(recipe: Recipe) -> Material:
    """Compare the pair and render the prompts.

    Raises:
        LimbeckError: the first thing that stands in the way; see the rooms that this calls.
    """
    workspace = Path(recipe.workspace)
    student_ref = parse_ref(recipe.student, workspace=workspace)
    teacher_ref = parse_ref(recipe.teacher, workspace=workspace)
    student_tokenizer, teacher_tokenizer = load_tokenizer(student_ref), load_tokenizer(teacher_ref)
    vocabulary = compare_vocabularies(
        student_tokenizer,
        teacher_tokenizer,
        student_rows=_vocabulary_rows(student_ref),
        teacher_rows=_vocabulary_rows(teacher_ref),
        student_name=student_ref.text,
        teacher_name=teacher_ref.text,
    )
    template = choose_template(
        recipe.template,
        student_tokenizer,
        teacher_tokenizer,
        student_name=student_ref.text,
        teacher_name=teacher_ref.text,
    )
    stop = stop_ids(student_tokenizer, load_generation_config(student_ref), template, recipe.template_options)
    stop_notes = _compare_with_teachers_stops(stop, student_tokenizer, teacher_tokenizer, student_ref, teacher_ref)
    rows = read_rows(Path(recipe.prompts))
    held_out_file = Path(recipe.held_out) if isinstance(recipe.held_out, str) else recipe.held_out
    split = split_held_out(rows.rows, held_out_file)
    train, held_out = (_render(part, student_tokenizer, template, recipe) for part in (split.train, split.held_out))
    prompts = (*train.prompts, *held_out.prompts)
    _refuse_unshared(stop, prompts, vocabulary, student_tokenizer, teacher_tokenizer)
    for ref in (student_ref, teacher_ref):
        _refuse_too_long(ref, max(len(prompt.ids) for prompt in prompts), recipe)
    return Material(
        student_ref=student_ref,
        teacher_ref=teacher_ref,
        tokenizer=student_tokenizer,
        vocabulary=vocabulary,
        template=template,
        stop=stop,
        pad_id=pad_id(student_tokenizer, stop, num_rows=vocabulary.num_shared),
        rows=rows,
        train=train,
        held_out=held_out,
        notes=tuple(
            dict.fromkeys(
                (*rows.notes, *split.notes, *vocabulary.notes, *stop.notes, *stop_notes, *train.notes, *held_out.notes)
            )
        ),
    )


def load_models(material: Material, recipe: Recipe, machine: Machine) -> Models:
    """Read the weights, cut both heads to the shared vocabulary and find out how each model writes."""
    device = torch.device(machine.device)
    num_real = material.vocabulary.num_shared
    student = load_model(material.student_ref, trainable=True, dtype=torch.float32, device=device)
    if recipe.lora is not None:
        attach_adapters(student, rank=recipe.lora.rank, alpha=recipe.lora.alpha, seed=recipe.seed)
    if shares_base(material.student_ref, material.teacher_ref, recipe):
        teacher = replace(without_adapters(student), ref=material.teacher_ref)
    else:
        teacher = load_model(
            material.teacher_ref, trainable=False, dtype=getattr(torch, recipe.teacher_dtype), device=device
        )
    student, teacher = student.with_vocabulary(num_real), teacher.with_vocabulary(num_real)
    max_length = material.longest_prompt + recipe.max_practice_tokens
    return Models(
        student=student,
        teacher=teacher,
        student_writing=choose_method(student, max_length=max_length, pad_id=material.pad_id),
        teacher_writing=choose_method(teacher, max_length=max_length, pad_id=material.pad_id),
    )


def shares_base(student_ref: ModelRef, teacher_ref: ModelRef, recipe: Recipe) -> bool:
    """Whether the teacher is the student without its adapters: then its weights are held once."""
    student, teacher = (ref.text if ref.path is None else ref.path.resolve() for ref in (student_ref, teacher_ref))
    return student == teacher and recipe.lora is not None and recipe.teacher_dtype == "float32"


def make_state(models: Models, material: Material, recipe: Recipe, watch: Callable[[str], None]) -> TrainState:
    """The state before the first step."""
    return TrainState(
        student=models.student,
        engine=make_engine(models.student, models.student_writing, material, recipe),
        optimizer=make_optimizer(models.student.module.parameters(), recipe),
        watch=watch,
    )


def make_engine(model: LanguageModel, writing: WritingMethod, material: Material, recipe: Recipe) -> Engine:
    return Engine(
        model,
        stop_ids=material.stop.ids,
        pad_id=material.pad_id,
        num_slots=recipe.slots,
        max_read_tokens=recipe.micro_batch_tokens,
        plain=writing.plain,
    )


def _vocabulary_rows(ref: ModelRef) -> int:
    return int(load_config(ref).get_text_config().vocab_size)


def _render(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, template: Template, recipe: Recipe
) -> RenderedPrompts:
    return render_prompts(
        rows,
        tokenizer,
        template,
        options=recipe.template_options,
        max_prompt_tokens=recipe.max_prompt_tokens,
        on_long=recipe.long_prompts,
    )


def _compare_with_teachers_stops(
    stop: StopSet,
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
    student_ref: ModelRef,
    teacher_ref: ModelRef,
) -> tuple[str, ...]:
    """Notes on how the teacher ends its turns by its own template, which the run itself may not use at all."""
    if teacher_tokenizer.chat_template is None:
        return ()
    names = {"student_name": student_ref.text, "teacher_name": teacher_ref.text}
    try:
        own_template = choose_template("teacher", student_tokenizer, teacher_tokenizer, **names)
        own_stop = stop_ids(teacher_tokenizer, load_generation_config(teacher_ref), own_template, {})
    except LimbeckError as error:
        return (f"How {teacher_ref.text} ends a turn by its own template could not be found out: {error.given}",)
    return compare_stops(student_tokenizer, stop, own_stop, **names)


def _refuse_unshared(
    stop: StopSet,
    prompts: Sequence[Prompt],
    vocabulary: VocabularyComparison,
    tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Both models must know every id of the prompts and every stop token."""
    known = {token for token in teacher_tokenizer.get_vocab().values() if token < vocabulary.num_shared}
    places = [("the stop tokens", stop.ids), *((prompt.source, prompt.ids) for prompt in prompts)]
    unknown = {source: next(token for token in ids if token not in known) for source, ids in places if set(ids) - known}
    if not unknown:
        return
    source, token = next(iter(unknown.items()))
    raise Refusal(
        "vocabulary.unshared-token",
        given=f"{len(unknown)} places use ids that the teacher does not know; the first is {source} with id {token}, "
        f"{tokenizer.convert_ids_to_tokens(token)!r}.",
        needed="The teacher has to read every token of a prompt and to judge every token of an answer.",
        fix="Choose a template without this token (template: teacher, or a file), or a teacher that knows it.",
    )


def _refuse_too_long(ref: ModelRef, longest_prompt: int, recipe: Recipe) -> None:
    """Learned positions end somewhere; beyond the trained length even rotary ones are guesses."""
    limit = load_config(ref).get_text_config().to_dict().get("max_position_embeddings")
    max_length = longest_prompt + recipe.max_practice_tokens
    if limit is None or max_length <= limit:
        return
    raise ModelError(
        "model.too-short",
        given=f"The longest prompt has {longest_prompt} tokens and a practice answer up to "
        f"{recipe.max_practice_tokens}, together {max_length}; {ref.text} has {limit} positions.",
        needed="Every position of prompt and answer needs a place in both models.",
        fix=(f"Set max_practice_tokens to at most {limit - longest_prompt}, or s" if limit > longest_prompt else "S")
        + f"et max_prompt_tokens below {limit} with long_prompts: skip.",
    )
