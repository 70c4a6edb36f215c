"""Reference answers as training targets: which turns, and which tokens. Only this module tokenises answers.

A target is the prompt as in production, the answer unchanged, and the student's stop token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from limbeck.data.chat import tokenise
from limbeck.data.dialogue import Dialogue
from limbeck.data.messages import prompts as messages
from limbeck.data.prompt import Prompt, PromptRow, Targets, content_hash
from limbeck.data.row_errors import RowErrors, indented_lines, row_label, rows_phrase
from limbeck.data.stops import StopSet

__all__ = ["make_targets", "target_rows", "targets_from_references", "without_held_out"]


def target_rows(
    rows: Sequence[PromptRow], which: Literal["last_turn", "all_turns"], errors: RowErrors | None = None
) -> tuple[PromptRow, ...]:
    """One row for each assistant turn to train on, with that turn as its reference answer.

    Raises DataError for rows without an answer. With `errors`, these are left out and reported there, unless no row is
    left.
    """
    missing = [row for row in rows if not (row.reference or "").strip()]
    if missing:
        found = RowErrors(missing[0].source.partition(":")[0]) if errors is None else errors
        for row in missing:
            found.add(row_label(row.source, row.extra), "", messages.answer_missing())
        rows = [row for row in rows if row not in missing]
        if errors is None or not rows:
            found.raise_if_any()
    if which == "last_turn":
        return tuple(rows)
    targets: list[PromptRow] = []
    for row in rows:
        for place, turn in enumerate(row.messages):
            if turn.role == "assistant" and place > 0:
                source = f"{row.source} turn {place + 1}"
                targets.append(replace(row, messages=row.messages[:place], reference=turn.content, source=source))
        targets.append(row)
    return tuple(targets)


def without_held_out(
    rows: Sequence[PromptRow], held_out: Sequence[PromptRow]
) -> tuple[tuple[PromptRow, ...], tuple[str, ...]]:
    """The rows whose prompts are not held out, and a note about the others."""
    contents = {row.content_hash for row in held_out}
    # an earlier user turn of a conversation may be a held-out prompt
    beginnings = [{content_hash(row.messages[: place + 1]) for place in range(len(row.messages))} for row in rows]
    left_out = [row.source for row, hashes in zip(rows, beginnings, strict=True) if hashes & contents]
    kept = tuple(row for row, hashes in zip(rows, beginnings, strict=True) if not hashes & contents)
    return kept, (messages.held_out_answers_skipped(rows=rows_phrase(left_out)),) if left_out else ()


def targets_from_references(prompts: Sequence[Prompt], dialogue: Dialogue) -> Targets:
    """The reference answers of prompts as targets. Raises DataError for a stop token inside an answer."""
    targets, stop = make_targets(prompts, dialogue, [False] * len(prompts)), dialogue.stop
    stopped = [prompt.source for prompt in targets.prompts if holds_stop(targets.answer_to(prompt), stop)]
    if stopped:
        raise messages.answer_stop_inside(listing=indented_lines(stopped))
    return targets


def make_targets(prompts: Sequence[Prompt], dialogue: Dialogue, cut_off: Sequence[bool]) -> Targets:
    """Tokenise the reference answer of each prompt; an answer that is not truncated gets the stop token.

    The ids of the prompt never change. If the ids of prompt and answer as one text begin with them, the rest are the
    answer's, so that a blank between the two is tokenised as usual; otherwise the answer is tokenised alone.
    """
    tokenizer, stop = dialogue.tokenizer, dialogue.stop
    texts = [prompt.reference or "" for prompt in prompts]
    whole = tokenise([prompt.text + text for prompt, text in zip(prompts, texts, strict=True)], tokenizer)
    alone = tokenise(texts, tokenizer)
    end = stop.ids[0] if stop.end_of_turn is None else stop.end_of_turn
    answers: dict[tuple[str, int], tuple[int, ...]] = {}
    for prompt, ids, own_ids, cut in zip(prompts, whole, alone, cut_off, strict=True):
        num = len(prompt.ids)
        answer = ids[num:] if ids[:num] == prompt.ids else own_ids
        answers[prompt.content_hash, prompt.occurrence] = answer if cut else (*answer, end)
    return Targets(tuple(prompts), answers)


def holds_stop(answer: Sequence[int], stop: StopSet) -> bool:
    """Whether an answer contains a stop token before its end."""
    return bool(set(answer[:-1]) & set(stop.ids))
