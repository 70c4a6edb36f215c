"""What changes while a student trains, and what one step says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from limbeck.models.load import LanguageModel
from limbeck.rollouts.engine import Engine
from limbeck.training.weights import TrainedWeights

__all__ = ["PhaseClock", "StepRecord", "TrainState", "WorstToken"]


def _nobody(phase: str) -> None:
    pass


@dataclass
class TrainState:
    """Everything that a step changes: the student's weights, the optimizer's moments and the step counter.

    Prompt order, learning rate and random numbers are functions of the step, so nothing else is worth keeping. `share`
    says that both models can read what several answers begin with once (see `rollouts.probe`); `watch` is told the
    phase that a step is in.
    """

    student: LanguageModel
    weights: TrainedWeights
    engine: Engine
    optimizer: torch.optim.Optimizer
    step: int = 0
    share: bool = False
    watch: Callable[[str], None] = _nobody


@dataclass(frozen=True)
class WorstToken:
    """A position where student and teacher disagree most. Log-probabilities and divergence in nats."""

    source: str
    position: int
    token: int
    divergence: float
    student_logprob: float
    teacher_logprob: float


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step. Divergences, entropies and log-probabilities in nats per token, times in seconds."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    practice_limit: int
    num_answers: int
    num_prompt_tokens: int
    num_completion_tokens: int
    write_s: float
    score_s: float
    update_s: float
    write_us_per_token: float
    score_us_per_token: float
    mean_length: float
    max_length: int
    cut_off_share: float
    empty_share: float
    repetitive_share: float
    student_entropy: float
    teacher_entropy: float
    agreement: float
    student_logprob: float
    teacher_logprob: float
    engine_gap: float
    worst_tokens: tuple[WorstToken, ...]


@dataclass
class PhaseClock:
    """Seconds spent in each phase of a step, on a monotonic clock."""

    device: torch.device
    watch: Callable[[str], None] = _nobody
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        self.watch(name)
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # otherwise the time of queued work would count for a later phase
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
