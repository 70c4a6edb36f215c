"""Where an answer ends: one explicit set of stop ids per run, and the padding id of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import GenerationConfig
from transformers import PreTrainedTokenizerBase as Tokenizer

from limbeck.data.messages import templates as messages
from limbeck.data.templates import Template, TemplateOptions, probe_template

__all__ = ["StopSet", "compare_stops", "pad_id", "stop_ids"]


@dataclass(frozen=True)
class StopSet:
    """Ids that end an answer; `end_of_turn` is the one that the template writes, None if it writes no such token."""

    ids: tuple[int, ...]
    end_of_turn: int | None
    notes: tuple[str, ...]


def stop_ids(
    tokenizer: Tokenizer, generation_config: GenerationConfig | None, template: Template, options: TemplateOptions
) -> StopSet:
    """Every stop id of the generation config (or else the tokenizer's), and the token that ends a turn.

    Raises ModelError if there is no such token.
    """
    notes: list[str] = []
    found = None if generation_config is None else generation_config.eos_token_id
    configured = found is not None and found != []
    if not configured:
        found = tokenizer.eos_token_id
    ids = list(dict.fromkeys(found if isinstance(found, (list, tuple)) else [] if found is None else [found]))
    if ids and not configured:
        notes.append(messages.stop_from_tokenizer(tokens=_named(tokenizer, ids)))
    turn_end = probe_template(tokenizer, template, options).turn_end
    end_of_turn = _first_control_token(tokenizer, turn_end, ids)
    if end_of_turn is None:
        if not ids:
            raise messages.stop_missing()
        notes.append(messages.turn_ends_with_text(text=repr(turn_end[:20]), tokens=_named(tokenizer, ids)))
    elif end_of_turn not in ids:
        added = _named(tokenizer, [end_of_turn])
        own = _named(tokenizer, ids)
        notes.append(messages.stop_added(own=own, added=added) if ids else messages.stop_from_template(tokens=added))
        ids.append(end_of_turn)
    return StopSet(tuple(ids), end_of_turn, tuple(notes))


def compare_stops(
    tokenizer: Tokenizer, student: StopSet, teacher: StopSet, *, student_name: str, teacher_name: str
) -> tuple[str, ...]:
    """Notes on differences of the stop sets. `teacher` is the teacher's set with its own template."""
    notes: list[str] = []
    if (end := teacher.end_of_turn) is not None and end not in student.ids:
        named = _named(tokenizer, [end])
        notes.append(messages.teacher_ends_differently(teacher=teacher_name, token=named, student=student_name))
    if (end := student.end_of_turn) is not None and end not in teacher.ids:
        notes.append(messages.student_ends_differently(token=_named(tokenizer, [end]), teacher=teacher_name))
    return tuple(notes)


def pad_id(tokenizer: Tokenizer, stop: StopSet, *, num_rows: int | None = None) -> int:
    """The id that pads a batch: the tokenizer's padding token, or else a stop id; never a new one.

    `num_rows` is the number of embedding rows; a padding token without a row is not used. The choice has no effect on
    results: masks follow from lengths, so padding with a stop id hides no real stop.
    """
    own = tokenizer.pad_token_id
    limit = len(tokenizer) if num_rows is None else num_rows
    return int(own) if own is not None and 0 <= int(own) < limit else stop.ids[0]


def _first_control_token(tokenizer: Tokenizer, text: str, stops: Sequence[int]) -> int | None:
    """The stop or special token at the beginning of a text, blanks before it skipped; None if there is none."""
    added = tokenizer.added_tokens_decoder
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        if token in stops or (token in added and added[token].special):
            return int(token)
        if str(tokenizer.decode([token])).strip():
            return None
    return None


def _named(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    names = [f"{tokenizer.convert_ids_to_tokens(stop)} (id {stop})" for stop in ids]
    return " or ".join(names)
