"""Does a fast way to write say what the model's own plain forward pass says? Asked once, when a model is loaded.

A few answers are written to prompts of unequal length, longer than the sliding window where the run can get there,
with fewer slots than prompts, so that slots are refilled and moved. Every token's log-probability is then compared
with that of a plain forward pass over each row alone, without padding, cache or explicit mask. The same comparison is
made for the right-padded batches that training uses.

Shapes  T = positions, H = hidden, N = completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck.compat import Renamed
from limbeck.data.batch import collate
from limbeck.errors import Refusal
from limbeck.models.attention import Unsuitable, layer_kinds
from limbeck.models.language_model import LanguageModel
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.plain import PlainWriter
from limbeck.rollouts.request import Completion, Request, Way
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.rollouts.slots import Decoder, SlotDecoder, Writer

__all__ = ["MakeDecoder", "WritingMethod", "choose_method"]

NUM_NEW_TOKENS = 8
SHARED_TOKENS = 16  # ten prompts that begin with so many save more tokens than sharing asks for
# Nats, for the worst token. Rounding gives about 1e-5 in float32; a wrong mask or position gives far more.
TOLERANCE_NATS = {torch.float64: 1e-6, torch.float32: 1e-3}
FAST_NATS = {torch.float64: 1e-6, torch.float32: 2e-4}
# Nats, for the mean over the tokens of the worst row: single tokens of a deep bf16 model differ by more than a tenth
# between two right ways to compute them.
TOLERANCE_HALF_NATS = 0.1

MakeDecoder = Callable[[LanguageModel], Decoder | Writer]


@dataclass(frozen=True)
class WritingMethod:
    """How a model writes in this run, whether its rows may share what they begin with, and why.

    `fallback` says why each faster way was left; empty where none was.
    """

    way: Way
    share: bool
    gap_nats: float
    reason: str
    fallback: str = ""


@torch.no_grad()
def choose_method(
    model: LanguageModel, *, max_length: int, pad_id: int, fast: Mapping[Way, MakeDecoder] | None = None
) -> WritingMethod:
    """The first of the fast decoders, the general one and `generate` that agrees with the model's own forward pass.

    Args:
        model: the model that will write.
        max_length: the longest prompt plus answer of the run, in tokens.
        pad_id: an id for padding.
        fast: decoders that were written for such a model, by name.

    Raises:
        Refusal: none of them, or not even the padded training batch, agrees with the plain forward pass.
    """
    prompts = _probe_prompts(model, max_length)
    kind = model.module.config.model_type
    makers: dict[Way, MakeDecoder] = {**(fast or {}), "slots": SlotDecoder, "generate": PlainWriter}
    gaps: list[float] = []
    troubles: list[str] = []
    share: bool | None = None
    for way, make in makers.items():
        try:
            completions = _write(model, prompts, pad_id, make)
        except (Renamed, Unsuitable) as error:
            troubles.append(f"{way}: {error}")
            continue
        alone_N = _alone(model, prompts, completions)
        if share is None:
            share = _shares(model, prompts, completions, alone_N, pad_id)
        written_N = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
        gaps.append(_gap(model, written_N, alone_N, completions))
        if gaps[-1] <= _tolerance(model, FAST_NATS if fast and way in fast else TOLERANCE_NATS):
            reason = f"{kind}: {way} agrees with the plain forward pass"
            return WritingMethod(way, share, gaps[-1], reason, "; ".join(troubles))
        troubles.append(f"{way} disagrees with the plain forward pass by {gaps[-1]:.2g} nats")
    tried = f"Writing with a key/value cache ({'; '.join(troubles)})"
    raise _disagreement(model, tried, min(gaps, default=torch.inf))


def _shares(
    model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion], alone_N: Tensor, pad_id: int
) -> bool:
    """Whether a batch that shares its beginnings gives what the plain forward pass gives; a plain batch has to."""
    gap = _gap(model, _batched(model, prompts, completions, pad_id, share=False), alone_N, completions)
    if gap > _tolerance(model, TOLERANCE_NATS):
        raise _disagreement(model, "A right-padded training batch", gap)
    # a long beginning in common, and the same prompt several times
    start = (*max(prompts, key=len), *prompts[0])[:SHARED_TOKENS]
    prompts = [start + prompt for prompt in prompts for _ in range(2)]
    completions = [completion for completion in completions for _ in range(2)]
    try:
        shared_N = _batched(model, prompts, completions, pad_id, share=True)
    except Unsuitable:
        return False
    return _gap(model, shared_N, _alone(model, prompts, completions), completions) <= _tolerance(model, TOLERANCE_NATS)


def _probe_prompts(model: LanguageModel, max_length: int) -> list[tuple[int, ...]]:
    """Prompts of unequal length; one passes the sliding window if the run's longest sequence does."""
    window = layer_kinds(model.module.config).window
    room = max(max_length - NUM_NEW_TOKENS, 1)
    lengths = [3, 17, 1, 40, 9]
    if window is not None:
        lengths.append(window + NUM_NEW_TOKENS)
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randint(model.head.num_real, (min(length, room),), generator=generator).tolist())
        for length in lengths
    ]


def _write(model: LanguageModel, prompts: list[tuple[int, ...]], pad_id: int, make: MakeDecoder) -> list[Completion]:
    engine = Engine(model, stop_ids=(), pad_id=pad_id, num_slots=2, decoder=make(model))
    requests = [
        Request(prompt, stream_key(0, Purpose.EVALUATION, 0, "0", number, 0), NUM_NEW_TOKENS - number % 3)
        for number, prompt in enumerate(prompts)
    ]
    return engine.generate(requests, Sampling())


def _gap(model: LanguageModel, other_N: Tensor, alone_N: Tensor, completions: list[Completion]) -> float:
    gap_N = (other_N.to(alone_N) - alone_N).abs()
    exact = model.dtype in TOLERANCE_NATS
    rows = gap_N.split([len(completion.ids) for completion in completions])
    gap = gap_N.max() if exact else torch.stack([row_N.mean() for row_N in rows]).max()
    return torch.nan_to_num(gap, nan=torch.inf).item()


def _tolerance(model: LanguageModel, nats: dict[torch.dtype, float]) -> float:
    return nats.get(model.dtype, TOLERANCE_HALF_NATS)


def _batched(
    model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion], pad_id: int, share: bool
) -> Tensor:
    answers = [completion.ids for completion in completions]
    batch = collate(prompts, answers, pad_id=pad_id, device=model.device, share=share)
    return _logprobs(model, model.completion_hidden(batch), batch.targets_N)


def _alone(model: LanguageModel, prompts: list[tuple[int, ...]], completions: list[Completion]) -> Tensor:
    """Log-probabilities [N], a forward pass for each row, without padding, cache or mask."""
    parts: list[Tensor] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids_1T = torch.tensor([[*prompt, *completion.ids]], device=model.device)
        hidden_TH = model.module.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
        parts.append(_logprobs(model, hidden_TH[len(prompt) - 1 : -1], ids_1T[0, len(prompt) :]))
    return torch.cat(parts)


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
