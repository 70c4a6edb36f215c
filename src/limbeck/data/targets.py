"""Reference answers as targets: which turns are learnt, and as which tokens. Answers are tokenised here and only here.

A target is a prompt as in production, the answer as written, and the student's stop token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from limbeck.data.chat import tokenise
from limbeck.data.dialogue import Dialogue
from limbeck.data.faults import Faults, listing, named, places
from limbeck.data.messages import prompts as messages
from limbeck.data.prompt import Prompt, Row, Targets, content_hash
from limbeck.data.stops import StopSet

__all__ = ["given_answers", "make_targets", "rows_to_learn", "without_held_out"]


def rows_to_learn(
    rows: Sequence[Row], which: Literal["last_turn", "all_turns"], faults: Faults | None = None
) -> tuple[Row, ...]:
    """One row for each turn to learn, with the answer as its reference. Raises DataError for rows without an answer.

    With `faults`, these are left out and added there, unless none is left.
    """
    missing = [row for row in rows if not (row.reference or "").strip()]
    if missing:
        found = Faults(missing[0].source.partition(":")[0]) if faults is None else faults
        for row in missing:
            found.add(named(row.source, row.extra), "", messages.answer_missing())
        rows = [row for row in rows if row not in missing]
        if faults is None or not rows:
            found.raise_if_any()
    if which == "last_turn":
        return tuple(rows)
    learnt: list[Row] = []
    for row in rows:
        for place, turn in enumerate(row.messages):
            if turn.role == "assistant" and place > 0:
                source = f"{row.source} turn {place + 1}"
                learnt.append(replace(row, messages=row.messages[:place], reference=turn.content, source=source))
        learnt.append(row)
    return tuple(learnt)


def without_held_out(rows: Sequence[Row], held_out: Sequence[Row]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows whose prompts are not held out, and a note about the others."""
    contents = {row.content_hash for row in held_out}
    # an earlier turn of a conversation may ask what a held-out row asks
    asked = [{content_hash(row.messages[: place + 1]) for place in range(len(row.messages))} for row in rows]
    left_out = [row.source for row, hashes in zip(rows, asked, strict=True) if hashes & contents]
    kept = tuple(row for row, hashes in zip(rows, asked, strict=True) if not hashes & contents)
    return kept, (messages.held_out_answers_skipped(rows=places(left_out)),) if left_out else ()


def given_answers(prompts: Sequence[Prompt], dialogue: Dialogue) -> Targets:
    """The references of prompts as targets. Raises DataError for an answer that a stop token cuts in two."""
    targets, stop = make_targets(prompts, dialogue, [False] * len(prompts)), dialogue.stop
    cut = [prompt.source for prompt in targets.prompts if holds_stop(targets.answer_to(prompt), stop)]
    if cut:
        raise messages.answer_stop_inside(listing=listing(cut))
    return targets


def make_targets(prompts: Sequence[Prompt], dialogue: Dialogue, cut_off: Sequence[bool]) -> Targets:
    """Tokenises the reference of each prompt; one that is not cut off gets the stop token.

    The prompt's ids stay what they are. The answer's are those of the whole text where it begins with the prompt's
    ids, so that a blank between the two is cut as usual, and those of the answer alone elsewhere.
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
    """Whether a stop token stands before the end of an answer."""
    return bool(set(answer[:-1]) & set(stop.ids))
