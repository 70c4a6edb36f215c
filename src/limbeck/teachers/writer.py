"""A teacher that writes: how it is asked, what it hands back, and which of its answers are fit to learn from.

Whoever fulfils `Writer` can teach off-policy, whatever its vocabulary and wherever it runs: it gets conversations and
gives text. Every answer is stored as it came, with a label where it is not learnt:

    cut-off     reached the longest answer, so its end is missing
    refused     the teacher declined, by a flag or in words
    empty       blanks and nothing else
    duplicate   the same words to the same conversation as an earlier answer
    stop-inside holds a control token at which the student would stop
    too-long    longer, in the student's tokens, than the student has positions for
    rejected    the teacher takes no such question, and says why
    failed      none came yet: its question is asked again at the next start
    others      what `limbeck.teachers.reply` finds in an endpoint's reply
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from limbeck.data.dialogue import Dialogue
from limbeck.data.prompt import Message, Prompt, PromptRow
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Request
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.teachers import hosted

__all__ = ["Answer", "HostedWriter", "LocalWriter", "Question", "Writer", "ask", "rows_of", "with_examples"]

_REFUSAL = re.compile(
    r"((i'm|i am)? ?(very |so )?(sorry|afraid),? ?(but )?)?"
    r"(as an ai\b|(i can ?not|i can't|i won't|(i am|i'm) (unable|not able) to) "
    r"(help|assist|comply|fulfil|((answer|provide|do|discuss) (that|this))))",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Question:
    """One answer to write. Two questions with one conversation differ in `key`, from which the draws follow."""

    messages: tuple[Message, ...]
    key: int


@dataclass(frozen=True)
class Answer:
    """What a teacher wrote, with a label if the teacher gives one, and why; `ids` are its own tokens, if it tells."""

    text: str
    cut_off: bool
    label: str | None = None
    why: str | None = None
    ids: tuple[int, ...] | None = None


class Writer(Protocol):
    """Writes one answer to each question, in their order."""

    def write(self, questions: Sequence[Question]) -> list[Answer]: ...


@dataclass(frozen=True)
class LocalWriter:
    """A model in this process, asked in its dialogue."""

    engine: Engine
    dialogue: Dialogue
    temperature: float
    max_tokens: int

    def write(self, questions: Sequence[Question]) -> list[Answer]:
        rows = [PromptRow(asked.messages, None, f"question {place}") for place, asked in enumerate(questions, start=1)]
        model = self.engine.model
        prompts = self.dialogue.render(rows, max_prompt_tokens=self.dialogue.num_positions - self.max_tokens).prompts
        asked = zip(prompts, questions, strict=True)
        requests = [Request(prompt.ids, question.key, self.max_tokens) for prompt, question in asked]
        return [
            Answer(model.text(done.text_ids), done.cut_off, ids=done.ids)
            for done in self.engine.generate(requests, Sampling(self.temperature))
        ]


@dataclass(frozen=True)
class HostedWriter:
    """A hosted teacher that writes for a run, whose log hears how far it is and what it has cost.

    A question is known by its conversation, whatever student it is asked for; the second of one is its second sample.
    """

    teacher: hosted.HostedTeacher
    max_tokens: int
    temperature: float
    seed: int
    log: Callable[..., None]

    def write(self, questions: Sequence[Question]) -> list[Answer]:
        numbers: Counter[tuple[Message, ...]] = Counter()
        asked: list[tuple[hosted.Turns, int]] = []
        for question in questions:
            turns = [{"role": turn.role, "content": turn.content} for turn in question.messages]
            asked.append((turns, numbers[question.messages]))
            numbers[question.messages] += 1
        found = self.teacher.write(
            asked, max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed, tell=self._tell
        )
        answers = [_written(each) for each in found]
        cost = self.teacher.ledger.spent()
        money = f" and {cost.nano * 1e-9:.6g} money" if cost.nano else ""
        self.log("note", text=f"The run has spent {cost.calls} calls, {cost.tokens} tokens{money} on its teacher.")
        return answers

    def _tell(self, text: str) -> None:
        self.log("phase", phase=f"teacher writes answers: {text}")


def _written(found: hosted.Answer | hosted.Failure) -> Answer:
    if isinstance(found, hosted.Failure):
        label = "rejected" if found.kind == "rejected" else "failed"
        return Answer("", False, label, f"{found.kind}: {found.text}")
    label = None if found.label == "ok" else found.label
    return Answer(found.text, found.label == "cut-off", label)


def ask(
    writer: Writer, prompts: Sequence[Prompt], examples: Sequence[PromptRow], *, num_answers: int, seed: int
) -> list[dict[str, Any]]:
    """`num_answers` answers to each prompt as rows to store, each with its label, None if it is fit to learn from.

    `examples` stand before each prompt as turns of the conversation, after its system turn; they are part of the
    question and of nothing else.
    """
    asked = [(prompt, sample) for prompt in prompts for sample in range(num_answers)]
    questions = [
        Question(
            with_examples(prompt.messages, examples),
            stream_key(seed, Purpose.TEACHER, 0, prompt.content_hash, prompt.occurrence, sample),
        )
        for prompt, sample in asked
    ]
    rows: list[dict[str, Any]] = []
    seen: set[tuple[tuple[Message, ...], str]] = set()
    for (prompt, sample), answer in zip(asked, writer.write(questions), strict=True):
        identity = (prompt.messages, answer.text.strip())
        rows.append(
            {
                "source": prompt.source,
                "sample": sample,
                "prompt": [{"role": turn.role, "content": turn.content} for turn in prompt.messages],
                "answer": answer.text,
                "ids": None if answer.ids is None else list(answer.ids),
                "cut_off": answer.cut_off,
                "label": answer.label or _label(answer, identity in seen),
                "why": answer.why,
            }
        )
        seen.add(identity)
    return rows


def with_examples(messages: tuple[Message, ...], examples: Sequence[PromptRow]) -> tuple[Message, ...]:
    """What a teacher is asked: the conversation, behind its system turn the examples as turns of it."""
    num_system = int(messages[0].role == "system")
    shown = [turn for row in examples for turn in (*row.messages, Message("assistant", row.reference or ""))]
    return (*messages[:num_system], *(turn for turn in shown if turn.role != "system"), *messages[num_system:])


def _label(answer: Answer, repeated: bool) -> str | None:
    if _REFUSAL.match(answer.text.strip().replace("\u2019", "'")):
        return "refused"
    if not answer.text.strip():
        return "empty"
    if answer.cut_off:
        return "cut-off"
    return "duplicate" if repeated else None


def rows_of(stored: Sequence[Mapping[str, Any]]) -> list[PromptRow]:
    """Stored answers as rows with a reference; the same as a file of them would be read."""
    found: list[PromptRow] = []
    for row in stored:
        messages = tuple(Message(turn["role"], turn["content"]) for turn in row["prompt"])
        found.append(PromptRow(messages, row["answer"], row["source"]))
    return found
