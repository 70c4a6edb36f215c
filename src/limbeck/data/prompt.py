"""Rows of a prompt file, rendered prompts, and the answers that are training targets. Data, no behaviour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["Message", "Prompt", "PromptRow", "Targets", "content_hash"]


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class PromptRow:
    """One row of a prompt file: messages that end with a user turn.

    `source` is file and line, `extra` all other columns. `others` are more reference answers, as right as `reference`.
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
    """A rendered prompt. `content_hash` is over its ids; `occurrence` counts the earlier prompts with the same ids."""

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
        """All reference answers of the row; may be empty."""
        return () if self.reference is None else (self.reference, *self.others)


@dataclass(frozen=True)
class Targets:
    """Prompts in the order of their rows, and the token ids of their answers.

    `answers` is by content hash and occurrence of the prompt; `weight` is the weight of a token in the loss.
    """

    prompts: tuple[Prompt, ...]
    answers: Mapping[tuple[str, int], tuple[int, ...]]
    weight: float = 1.0

    def answer_to(self, prompt: Prompt) -> tuple[int, ...]:
        return self.answers[prompt.content_hash, prompt.occurrence]

    @property
    def longest_answer(self) -> int:
        return max(map(len, self.answers.values()))


def content_hash(messages: Sequence[Message]) -> str:
    """SHA-256 (hex) of roles and contents: the same for the same conversation, whatever the form of its row."""
    canonical = json.dumps([[message.role, message.content] for message in messages], separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
