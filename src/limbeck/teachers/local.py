"""A teacher in this process: a model that reads what the student wrote."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from limbeck.data.batch import TokenBatch
from limbeck.models.load import LanguageModel
from limbeck.teachers.signal import Dense

__all__ = ["LocalTeacher"]


@dataclass(frozen=True)
class LocalTeacher:
    """Scores a batch with one forward pass: no gradient, no generation, its head at completion positions only."""

    model: LanguageModel

    @torch.no_grad()
    def score(self, batch: TokenBatch) -> Dense:
        return Dense(self.model.completion_hidden(batch), self.model.head)
