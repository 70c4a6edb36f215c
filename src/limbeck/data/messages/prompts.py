"""What is said about rendered prompts and answers to learn."""

from __future__ import annotations

from limbeck.errors import DataError, FaultText, Text, error, fault, note

__all__: list[str] = []


@error(DataError, "data.prompt-too-long")
def prompts_too_long(*, num: int, num_rows: int, limit: int, listing: str) -> Text:
    return Text(
        given="{num} of {num_rows:prompt is|prompts are} longer than max_prompt_tokens: {limit}:{listing}\n",
        needed="A prompt is never truncated, since that could remove the question itself.",
        fix="Raise max_prompt_tokens, shorten these prompts, or set long_prompts: skip to leave them out.",
    )


@error(DataError, "data.no-prompts-left")
def no_prompts_left(*, num: int, limit: int, listing: str) -> Text:
    return Text(
        given="All {num:prompt|prompts} are longer than max_prompt_tokens: {limit}:{listing}\n",
        needed="A prompt is never truncated, and at least one must be left.",
        fix="Raise max_prompt_tokens or shorten these prompts.",
    )


@note("data.prompts-skipped")
def prompts_skipped(*, limit: int, rows: str) -> str:
    return "Skipped because they are longer than max_prompt_tokens: {limit}: {rows}."


@fault("data.answer-missing")
def answer_missing() -> FaultText:
    return FaultText(
        given="the row has no answer", expected="an assistant turn at the end of messages, or a column answer"
    )


@error(DataError, "data.answer-stop-inside")
def answer_stop_inside(*, listing: str) -> Text:
    return Text(
        given="The answers of these rows contain a stop token before their end:{listing}\n",
        needed="The student would learn to stop in the middle of an answer.",
        fix="Remove control tokens from the text of the answers.",
    )


@note("data.held-out-answers-skipped")
def held_out_answers_skipped(*, rows: str) -> str:
    return "Left out because their prompts are held out: {rows}."
