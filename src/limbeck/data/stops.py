"""Where an answer ends: one explicit set of stop ids per run, and the id that fills unused places of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import GenerationConfig, PreTrainedTokenizerBase

from limbeck.data.templates import Template, probe_template
from limbeck.errors import ModelError

__all__ = ["StopSet", "compare_stops", "pad_id", "stop_ids"]


@dataclass(frozen=True)
class StopSet:
    """Ids that end an answer; `end_of_turn` is the template's, None where it ends a turn with no single token."""

    ids: tuple[int, ...]
    end_of_turn: int | None
    notes: tuple[str, ...]


def stop_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None, template: Template
) -> StopSet:
    """Every stop id of the generation config, and the token with which the template ends a turn.

    Where a config names none, the tokenizer's end-of-sequence token serves. Raises ModelError when an id does not
    exist or nothing ends an answer.
    """
    notes: list[str] = []
    configured = _configured(tokenizer, generation_config)
    end_of_turn, turn_end = _end_of_turn(tokenizer, template, configured)
    ids = list(configured)
    if not ids and tokenizer.eos_token_id is not None:
        ids.append(int(tokenizer.eos_token_id))
        notes.append(f"The model's config names no stop token; its tokenizer's serves: {_named(tokenizer, ids)}.")
    if end_of_turn is None:
        after = f"the text {turn_end[:20]!r}" if turn_end.strip() else "nothing"
        notes.append(
            f"The template ends a turn with {after}, not with a token: answers stop at {_named(tokenizer, ids)}."
        )
    elif end_of_turn not in ids:
        others = f"The student's own stop token is {_named(tokenizer, ids)}, but the" if ids else "The"
        ids.append(end_of_turn)
        notes.append(
            f"{others} template ends a turn with {_named(tokenizer, [end_of_turn])}: answers stop at "
            f"{'either' if len(ids) > 1 else 'it'}, and it is saved as a stop token of the trained model."
        )
    if not ids:
        raise ModelError(
            "model.stop-missing",
            given="Neither the generation config, nor the tokenizer, nor the chat template names a token that ends an "
            "answer.",
            needed="Without one every answer runs to its limit, and the student never learns to stop.",
            fix="Set template: FILE with a template that ends each turn with a token of the student's vocabulary.",
        )
    return StopSet(tuple(ids), end_of_turn, tuple(notes))


def compare_stops(
    tokenizer: PreTrainedTokenizerBase, student: StopSet, teacher: StopSet, *, student_name: str, teacher_name: str
) -> tuple[str, ...]:
    """Notes on stop sets that differ, each with what to set. `teacher` is the teacher's set under its own template."""
    notes: list[str] = []
    end = teacher.end_of_turn
    if end is not None and end not in student.ids:
        notes.append(
            f"{teacher_name} ends a turn with {_named(tokenizer, [end])}, at which answers of {student_name} do not "
            f"stop ({_named(tokenizer, student.ids)}): answers then drift towards the limit. Set template: teacher."
        )
    if student.end_of_turn is not None and student.end_of_turn not in teacher.ids:
        notes.append(
            f"Answers end with {_named(tokenizer, [student.end_of_turn])}, which {teacher_name} does not use to stop "
            f"({_named(tokenizer, teacher.ids)}): it may rate ending there as unlikely. Set template: teacher."
        )
    return tuple(notes)


def pad_id(tokenizer: PreTrainedTokenizerBase, stop: StopSet, *, num_rows: int | None = None) -> int:
    """An existing id for unused places: the tokenizer's padding token, or else a stop id; never a new row.

    `num_rows` is the number of embedding rows; a padding token without a row does not serve. Which id it is changes
    nothing: masks follow from lengths, so padding with a stop id hides no real stop.
    """
    own = tokenizer.pad_token_id
    limit = len(tokenizer) if num_rows is None else num_rows
    if own is not None and 0 <= int(own) < limit:
        return int(own)
    return stop.ids[0]


def _configured(tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None) -> list[int]:
    found = None if generation_config is None else generation_config.eos_token_id
    ids = [] if found is None else list(found) if isinstance(found, (list, tuple)) else [found]
    for stop in ids:
        if not isinstance(stop, int) or not 0 <= stop < len(tokenizer):
            raise ModelError(
                "model.stop-unknown",
                given=f"The generation config stops at id {stop}; the tokenizer has {len(tokenizer)} entries.",
                needed="A stop id that no token has is never written, so answers would not stop.",
                fix="Correct eos_token_id in the model's generation_config.json.",
            )
    return list(dict.fromkeys(ids))


def _end_of_turn(
    tokenizer: PreTrainedTokenizerBase, template: Template, configured: Sequence[int]
) -> tuple[int | None, str]:
    """The control token right after an answer (blanks may stand before it), and the text after an answer."""
    turn_end = probe_template(tokenizer, template, {}).turn_end
    added = tokenizer.added_tokens_decoder
    for token in tokenizer(turn_end, add_special_tokens=False)["input_ids"]:
        if token in configured or (token in added and added[token].special):
            return int(token), turn_end
        if str(tokenizer.decode([token])).strip():
            break
    return None, turn_end


def _named(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    if not ids:
        return "no token"
    return " or ".join(f"{tokenizer.convert_ids_to_tokens(stop)} (id {stop})" for stop in ids)
