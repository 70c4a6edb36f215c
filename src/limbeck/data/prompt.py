"""Conversations as rows ask them, prompts as models read them, and the answers that are learnt. Data, no behaviour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["Message", "Prompt", "Row", "Targets", "content_hash"]


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Row:
    """A prompt: messages that end with a user turn. `source` is file and line, `extra` the columns not read.

    `others` are reference answers that are as right as the first.
    """

    messages: tuple[Message, ...]
    reference: str | None
    source: str
    extra: Mapping[str, object] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @cached_property
    def content_hash(self) -> str:
        return content_hash(self.messages)


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `occurrence` counts the earlier prompts of the same rendering that have the same ids."""

    ids: tuple[int, ...]
    text: str
    messages: tuple[Message, ...]
    content_hash: str
    occurrence: int
    source: str
    reference: str | None
    extra: Mapping[str, object]
    others: tuple[str, ...] = ()

    @property
    def references(self) -> tuple[str, ...]:
        """All reference answers of the row; none where it has none."""
        return () if self.reference is None else (self.reference, *self.others)


@dataclass(frozen=True)
class Targets:
    """Prompts in the order of their rows, and the ids of each answer; `weight` is that of a token in the loss."""

    prompts: tuple[Prompt, ...]
    answers: Mapping[tuple[str, int], tuple[int, ...]]
    weight: float = 1.0

    def answer_to(self, prompt: Prompt) -> tuple[int, ...]:
        return self.answers[prompt.content_hash, prompt.occurrence]

    @property
    def longest_answer(self) -> int:
        return max(map(len, self.answers.values()))


def content_hash(messages: Sequence[Message]) -> str:
    """SHA-256 (hex) of roles and contents: the same for the same conversation, however its row was written."""
    canonical = json.dumps([[message.role, message.content] for message in messages], separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
