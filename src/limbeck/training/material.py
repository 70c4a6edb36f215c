"""Everything about a run that needs no weights, cheapest checks first.

    1. configurations and tokenizers   shared vocabulary, stop tokens, template and dialogue of each model
    2. prompts                         rows, held-out split, rendered once to ids; reference answers as targets

All errors in prompts and models are raised here, before weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

import limbeck.training.messages as messages
from limbeck.data.chat import RenderedPrompts
from limbeck.data.dialogue import NO_LIMIT, Dialogue, make_dialogue
from limbeck.data.prompt import Prompt, PromptRow, Targets
from limbeck.data.row_errors import RowErrors, short_json
from limbeck.data.rows import RowSet, read_rows
from limbeck.data.split import Split, split_held_out
from limbeck.data.stops import StopSet, compare_stops, stop_ids
from limbeck.data.targets import target_rows, targets_from_references, without_held_out
from limbeck.data.templates import RENDER_ERRORS, Template, choose_template, describe_refusal, render
from limbeck.errors import LimbeckError
from limbeck.models.load import load_config, load_generation_config, load_tokenizer, max_positions
from limbeck.models.refs import ModelRef
from limbeck.models.resolve import parse_ref
from limbeck.models.vocabulary import VocabularyComparison, compare_vocabularies
from limbeck.recipe.recipe import Recipe
from limbeck.teachers.writer import with_examples

__all__ = ["Material", "compare_pair", "num_positions", "prepare_material", "refuse_unshared", "render_rows"]

NUM_COMPARED = 100
LONGEST_SHOWN = 300


@dataclass(frozen=True)
class ModelPair:
    """The two models, described by their configurations and tokenizers.

    `dialogue` is the student's. `teacher_dialogue` is that of a local teacher, None otherwise: it uses the student's
    template if the teacher scores, and its own if it only generates. If no teacher scores, the vocabulary is the
    student's own.
    """

    student_ref: ModelRef
    teacher_ref: ModelRef | None
    vocabulary: VocabularyComparison
    dialogue: Dialogue
    teacher_dialogue: Dialogue | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Material(ModelPair):
    """The two models and the rendered prompts: everything that is known without weights.

    `targets` and `held_out_targets` are the reference answers of the rows, on the supervised route; `own` are the
    human-written answers of `own_answers`, and `examples` are shown to the teacher. `answer_limit` is the token limit
    of answers in an evaluation, `longest_answer` that of the whole run. `num_skipped` invalid rows were left out.
    """

    rows: RowSet
    train: RenderedPrompts
    held_out: RenderedPrompts
    targets: Targets | None
    held_out_targets: Targets | None
    own: Targets | None
    own_sha256: str | None
    num_skipped: int
    examples: tuple[PromptRow, ...]
    answer_limit: int
    longest_answer: int

    @property
    def longest_prompt(self) -> int:
        own = () if self.own is None else self.own.prompts
        return max(len(prompt.ids) for prompt in (*self.train.prompts, *self.held_out.prompts, *own))


def prepare_material(recipe: Recipe, template: Template | None = None, read_at: str | None = None) -> Material:
    """Compare the two models and render the prompts; `template` replaces the one that the recipe names.

    A template that contains the date gets that of `read_at`, or today's.

    Raises:
        LimbeckError: the first problem; see the modules that this calls.
    """
    pair = compare_pair(recipe, template, read_at or datetime.now().isoformat(timespec="seconds"))
    errors = RowErrors(Path(recipe.prompts).name, skippable=recipe.bad_rows == "refuse")
    rows = read_rows(Path(recipe.prompts), errors)
    num_rows = len(rows.rows) + errors.num_rows
    if recipe.bad_rows == "refuse":
        errors.raise_if_any()
    split = split_held_out(rows.rows, Path(recipe.held_out) if isinstance(recipe.held_out, str) else recipe.held_out)
    notes = [*rows.notes, *split.notes, *pair.notes]
    targets = held_out_targets = own = own_sha256 = None
    if recipe.route == "supervised":
        train, targets = _given(split.train, split, pair, recipe, notes, errors)
        held_out = render_rows(target_rows(split.held_out, "last_turn", errors), pair, recipe, errors)
        held_out_targets = targets_from_references(held_out.prompts, pair.dialogue)
    else:
        train, held_out = (render_rows(part, pair, recipe, errors) for part in (split.train, split.held_out))
    if recipe.bad_rows == "refuse":
        errors.raise_if_any()
    if num_skipped := errors.num_rows:
        notes.append(messages.skipped_rows(num=num_skipped, num_rows=num_rows, listed=errors.as_list()))
    if (num := len(train.prompts)) < recipe.prompts_per_step:
        notes.append(messages.few_prompts_for_step(per_step=recipe.prompts_per_step, num=num))
    if recipe.own_answers is not None:
        own_rows = read_rows(Path(recipe.own_answers.file))
        own_sha256 = own_rows.sha256
        own = replace(_given(own_rows.rows, split, pair, recipe, notes)[1], weight=recipe.own_answers.weight)
    examples: tuple[PromptRow, ...] = ()
    if recipe.teacher_examples is not None:
        examples = _kept(target_rows(read_rows(Path(recipe.teacher_examples)).rows, "last_turn"), split, notes)
    prompts = (*train.prompts, *held_out.prompts)
    if recipe.scores:
        refuse_unshared(prompts, pair)
    if recipe.answers_written and (examples or not recipe.scores):
        _refuse_no_positions(pair, recipe, prompts, examples)
    given = [each for each in (targets, held_out_targets, own) if each is not None]
    notes += _template_difference(pair, train.prompts, recipe)
    answer_limit = _answer_limit(recipe, pair, prompts, given)
    known: dict[str, Any] = {**vars(pair), "notes": tuple(dict.fromkeys((*notes, *train.notes, *held_out.notes)))}
    return Material(
        **known,
        rows=rows,
        train=train,
        held_out=held_out,
        targets=targets,
        held_out_targets=held_out_targets,
        own=own,
        own_sha256=own_sha256,
        num_skipped=num_skipped,
        examples=examples,
        answer_limit=answer_limit,
        longest_answer=max([answer_limit, _teacher_answer_limit(recipe), *(each.longest_answer for each in given)]),
    )


class _LocalModel(NamedTuple):
    """A local model and its tokenizer."""

    ref: ModelRef
    tokenizer: PreTrainedTokenizerBase


def compare_pair(recipe: Recipe, template: Template | None = None, read_at: str | None = None) -> ModelPair:
    """The two models by their tokenizers; if the teacher scores, each id must be the same token in both."""
    workspace = Path(recipe.workspace)
    student_ref = parse_ref(recipe.student, workspace=workspace)
    teacher_ref = None if recipe.teacher is None else parse_ref(recipe.teacher, workspace=workspace)
    student, teacher = _LocalModel(student_ref, load_tokenizer(student_ref)), None
    if teacher_ref is not None and teacher_ref.kind != "hosted":
        teacher = _LocalModel(teacher_ref, load_tokenizer(teacher_ref))
    vocabulary = _shared_vocabulary(student, teacher if teacher is not None and recipe.scores else student)
    template = template or replace(_template(recipe.template, student, teacher), read_at=read_at)
    dialogue = _dialogue(student, template, recipe.template_options, vocabulary.num_shared)
    teacher_dialogue, notes = None, dialogue.stop.notes
    if teacher is not None and recipe.scores:
        positions = num_positions(teacher.ref) or NO_LIMIT
        teacher_dialogue = replace(dialogue, tokenizer=teacher.tokenizer, num_positions=positions)
        notes = (*vocabulary.notes, *notes, *_teachers_stops(dialogue.stop, student, teacher))
    elif teacher is not None:
        teacher_dialogue = _teachers_own_dialogue(teacher, template, recipe)
    return ModelPair(student_ref, teacher_ref, vocabulary, dialogue, teacher_dialogue, notes)


def _shared_vocabulary(student: _LocalModel, teacher: _LocalModel) -> VocabularyComparison:
    rows = [int(load_config(each.ref).get_text_config().vocab_size) for each in (student, teacher)]
    return compare_vocabularies(
        student.tokenizer,
        teacher.tokenizer,
        student_rows=rows[0],
        teacher_rows=rows[1],
        student_name=student.ref.text,
        teacher_name=teacher.ref.text,
    )


def _template(choice: str, student: _LocalModel, teacher: _LocalModel | None) -> Template:
    own, name = (None, "no teacher") if teacher is None else (teacher.tokenizer, teacher.ref.text)
    return choose_template(choice, student.tokenizer, own, student_name=student.ref.text, teacher_name=name)


def _dialogue(model: _LocalModel, template: Template, options: Mapping[str, object], num_real: int) -> Dialogue:
    generation, positions = load_generation_config(model.ref), num_positions(model.ref)
    return make_dialogue(model.tokenizer, generation, template, options, num_real=num_real, num_positions=positions)


def _teachers_own_dialogue(teacher: _LocalModel, students_template: Template, recipe: Recipe) -> Dialogue:
    """The teacher with its own template and stop tokens, as its makers intended."""
    num_real = _shared_vocabulary(teacher, teacher).num_shared
    choice = "none" if recipe.template == "none" else "student"
    template = replace(_template(choice, teacher, None), read_at=students_template.read_at)
    options = recipe.template_options if template.sha256 == students_template.sha256 else {}
    return _dialogue(teacher, template, options, num_real)


def _teachers_stops(stop: StopSet, student: _LocalModel, teacher: _LocalModel) -> tuple[str, ...]:
    """Notes on the stop tokens of the teacher's own template, even if the run does not use that template."""
    if teacher.tokenizer.chat_template is None:
        return ()
    name = teacher.ref.text
    try:
        own = _template("teacher", student, teacher)
        own_stop = stop_ids(teacher.tokenizer, load_generation_config(teacher.ref), own, {})
    except LimbeckError as error:
        return (messages.teacher_stop_tokens_unknown(teacher=name, why=error.given),)
    return compare_stops(student.tokenizer, stop, own_stop, student_name=student.ref.text, teacher_name=name)


def _given(
    rows: Sequence[PromptRow],
    split: Split,
    pair: ModelPair,
    recipe: Recipe,
    notes: list[str],
    errors: RowErrors | None = None,
) -> tuple[RenderedPrompts, Targets]:
    """Rows with answers, without the held-out ones, rendered, and their answers as targets."""
    rendered = render_rows(_kept(target_rows(rows, recipe.train_on, errors), split, notes), pair, recipe, errors)
    targets = targets_from_references(rendered.prompts, pair.dialogue)
    num_tokens = sum(map(len, targets.answers.values()))
    notes.append(messages.reference_answers(num=len(targets.answers), num_tokens=num_tokens))
    return rendered, targets


def _kept(rows: Sequence[PromptRow], split: Split, notes: list[str]) -> tuple[PromptRow, ...]:
    kept, left_out = without_held_out(rows, split.held_out)
    notes += left_out
    if not kept:
        raise messages.nothing_left(num=len(rows), first=rows[0].source)
    return kept


def render_rows(
    rows: Sequence[PromptRow], pair: ModelPair, recipe: Recipe, errors: RowErrors | None = None
) -> RenderedPrompts:
    """Rows rendered for the student; with `errors`, invalid rows are collected there instead of raised."""
    return pair.dialogue.render(
        rows, max_prompt_tokens=recipe.max_prompt_tokens, on_long=recipe.long_prompts, errors=errors
    )


def num_positions(ref: ModelRef) -> int | None:
    """The context length of a model, None if unlimited. Rotary positions beyond it were never trained."""
    return max_positions(load_config(ref))


def _teacher_answer_limit(recipe: Recipe) -> int:
    return recipe.max_teacher_tokens if recipe.answers_written else 0


def _answer_limit(recipe: Recipe, pair: ModelPair, prompts: Sequence[Prompt], given: Sequence[Targets]) -> int:
    """The token limit of held-out answers. Raises ModelError if prompt and answer exceed a model's context length."""
    longest_prompt = max(len(prompt.ids) for prompt in prompts)
    for targets in given:
        longest = max(targets.prompts, key=lambda prompt: len(prompt.ids) + len(targets.answer_to(prompt)))
        num_answer, limit = len(targets.answer_to(longest)), num_positions(pair.student_ref)
        if limit is not None and len(longest.ids) + num_answer > limit:
            raise messages.given_answer_too_long(
                model=pair.student_ref.text,
                num_positions=limit,
                num_prompt=len(longest.ids),
                num_answer=num_answer,
                source=longest.source,
            )
    if recipe.route == "supervised":
        longest_answer, positions = max(targets.longest_answer for targets in given), num_positions(pair.student_ref)
        return longest_answer if positions is None else max(1, min(longest_answer, positions - longest_prompt))
    limits = {"max_teacher_tokens": _teacher_answer_limit(recipe)}
    if recipe.route == "on-policy":
        limits["max_practice_tokens"] = recipe.max_practice_tokens
    setting = max(limits, key=lambda name: limits[name])
    for ref in (pair.student_ref, pair.teacher_ref if recipe.scores else None):
        if ref is not None:
            _refuse_too_long(ref, longest_prompt, limits[setting], setting)
    return recipe.max_practice_tokens if recipe.route == "on-policy" else recipe.max_teacher_tokens


def _refuse_no_positions(
    pair: ModelPair, recipe: Recipe, prompts: Sequence[Prompt], examples: Sequence[PromptRow]
) -> None:
    """Raise ModelError if a local teacher has no positions left for its answers, after the examples and the prompt."""
    if pair.teacher_dialogue is None or pair.teacher_ref is None:
        return
    rows = [PromptRow(with_examples(prompt.messages, examples), None, prompt.source) for prompt in prompts]
    rendered = pair.teacher_dialogue.render(rows)
    longest = max(len(prompt.ids) for prompt in rendered.prompts)
    _refuse_too_long(pair.teacher_ref, longest, recipe.max_teacher_tokens, "max_teacher_tokens")


def _refuse_too_long(ref: ModelRef, num_prompt: int, num_answer: int, setting: str) -> None:
    """Raise ModelError if a prompt and the longest answer that a setting allows have more tokens than positions."""
    limit = num_positions(ref)
    if limit is None or num_prompt + num_answer <= limit:
        return
    if num_prompt >= limit:
        raise messages.prompt_too_long(
            model=ref.text,
            num_positions=limit,
            num_prompt=num_prompt,
            setting=setting,
            num_answer=num_answer,
            num_total=num_prompt + num_answer,
        )
    raise messages.answers_too_long(
        model=ref.text,
        num_positions=limit,
        num_prompt=num_prompt,
        setting=setting,
        num_answer=num_answer,
        num_total=num_prompt + num_answer,
        largest=limit - num_prompt,
    )


def _template_difference(pair: ModelPair, prompts: Sequence[Prompt], recipe: Recipe) -> Iterator[str]:
    """A note on the first prompt that the teacher's own template renders differently."""
    teacher, ref, students = pair.teacher_dialogue, pair.teacher_ref, pair.dialogue.template
    if teacher is None or ref is None or teacher.tokenizer.chat_template is None or recipe.template == "none":
        return
    own = replace(_template("student", _LocalModel(ref, teacher.tokenizer), None), read_at=students.read_at)
    if own.sha256 == students.sha256:
        return
    for prompt in prompts[:NUM_COMPARED]:
        try:
            text = render(teacher.tokenizer, own, prompt.messages, {}, opened=True)
        except RENDER_ERRORS as error:
            text = describe_refusal(error)
        if text != prompt.text:
            theirs, ours = (short_json(part, LONGEST_SHOWN) for part in _differing(text, prompt.text))
            other = messages.other_template_scores if recipe.scores else messages.other_template_generates
            yield other(teacher=ref.text, source=prompt.source, theirs=theirs, ours=ours)
            return


def _differing(one: str, other: str) -> tuple[str, str]:
    """Two texts without their common prefix and their common suffix."""
    start = _common_prefix_length(one, other)
    one, other = one[start:], other[start:]
    end = _common_prefix_length(one[::-1], other[::-1])
    return one[: len(one) - end], other[: len(other) - end]


def _common_prefix_length(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    differing = (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def refuse_unshared(prompts: Sequence[Prompt], pair: ModelPair) -> None:
    """Raise Refusal unless the teacher has every token of the prompts and every stop token."""
    teacher, student = pair.teacher_dialogue, pair.dialogue
    assert teacher is not None, "only a teacher with the student's vocabulary scores"
    known = {token for token in teacher.tokenizer.get_vocab().values() if token < pair.vocabulary.num_shared}
    places = [("the stop tokens", student.stop.ids), *((prompt.source, prompt.ids) for prompt in prompts)]
    unknown = {source: next(token for token in ids if token not in known) for source, ids in places if set(ids) - known}
    if not unknown:
        return
    source, token = next(iter(unknown.items()))
    text = str(student.tokenizer.convert_ids_to_tokens(token))
    raise messages.unshared_token(num_places=len(unknown), first=source, token=token, text=text)
