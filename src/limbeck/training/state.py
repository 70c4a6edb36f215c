"""The state that training changes, and the record of one step."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from limbeck.data.prompt import Prompt
from limbeck.models.language_model import LanguageModel
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion
from limbeck.training.batches import AnswerSet, MicroBatch, micro_batches
from limbeck.training.optim import learning_rate_at
from limbeck.training.weights import TrainedWeights

__all__ = ["MemoryMeter", "PhaseClock", "StepRecord", "TrainState", "WorstToken"]


def _ignore_phase(phase: str) -> None:
    pass


class MemoryMeter:
    """Measures peak memory since the last reset. This base class measures nothing; see `training.setup`."""

    def reset(self, device: torch.device) -> None:
        pass

    def peak_bytes(self, device: torch.device) -> int:
        return 0


@dataclass
class TrainState:
    """Everything that a step changes: the student's weights, the optimizer's moments and the step counter.

    Prompt order, learning rate and random numbers are functions of the step, so a checkpoint needs nothing else.

    step        optimizer steps taken so far
    share       whether rows with a common prefix may compute it once, in both models (see `rollouts.probe`)
    watch       called with the name of each phase as it begins: generation, scoring or update
    memory      measures the peak memory of each phase
    rollouts    prompts of the last on-policy step and the answers that the student generated
    schedule    the learning rate of a step, counted from 0, in place of the recipe's
    """

    student: LanguageModel
    weights: TrainedWeights
    engine: Engine
    optimizer: torch.optim.Optimizer
    step: int = 0
    share: bool = False
    watch: Callable[[str], None] = _ignore_phase
    memory: MemoryMeter = field(default_factory=MemoryMeter)
    rollouts: AnswerSet = field(default_factory=partial(AnswerSet, (), ()))
    schedule: Callable[[int], float] | None = None

    def learning_rate(self, recipe: Recipe) -> float:
        """The learning rate of the current step, from the caller's schedule or else from the recipe."""
        return learning_rate_at(self.step, recipe) if self.schedule is None else self.schedule(self.step)

    def clock(self) -> PhaseClock:
        """A clock for one step."""
        return PhaseClock(self.student.device, self.watch, self.memory)

    def micro_batches(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], max_tokens: int
    ) -> list[MicroBatch]:
        """Answers in padded batches on the student's device; see `batches.micro_batches`."""
        pad_id, device = self.engine.pad_id, self.student.device
        return micro_batches(
            prompts, completions, max_tokens=max_tokens, pad_id=pad_id, device=device, share=self.share
        )


@dataclass(frozen=True)
class WorstToken:
    """A position of the step with one of the largest divergences. Log-probabilities and divergence in nats."""

    source: str
    position: int
    token: int
    divergence: float
    student_logprob: float
    teacher_logprob: float | None
    text: str = ""


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step. Divergences, entropies and log-probabilities in nats per token, times in seconds.

    `None` stands for a phase that the step did not have: nothing was generated, or no teacher scored the answers.
    `own_answers_loss` is the cross-entropy of human-written answers; the other values but `grad_norm` leave them out.
    `peak_bytes` is the peak memory of each phase: generation, scoring, update. Events store some of these values under
    other names; see `record.step_fields`.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    practice_limit: int | None
    num_answers: int
    num_prompt_tokens: int
    num_completion_tokens: int
    generation_s: float | None
    scoring_s: float | None
    update_s: float
    generation_us_per_token: float | None
    scoring_us_per_token: float | None
    mean_length: float
    max_length: int
    cut_off_share: float
    empty_share: float
    repetitive_share: float
    student_entropy: float
    teacher_entropy: float | None
    agreement: float
    student_logprob: float
    teacher_logprob: float | None
    engine_gap: float | None
    worst_tokens: tuple[WorstToken, ...]
    peak_bytes: Mapping[str, int]
    own_answers_loss: float | None = None


@dataclass
class PhaseClock:
    """Seconds in each phase of a step, on a monotonic clock, and its peak memory in bytes."""

    device: torch.device
    watch: Callable[[str], None] = _ignore_phase
    memory: MemoryMeter = field(default_factory=MemoryMeter)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        self.watch(name)
        self.memory.reset(self.device)
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # otherwise queued work would count for a later phase
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), self.memory.peak_bytes(self.device))
