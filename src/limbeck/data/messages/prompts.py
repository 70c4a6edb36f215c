"""Messages about rendered prompts and reference answers."""

from __future__ import annotations

from limbeck.errors import DataError, FaultText, Text, error, fault, note

__all__: list[str] = []


@error(DataError, "data.prompt-too-long")
def prompts_too_long(*, num: int, num_rows: int, limit: int, listing: str) -> Text:
    return Text(
        given="Prompts longer than max_prompt_tokens ({limit}): {num} of {num_rows}.{listing}\n",
        needed="Limbeck never truncates a prompt, because that could remove the question.",
        fix="Raise max_prompt_tokens, shorten these prompts, or set long_prompts: skip to leave them out.",
    )


@error(DataError, "data.no-prompts-left")
def no_prompts_left(*, num: int, limit: int, listing: str) -> Text:
    return Text(
        given="Prompts longer than max_prompt_tokens ({limit}): {num} of {num}.{listing}\n",
        needed="Limbeck never truncates a prompt, and at least one must fit.",
        fix="Raise max_prompt_tokens or shorten these prompts.",
    )


@note("data.prompts-skipped")
def prompts_skipped(*, limit: int, rows: str) -> str:
    return "Skipped because they are longer than max_prompt_tokens ({limit}): {rows}."


@fault("data.answer-missing")
def answer_missing() -> FaultText:
    return FaultText(
        given="the row has no answer", expected="an assistant turn at the end of messages, or a column named answer"
    )


@error(DataError, "data.answer-stop-inside")
def answer_stop_inside(*, listing: str) -> Text:
    return Text(
        given="The answers of these rows contain a stop token before their end:{listing}\n",
        needed="The student would learn to stop in the middle of an answer.",
        fix="Remove the control tokens from the text of these answers.",
    )


@note("data.held-out-answers-skipped")
def held_out_answers_skipped(*, rows: str) -> str:
    return "Left out because their prompts are held out: {rows}."
