"""What is known of a run before a weight is read, cheapest checks first.

    1. configurations and tokenizers   do the models split text alike, what ends an answer, how the teacher is asked
    2. prompts                         rows, held-out split, rendered once to ids; given answers as targets

Whatever is wrong with prompts or pair is said here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from limbeck.data.chat import RenderedPrompts
from limbeck.data.dialogue import NO_LIMIT, Dialogue, make_dialogue
from limbeck.data.prompt import Prompt, PromptRow, Targets
from limbeck.data.row_errors import RowErrors, short_json
from limbeck.data.rows import RowSet, read_rows
from limbeck.data.split import Split, split_held_out
from limbeck.data.stops import StopSet, compare_stops, stop_ids
from limbeck.data.targets import target_rows, targets_from_references, without_held_out
from limbeck.data.templates import RENDER_ERRORS, Template, choose_template, describe_refusal, render
from limbeck.errors import DataError, LimbeckError, ModelError, Refusal
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
class Pair:
    """The models by their configurations and tokenizers.

    `dialogue` is the student's. `teacher_dialogue` is that of a local teacher, None for any other: in the student's
    template where the teacher also scores, in its own elsewhere. Where no teacher scores, the vocabulary is the
    student's own.
    """

    student_ref: ModelRef
    teacher_ref: ModelRef | None
    vocabulary: VocabularyComparison
    dialogue: Dialogue
    teacher_dialogue: Dialogue | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Material(Pair):
    """The pair and the prompts rendered: all that can be known without weights.

    `targets` and `held_out_targets` are the answers that stand beside the prompts, where the route learns them; `own`
    are people's answers beside the teacher's word, and `examples` what a teacher is shown. `answer_limit` bounds the
    answers of an evaluation, `longest_answer` those of the whole run. `num_skipped` rows could not be used.
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
    """Compare the pair and render the prompts; a `template` that is given stands for the one that the recipe names.

    Where a template writes the date, it is that of `read_at`, or today's.

    Raises:
        LimbeckError: the first thing that stands in the way; see the rooms that this calls.
    """
    pair = compare_pair(recipe, template, read_at or datetime.now().isoformat(timespec="seconds"))
    faults = RowErrors(Path(recipe.prompts).name, skippable=recipe.bad_rows == "refuse")
    rows = read_rows(Path(recipe.prompts), faults)
    num_rows = len(rows.rows) + faults.num_rows
    if recipe.bad_rows == "refuse":
        faults.raise_if_any()
    split = split_held_out(rows.rows, Path(recipe.held_out) if isinstance(recipe.held_out, str) else recipe.held_out)
    notes = [*rows.notes, *split.notes, *pair.notes]
    targets = held_out_targets = own = own_sha256 = None
    if recipe.route == "supervised":
        train, targets = _given(split.train, split, pair, recipe, notes, faults)
        held_out = render_rows(target_rows(split.held_out, "last_turn", faults), pair, recipe, faults)
        held_out_targets = targets_from_references(held_out.prompts, pair.dialogue)
    else:
        train, held_out = (render_rows(part, pair, recipe, faults) for part in (split.train, split.held_out))
    if recipe.bad_rows == "refuse":
        faults.raise_if_any()
    if num_skipped := faults.num_rows:
        notes.append(f"Skipped {num_skipped} of {num_rows} rows, kept the rest:{faults.as_list()}")
    if (num := len(train.prompts)) < recipe.prompts_per_step:
        notes.append(f"A step takes {recipe.prompts_per_step} prompts and there are {num}: they come again within it.")
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
        _refuse_no_room_to_write(pair, recipe, prompts, examples)
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
        longest_answer=max([answer_limit, _writing_limit(recipe), *(each.longest_answer for each in given)]),
    )


class _Reader(NamedTuple):
    """A model that is here, by what it reads with."""

    ref: ModelRef
    tokenizer: PreTrainedTokenizerBase


def compare_pair(recipe: Recipe, template: Template | None = None, read_at: str | None = None) -> Pair:
    """The two models by their tokenizers: where the teacher scores, each id must name one token."""
    workspace = Path(recipe.workspace)
    student_ref = parse_ref(recipe.student, workspace=workspace)
    teacher_ref = None if recipe.teacher is None else parse_ref(recipe.teacher, workspace=workspace)
    student, teacher = _Reader(student_ref, load_tokenizer(student_ref)), None
    if teacher_ref is not None and teacher_ref.kind != "hosted":
        teacher = _Reader(teacher_ref, load_tokenizer(teacher_ref))
    vocabulary = _shared_vocabulary(student, teacher if teacher is not None and recipe.scores else student)
    template = template or replace(_template(recipe.template, student, teacher), read_at=read_at)
    dialogue = _dialogue(student, template, recipe.template_options, vocabulary.num_shared)
    teacher_dialogue, notes = None, dialogue.stop.notes
    if teacher is not None and recipe.scores:
        positions = num_positions(teacher.ref) or NO_LIMIT
        teacher_dialogue = replace(dialogue, tokenizer=teacher.tokenizer, num_positions=positions)
        notes = (*vocabulary.notes, *notes, *_teachers_stops(dialogue.stop, student, teacher))
    elif teacher is not None:
        teacher_dialogue = _own_words(teacher, template, recipe)
    return Pair(student_ref, teacher_ref, vocabulary, dialogue, teacher_dialogue, notes)


def _shared_vocabulary(student: _Reader, teacher: _Reader) -> VocabularyComparison:
    rows = [int(load_config(each.ref).get_text_config().vocab_size) for each in (student, teacher)]
    return compare_vocabularies(
        student.tokenizer,
        teacher.tokenizer,
        student_rows=rows[0],
        teacher_rows=rows[1],
        student_name=student.ref.text,
        teacher_name=teacher.ref.text,
    )


def _template(choice: str, student: _Reader, teacher: _Reader | None) -> Template:
    own, name = (None, "no teacher") if teacher is None else (teacher.tokenizer, teacher.ref.text)
    return choose_template(choice, student.tokenizer, own, student_name=student.ref.text, teacher_name=name)


def _dialogue(reader: _Reader, template: Template, options: Mapping[str, object], num_real: int) -> Dialogue:
    generation, positions = load_generation_config(reader.ref), num_positions(reader.ref)
    return make_dialogue(reader.tokenizer, generation, template, options, num_real=num_real, num_positions=positions)


def _own_words(teacher: _Reader, students_template: Template, recipe: Recipe) -> Dialogue:
    """The teacher by its own template and stop tokens, as its makers meant it to be asked."""
    num_real = _shared_vocabulary(teacher, teacher).num_shared
    choice = "none" if recipe.template == "none" else "student"
    template = replace(_template(choice, teacher, None), read_at=students_template.read_at)
    options = recipe.template_options if template.sha256 == students_template.sha256 else {}
    return _dialogue(teacher, template, options, num_real)


def _teachers_stops(stop: StopSet, student: _Reader, teacher: _Reader) -> tuple[str, ...]:
    """Notes on how the teacher ends its turns by its own template, which the run itself may not use at all."""
    if teacher.tokenizer.chat_template is None:
        return ()
    name = teacher.ref.text
    try:
        own = _template("teacher", student, teacher)
        own_stop = stop_ids(teacher.tokenizer, load_generation_config(teacher.ref), own, {})
    except LimbeckError as error:
        return (f"How {name} ends a turn by its own template could not be found out: {error.given}",)
    return compare_stops(student.tokenizer, stop, own_stop, student_name=student.ref.text, teacher_name=name)


def _given(
    rows: Sequence[PromptRow],
    split: Split,
    pair: Pair,
    recipe: Recipe,
    notes: list[str],
    faults: RowErrors | None = None,
) -> tuple[RenderedPrompts, Targets]:
    """Rows that carry answers, without what is held out, rendered and with their answers as targets."""
    rendered = render_rows(_kept(target_rows(rows, recipe.train_on, faults), split, notes), pair, recipe, faults)
    targets = targets_from_references(rendered.prompts, pair.dialogue)
    num_tokens = sum(map(len, targets.answers.values()))
    notes.append(f"{len(targets.answers)} given answers are learnt, {num_tokens} tokens with their ends.")
    return rendered, targets


def _kept(rows: Sequence[PromptRow], split: Split, notes: list[str]) -> tuple[PromptRow, ...]:
    kept, left_out = without_held_out(rows, split.held_out)
    notes += left_out
    if not kept:
        raise DataError(
            "data.nothing-left",
            given=f"All {len(rows)} answers, from {rows[0].source} on, are to prompts that are held out.",
            needed="What the run is judged by is never learnt nor shown to the teacher.",
            fix="Give answers to other prompts, or hold out others.",
        )
    return kept


def render_rows(
    rows: Sequence[PromptRow], pair: Pair, recipe: Recipe, faults: RowErrors | None = None
) -> RenderedPrompts:
    """Rows as the student reads them; with `faults`, without those that the template refuses."""
    return pair.dialogue.render(
        rows, max_prompt_tokens=recipe.max_prompt_tokens, on_long=recipe.long_prompts, errors=faults
    )


def num_positions(ref: ModelRef) -> int | None:
    """The longest text that a model was made for. Learned positions end there; beyond it rotary ones are guesses."""
    return max_positions(load_config(ref))


def _writing_limit(recipe: Recipe) -> int:
    return recipe.max_teacher_tokens if recipe.answers_written else 0


def _answer_limit(recipe: Recipe, pair: Pair, prompts: Sequence[Prompt], given: Sequence[Targets]) -> int:
    """The longest answer to a held-out prompt. Raises ModelError where prompt and answer have no place in a model."""
    longest_prompt = max(len(prompt.ids) for prompt in prompts)
    for targets in given:
        longest = max(targets.prompts, key=lambda prompt: len(prompt.ids) + len(targets.answer_to(prompt)))
        num_answer = len(targets.answer_to(longest))
        _refuse_too_long(pair.student_ref, len(longest.ids), num_answer, f"the answer of {longest.source}")
    if recipe.route == "supervised":
        longest_answer, positions = max(targets.longest_answer for targets in given), num_positions(pair.student_ref)
        return longest_answer if positions is None else max(1, min(longest_answer, positions - longest_prompt))
    limits = {"max_teacher_tokens": _writing_limit(recipe)}
    if recipe.route == "on-policy":
        limits["max_practice_tokens"] = recipe.max_practice_tokens
    setting = max(limits, key=lambda name: limits[name])
    for ref in (pair.student_ref, pair.teacher_ref if recipe.scores else None):
        if ref is not None:
            _refuse_too_long(ref, longest_prompt, limits[setting], setting)
    return recipe.max_practice_tokens if recipe.route == "on-policy" else recipe.max_teacher_tokens


def _refuse_no_room_to_write(
    pair: Pair, recipe: Recipe, prompts: Sequence[Prompt], examples: Sequence[PromptRow]
) -> None:
    """A teacher here reads each prompt by its own template, behind the examples, and needs places for its answer."""
    if pair.teacher_dialogue is None or pair.teacher_ref is None:
        return
    rows = [PromptRow(with_examples(prompt.messages, examples), None, prompt.source) for prompt in prompts]
    rendered = pair.teacher_dialogue.render(rows)
    longest = max(len(prompt.ids) for prompt in rendered.prompts)
    _refuse_too_long(pair.teacher_ref, longest, recipe.max_teacher_tokens, "max_teacher_tokens")


def _refuse_too_long(ref: ModelRef, num_prompt: int, num_answer: int, answer: str) -> None:
    """Every position of a prompt and its answer needs a place in the model."""
    limit = num_positions(ref)
    if limit is not None and num_prompt + num_answer > limit:
        raise ModelError(
            "model.too-short",
            given=f"A prompt of {num_prompt} tokens and {answer} ({num_answer}) take {num_prompt + num_answer} places; "
            f"{ref.text} has {limit} positions.",
            needed="Every position of prompt and answer needs a place in both models.",
            fix="Set max_prompt_tokens lower with long_prompts: skip"
            + (f", or keep {answer} to at most {limit - num_prompt}." if limit > num_prompt else "."),
        )


def _template_difference(pair: Pair, prompts: Sequence[Prompt], recipe: Recipe) -> Iterator[str]:
    """How the teacher's own template writes the first prompt that it writes otherwise than the student reads it."""
    teacher, ref, students = pair.teacher_dialogue, pair.teacher_ref, pair.dialogue.template
    if teacher is None or ref is None or teacher.tokenizer.chat_template is None or recipe.template == "none":
        return
    own = replace(_template("student", _Reader(ref, teacher.tokenizer), None), read_at=students.read_at)
    if own.sha256 == students.sha256:
        return
    for prompt in prompts[:NUM_COMPARED]:
        try:
            text = render(teacher.tokenizer, own, prompt.messages, {}, opened=True)
        except RENDER_ERRORS as error:
            text = describe_refusal(error)
        if text != prompt.text:
            theirs, ours = (short_json(part, LONGEST_SHOWN) for part in _differing(text, prompt.text))
            asked = "Both models read the student's text" if recipe.scores else "The teacher is asked in its own"
            yield (
                f"{ref.text} has another template: in {prompt.source} it writes {theirs} where the student "
                f"reads {ours}. {asked}; template: teacher makes both the teacher's."
            )
            return


def _differing(one: str, other: str) -> tuple[str, str]:
    """Two texts without what they begin with alike, and without what they end with alike."""
    start = _num_alike(one, other)
    one, other = one[start:], other[start:]
    end = _num_alike(one[::-1], other[::-1])
    return one[: len(one) - end], other[: len(other) - end]


def _num_alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    differing = (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def refuse_unshared(prompts: Sequence[Prompt], pair: Pair) -> None:
    """Both models must know every id of the prompts and every stop token."""
    teacher, student = pair.teacher_dialogue, pair.dialogue
    assert teacher is not None, "only a teacher with the student's vocabulary scores"
    known = {token for token in teacher.tokenizer.get_vocab().values() if token < pair.vocabulary.num_shared}
    places = [("the stop tokens", student.stop.ids), *((prompt.source, prompt.ids) for prompt in prompts)]
    unknown = {source: next(token for token in ids if token not in known) for source, ids in places if set(ids) - known}
    if not unknown:
        return
    source, token = next(iter(unknown.items()))
    raise Refusal(
        "vocabulary.unshared-token",
        given=f"{len(unknown)} places use ids that the teacher does not know; the first is {source} with id {token}, "
        f"{student.tokenizer.convert_ids_to_tokens(token)!r}.",
        needed="The teacher has to read every token of a prompt and to judge every token of an answer.",
        fix="Choose a template without this token (template: teacher, or a file), or a teacher that knows it.",
    )
