"""Does this architecture write in slots what its own plain forward pass says? Asked once, when a model is loaded.

A few answers are written to prompts of unequal length, longer than the sliding window where the run can get there,
with fewer slots than prompts, so that slots are refilled and moved. Every token's log-probability is then compared
with that of a plain forward pass over each row alone, without padding, cache or explicit mask. The same comparison is
made for the right-padded batches that training uses.

Shapes  T = positions, H = hidden, N = completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck.data.batch import collate
from limbeck.errors import Refusal
from limbeck.models.load import LanguageModel
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion, Request
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.rollouts.slots import kinds_of

__all__ = ["WritingMethod", "choose_method"]

NUM_NEW_TOKENS = 8
# Nats, for the worst token. Rounding gives about 1e-5 in float32; a wrong mask or position gives far more.
TOLERANCE_NATS = {torch.float64: 1e-6, torch.float32: 1e-3}
# Nats, for the mean over the tokens of the worst row: single tokens of a deep bf16 model differ by more than a tenth
# between two right ways to compute them.
TOLERANCE_HALF_NATS = 0.1


@dataclass(frozen=True)
class WritingMethod:
    """How a model writes in this run, and why."""

    plain: bool
    gap_nats: float
    reason: str


@torch.no_grad()
def choose_method(model: LanguageModel, *, max_length: int, pad_id: int) -> WritingMethod:
    """Slots where they agree with the model's own forward pass, else `generate`, if that agrees.

    Args:
        model: the model that will write.
        max_length: the longest prompt plus answer of the run, in tokens.
        pad_id: an id for padding.

    Raises:
        Refusal: neither way, or not even the padded training batch, agrees with the plain forward pass.
    """
    prompts = _probe_prompts(model, max_length)
    tolerance = TOLERANCE_NATS.get(model.dtype, TOLERANCE_HALF_NATS)
    kind = model.module.config.model_type
    gaps: dict[bool, float] = {}
    trouble = ""
    for plain in (False, True):
        try:
            completions = _write(model, prompts, pad_id, plain)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            # what an architecture does with a cache that it was not written for is open-ended
            gaps[plain] = torch.inf
            trouble = f"raised {type(error).__name__} ({error})"
            continue
        gaps[plain], padded_gap = _gaps(model, prompts, completions, pad_id)
        if padded_gap > tolerance:
            raise _disagreement(model, "A right-padded training batch", padded_gap)
        if gaps[plain] <= tolerance:
            if not plain:
                return WritingMethod(False, gaps[plain], f"{kind}: slots agree with the plain forward pass")
            return WritingMethod(True, gaps[plain], f"{kind}: slots {trouble}, so answers are written by generate")
        trouble = f"disagree with the plain forward pass by {gaps[plain]:.2g} nats"
    raise _disagreement(model, f"Writing with a key/value cache ({trouble})", min(gaps.values()))


def _probe_prompts(model: LanguageModel, max_length: int) -> list[tuple[int, ...]]:
    """Prompts of unequal length; one passes the sliding window if the run's longest sequence does."""
    window = kinds_of(model.module.config).window
    room = max(max_length - NUM_NEW_TOKENS, 1)
    lengths = [3, 17, 1, 40, 9]
    if window is not None:
        lengths.append(window + NUM_NEW_TOKENS)
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randint(model.head.num_real, (min(length, room),), generator=generator).tolist())
        for length in lengths
    ]


def _write(model: LanguageModel, prompts: list[tuple[int, ...]], pad_id: int, plain: bool) -> list[Completion]:
    engine = Engine(model, stop_ids=(), pad_id=pad_id, num_slots=2, plain=plain)
    requests = [
        Request(prompt, stream_key(0, Purpose.EVALUATION, 0, "0", number, 0), NUM_NEW_TOKENS - number % 3)
        for number, prompt in enumerate(prompts)
    ]
    return engine.generate(requests, Sampling())


def _gaps(
    model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion], pad_id: int
) -> tuple[float, float]:
    """How far, in nats, tokens are from each row's own forward pass: as written, and in one padded batch."""
    answers = [completion.ids for completion in completions]
    batch = collate(prompts, answers, pad_id=pad_id, device=model.device)
    padded_N = _logprobs(model, model.completion_hidden(batch), batch.targets_N)
    alone_N = torch.cat([_row_alone(model, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)])
    written_N = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    lengths = [len(answer) for answer in answers]
    exact = model.dtype in TOLERANCE_NATS

    def worst(other_N: Tensor) -> float:
        gap_N = (other_N.to(alone_N) - alone_N).abs()
        gap = gap_N.max() if exact else torch.stack([row_N.mean() for row_N in gap_N.split(lengths)]).max()
        return torch.nan_to_num(gap, nan=torch.inf).item()

    return worst(written_N), worst(padded_N)


def _row_alone(model: LanguageModel, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Tensor:
    ids_1T = torch.tensor([[*prompt, *answer]], device=model.device)
    hidden_TH = model.module.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
    return _logprobs(model, hidden_TH[len(prompt) - 1 : -1], ids_1T[0, len(prompt) :])


def _logprobs(model: LanguageModel, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
    logits_NV = model.head.logits(hidden_NH)
    return logits_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1) - logits_NV.logsumexp(dim=-1)


def _disagreement(model: LanguageModel, what: str, gap_nats: float) -> Refusal:
    return Refusal(
        "rollouts.architecture",
        given=f"{what} gives {model.name} ({model.module.config.model_type}) log-probabilities up to {gap_nats:.2g} "
        "nats away from its own plain forward pass.",
        needed="The text that the student writes must come from the distribution that is trained.",
        fix="Use another architecture for this model.",
    )
