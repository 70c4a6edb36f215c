"""What changes while a student trains, and what one step says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from limbeck.data.prompt import Prompt
from limbeck.models.language_model import LanguageModel
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion
from limbeck.training.batches import MicroBatch, micro_batches
from limbeck.training.optim import learning_rate_at
from limbeck.training.weights import TrainedWeights

__all__ = ["MemoryMeter", "PhaseClock", "StepRecord", "TrainState", "WorstToken"]


def _nobody(phase: str) -> None:
    pass


class MemoryMeter:
    """Measures the most memory held since it was last reset. This one measures nothing; `machine` has one that does."""

    def reset(self, device: torch.device) -> None:
        pass

    def peak_bytes(self, device: torch.device) -> int:
        return 0


@dataclass
class TrainState:
    """Everything that a step changes: the student's weights, the optimizer's moments and the step counter.

    Prompt order, learning rate and random numbers are functions of the step, so nothing else is worth keeping. `share`
    says that both models can read what several answers begin with once (see `rollouts.probe`); `watch` is told the
    phase that a step is in. `practised` is what the last step's first prompts were and what the student wrote.
    `schedule` gives the learning rate of a step, counted from 0, in the place of the recipe's.
    """

    student: LanguageModel
    weights: TrainedWeights
    engine: Engine
    optimizer: torch.optim.Optimizer
    step: int = 0
    share: bool = False
    watch: Callable[[str], None] = _nobody
    memory: MemoryMeter = field(default_factory=MemoryMeter)
    practised: tuple[Sequence[Prompt], Sequence[Completion]] = ((), ())
    schedule: Callable[[int], float] | None = None

    def learning_rate(self, recipe: Recipe) -> float:
        """That of the step which is taken now: by a schedule of the caller's own, else by the recipe."""
        return learning_rate_at(self.step, recipe) if self.schedule is None else self.schedule(self.step)

    def clock(self) -> PhaseClock:
        """A clock for one step."""
        return PhaseClock(self.student.device, self.watch, self.memory)

    def micro_batches(
        self, prompts: Sequence[Prompt], answers: Sequence[Completion], max_tokens: int
    ) -> list[MicroBatch]:
        """Answers cut into batches as the student of this run reads them."""
        fill, device = self.engine.pad_id, self.student.device
        return micro_batches(prompts, answers, max_tokens=max_tokens, pad_id=fill, device=device, share=self.share)


@dataclass(frozen=True)
class WorstToken:
    """A position where student and teacher disagree most. Log-probabilities and divergence in nats."""

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

    `peak_bytes` is the most memory held in each phase: writing, reading, updating.

    None where a step has no such thing: nothing was written, or no teacher read the text. Where people's own answers
    are learnt beside the teacher's word, `own_answers_loss` is their cross-entropy and all else is about the others.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    practice_limit: int | None
    num_answers: int
    num_prompt_tokens: int
    num_completion_tokens: int
    write_s: float | None
    score_s: float | None
    update_s: float
    write_us_per_token: float | None
    score_us_per_token: float | None
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
    """Seconds spent in each phase of a step, on a monotonic clock, and the most memory held in it."""

    device: torch.device
    watch: Callable[[str], None] = _nobody
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
            torch.cuda.synchronize(self.device)  # otherwise the time of queued work would count for a later phase
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), self.memory.peak_bytes(self.device))
