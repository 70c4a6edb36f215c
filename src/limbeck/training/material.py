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
from typing import Any

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
from limbeck.data.faults import Faults, shown
from limbeck.data.rows import Row, RowSet, read_rows
from limbeck.data.split import Split, split_held_out
from limbeck.data.targets import Targets, given_answers, rows_to_learn, without_held_out
from limbeck.data.templates import RENDER_ERRORS, describe_refusal, render
from limbeck.errors import DataError, LimbeckError, ModelError, Refusal
from limbeck.models.load import load_config, load_generation_config, load_tokenizer
from limbeck.models.refs import ModelRef, parse_ref
from limbeck.models.vocabulary import VocabularyComparison, compare_vocabularies
from limbeck.recipe.schema import Recipe

__all__ = ["Asking", "Material", "compare_pair", "num_positions", "prepare_material", "refuse_unshared", "render_rows"]

NO_LIMIT = 2**31
NUM_COMPARED = 100
LONGEST_SHOWN = 300


@dataclass(frozen=True)
class Asking:
    """How a local teacher is asked for text: in the student's template where it also scores, in its own elsewhere."""

    template: Template
    options: Mapping[str, object]
    stop: StopSet
    pad_id: int
    num_real: int
    max_prompt_tokens: int


@dataclass(frozen=True)
class Pair:
    """The models by their configurations and tokenizers. Without a teacher, the vocabulary is the student's own."""

    student_ref: ModelRef
    teacher_ref: ModelRef | None
    tokenizer: PreTrainedTokenizerBase
    teacher_tokenizer: PreTrainedTokenizerBase | None
    vocabulary: VocabularyComparison
    template: Template
    stop: StopSet
    pad_id: int
    asking: Asking | None
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
    examples: tuple[Row, ...]
    answer_limit: int
    longest_answer: int

    @property
    def longest_prompt(self) -> int:
        own = () if self.own is None else self.own.prompts
        return max(len(prompt.ids) for prompt in (*self.train.prompts, *self.held_out.prompts, *own))


def prepare_material(recipe: Recipe, read_at: str | None = None) -> Material:
    """Compare the pair and render the prompts. Where a template writes the date, it is that of `read_at`, or today's.

    Raises:
        LimbeckError: the first thing that stands in the way; see the rooms that this calls.
    """
    pair = compare_pair(recipe, read_at or datetime.now().isoformat(timespec="seconds"))
    faults = Faults(Path(recipe.prompts).name, or_else=", or set bad_rows: skip to leave them out")
    rows = read_rows(Path(recipe.prompts), faults)
    num_unread = faults.num_rows
    if recipe.bad_rows == "refuse":
        faults.raise_if_any()
    split = split_held_out(rows.rows, Path(recipe.held_out) if isinstance(recipe.held_out, str) else recipe.held_out)
    targets = held_out_targets = None
    notes = [*rows.notes, *split.notes, *pair.notes]
    if recipe.route == "supervised":
        train, targets = _given(split.train, split, pair, recipe, notes, faults)
        held_out = render_rows(rows_to_learn(split.held_out, "last_turn", faults), pair, recipe, faults)
        held_out_targets = given_answers(held_out, pair.tokenizer, pair.stop)
    else:
        train, held_out = (render_rows(part, pair, recipe, faults) for part in (split.train, split.held_out))
    if recipe.bad_rows == "refuse":
        faults.raise_if_any()
    if num_skipped := faults.num_rows:
        notes.append(f"Skipped {num_skipped} of {len(rows.rows) + num_unread} rows, kept the rest:{faults.told()}")
    own_rows = None if recipe.own_answers is None else read_rows(Path(recipe.own_answers.file))
    own = None
    if own_rows is not None and recipe.own_answers is not None:
        own = replace(_given(own_rows.rows, split, pair, recipe, notes)[1], weight=recipe.own_answers.weight)
    examples: tuple[Row, ...] = ()
    if recipe.teacher_examples is not None:
        examples = _kept(rows_to_learn(read_rows(Path(recipe.teacher_examples)).rows, "last_turn"), split, notes)
    prompts = (*train.prompts, *held_out.prompts)
    if recipe.scores:
        refuse_unshared(prompts, pair)
    given = [each for each in (targets, held_out_targets, own) if each is not None]
    for learnt in filter(None, (targets, own)):
        num_tokens = sum(map(len, learnt.answers.values()))
        notes.append(f"{len(learnt.answers)} given answers are learnt, {num_tokens} tokens with their ends.")
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
        own_sha256=None if own_rows is None else own_rows.sha256,
        num_skipped=num_skipped,
        examples=examples,
        answer_limit=answer_limit,
        longest_answer=max([answer_limit, _writing_limit(recipe), *(each.longest_answer for each in given)]),
    )


def compare_pair(recipe: Recipe, read_at: str | None = None) -> Pair:
    """The two models by their tokenizers: where the teacher scores, each id must name one token."""
    workspace = Path(recipe.workspace)
    student_ref = parse_ref(recipe.student, workspace=workspace)
    teacher_ref = None if recipe.teacher is None else parse_ref(recipe.teacher, workspace=workspace)
    tokenizer, teacher_tokenizer = load_tokenizer(student_ref), None
    if teacher_ref is not None and teacher_ref.kind != "hosted":
        teacher_tokenizer = load_tokenizer(teacher_ref)
    names = {
        "student_name": student_ref.text,
        "teacher_name": "no teacher" if teacher_ref is None else teacher_ref.text,
    }
    # a text that is all there is of the teacher is read in the student's own vocabulary
    reader_ref, reader_tokenizer = student_ref, tokenizer
    if recipe.scores and teacher_ref is not None and teacher_tokenizer is not None:
        reader_ref, reader_tokenizer = teacher_ref, teacher_tokenizer
    vocabulary = compare_vocabularies(
        tokenizer,
        reader_tokenizer,
        student_rows=_vocabulary_rows(student_ref),
        teacher_rows=_vocabulary_rows(reader_ref),
        **names,
    )
    template = replace(choose_template(recipe.template, tokenizer, teacher_tokenizer, **names), read_at=read_at)
    stop = stop_ids(tokenizer, load_generation_config(student_ref), template, recipe.template_options)
    fill = pad_id(tokenizer, stop, num_rows=vocabulary.num_shared)
    asking, notes = None, stop.notes
    if recipe.scores and teacher_ref is not None and teacher_tokenizer is not None:
        room = NO_LIMIT if (limit := num_positions(teacher_ref)) is None else limit - _writing_limit(recipe)
        asking = Asking(template, recipe.template_options, stop, fill, vocabulary.num_shared, room)
        stop_notes = _compare_with_teachers_stops(stop, tokenizer, teacher_tokenizer, student_ref, teacher_ref)
        notes = (*vocabulary.notes, *stop.notes, *stop_notes)
    elif teacher_ref is not None and teacher_tokenizer is not None:
        asking = _own_words(teacher_ref, teacher_tokenizer, template, recipe)
    return Pair(
        student_ref=student_ref,
        teacher_ref=teacher_ref,
        tokenizer=tokenizer,
        teacher_tokenizer=teacher_tokenizer,
        vocabulary=vocabulary,
        template=template,
        stop=stop,
        pad_id=fill,
        asking=asking,
        notes=notes,
    )


def _own_words(
    ref: ModelRef, tokenizer: PreTrainedTokenizerBase, students_template: Template, recipe: Recipe
) -> Asking:
    """The teacher by its own template and stop tokens, as its makers meant it to be asked."""
    names = {"student_name": ref.text, "teacher_name": ref.text}
    num_rows = _vocabulary_rows(ref)
    num_real = compare_vocabularies(
        tokenizer, tokenizer, student_rows=num_rows, teacher_rows=num_rows, **names
    ).num_shared
    own_template = choose_template("none" if recipe.template == "none" else "student", tokenizer, None, **names)
    template = replace(own_template, read_at=students_template.read_at)
    options = recipe.template_options if template.sha256 == students_template.sha256 else {}
    stop = stop_ids(tokenizer, load_generation_config(ref), template, options)
    room = NO_LIMIT if (limit := num_positions(ref)) is None else limit - recipe.max_teacher_tokens
    return Asking(template, options, stop, pad_id(tokenizer, stop, num_rows=num_real), num_real, room)


def _given(
    rows: Sequence[Row], split: Split, pair: Pair, recipe: Recipe, notes: list[str], faults: Faults | None = None
) -> tuple[RenderedPrompts, Targets]:
    """Rows that carry answers, without what is held out, rendered and with their answers as targets."""
    learnt = _kept(rows_to_learn(rows, recipe.train_on, faults), split, notes)
    rendered = render_rows(learnt, pair, recipe, faults)
    return rendered, given_answers(rendered, pair.tokenizer, pair.stop)


def _kept(rows: Sequence[Row], split: Split, notes: list[str]) -> tuple[Row, ...]:
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


def render_rows(rows: Sequence[Row], pair: Pair, recipe: Recipe, faults: Faults | None = None) -> RenderedPrompts:
    """Rows as the student reads them; with `faults`, without those that the template refuses."""
    return render_prompts(
        rows,
        pair.tokenizer,
        pair.template,
        options=recipe.template_options,
        max_prompt_tokens=recipe.max_prompt_tokens,
        on_long=recipe.long_prompts,
        faults=faults,
    )


def num_positions(ref: ModelRef) -> int | None:
    """The longest text that a model was made for. Learned positions end there; beyond it rotary ones are guesses."""
    return load_config(ref).get_text_config().to_dict().get("max_position_embeddings")


def _writing_limit(recipe: Recipe) -> int:
    return recipe.max_teacher_tokens if recipe.answers_written else 0


def _answer_limit(recipe: Recipe, pair: Pair, prompts: Sequence[Prompt], given: Sequence[Targets]) -> int:
    """The longest answer to a held-out prompt. Raises ModelError where prompt and answer have no place in a model."""
    longest_prompt = max(len(prompt.ids) for prompt in prompts)
    positions = num_positions(pair.student_ref)
    for targets in given:
        lengths = [(len(prompt.ids), len(targets.answer_to(prompt)), prompt.source) for prompt in targets.prompts]
        num_prompt, num_answer, source = max(lengths, key=lambda row: row[0] + row[1])
        _refuse_too_long(pair.student_ref, num_prompt, num_answer, f"The answer of {source}", None)
    if recipe.route == "supervised":
        longest = max(targets.longest_answer for targets in given)
        return longest if positions is None else max(1, min(longest, positions - longest_prompt))
    limits = {"max_teacher_tokens": _writing_limit(recipe)}
    if recipe.route == "on-policy":
        limits["max_practice_tokens"] = recipe.max_practice_tokens
    setting = max(limits, key=lambda name: limits[name])
    for ref in (pair.student_ref, pair.teacher_ref):
        if ref is not None and (recipe.scores or ref is pair.student_ref):
            what = "A practice answer" if setting == "max_practice_tokens" else "An answer of the teacher"
            _refuse_too_long(ref, longest_prompt, limits[setting], what, setting)
    return recipe.max_practice_tokens if recipe.route == "on-policy" else recipe.max_teacher_tokens


def _vocabulary_rows(ref: ModelRef) -> int:
    return int(load_config(ref).get_text_config().vocab_size)


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


def _template_difference(pair: Pair, prompts: Sequence[Prompt], recipe: Recipe) -> Iterator[str]:
    """How the teacher's own template writes the first prompt that it writes otherwise than the student reads it."""
    tokenizer, ref = pair.teacher_tokenizer, pair.teacher_ref
    if tokenizer is None or ref is None or tokenizer.chat_template is None or recipe.template == "none":
        return
    own = choose_template("student", tokenizer, None, student_name=ref.text, teacher_name=ref.text)
    if own.sha256 == pair.template.sha256:
        return
    for prompt in prompts[:NUM_COMPARED]:
        try:
            text = render(tokenizer, replace(own, read_at=pair.template.read_at), prompt.messages, {}, opened=True)
        except RENDER_ERRORS as error:
            text = describe_refusal(error)
        if text != prompt.text:
            theirs, ours = (shown(part, LONGEST_SHOWN) for part in _differing(text, prompt.text))
            asked = "Both models read the student's text" if recipe.scores else "The teacher is asked in its own"
            yield (
                f"{ref.text} has another template: in {prompt.source} it writes {theirs} where the student reads "
                f"{ours}. {asked}; template: teacher makes both the teacher's."
            )
            return


def _differing(one: str, other: str) -> tuple[str, str]:
    """Two texts without what they begin with alike, and without what they end with alike."""
    start = next((place for place, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), 0)
    one, other = one[start:], other[start:]
    pairs = zip(reversed(one), reversed(other), strict=False)
    end = next((place for place, pair in enumerate(pairs) if len(set(pair)) > 1), min(len(one), len(other)))
    return one[: len(one) - end], other[: len(other) - end]


def refuse_unshared(prompts: Sequence[Prompt], pair: Pair) -> None:
    """Both models must know every id of the prompts and every stop token."""
    assert pair.teacher_tokenizer is not None, "only a teacher with the student's vocabulary scores"
    num_shared = pair.vocabulary.num_shared
    known = {token for token in pair.teacher_tokenizer.get_vocab().values() if token < num_shared}
    places = [("the stop tokens", pair.stop.ids), *((prompt.source, prompt.ids) for prompt in prompts)]
    unknown = {source: next(token for token in ids if token not in known) for source, ids in places if set(ids) - known}
    if not unknown:
        return
    source, token = next(iter(unknown.items()))
    raise Refusal(
        "vocabulary.unshared-token",
        given=f"{len(unknown)} places use ids that the teacher does not know; the first is {source} with id {token}, "
        f"{pair.tokenizer.convert_ids_to_tokens(token)!r}.",
        needed="The teacher has to read every token of a prompt and to judge every token of an answer.",
        fix="Choose a template without this token (template: teacher, or a file), or a teacher that knows it.",
    )


def _refuse_too_long(ref: ModelRef, num_prompt: int, num_answer: int, what: str, setting: str | None) -> None:
    """Every position of a prompt and its answer needs a place in the model."""
    limit = num_positions(ref)
    if limit is None or num_prompt + num_answer <= limit:
        return
    shorten = f"Set {setting} to at most {limit - num_prompt}, or s" if setting and limit > num_prompt else "S"
    raise ModelError(
        "model.too-short",
        given=f"The longest prompt has {num_prompt} tokens. {what} has up to {num_answer}, together "
        f"{num_prompt + num_answer}; {ref.text} has {limit} positions.",
        needed="Every position of prompt and answer needs a place in both models.",
        fix=f"{shorten}et max_prompt_tokens below {limit} with long_prompts: skip, or leave long answers out.",
    )
