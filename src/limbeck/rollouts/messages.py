"""Every message of the rollouts."""

from __future__ import annotations

from limbeck.errors import Diverged, RecipeError, Refusal, Text, error, note


@error(RecipeError, "sampling.range")
def sampling_out_of_range(*, temperature: float, top_p: float, top_k: int) -> Text:
    return Text(
        given="sampling has temperature {temperature}, top_p {top_p} and top_k {top_k}.",
        needed="temperature must be 0 or more, top_p above 0 and at most 1, and top_k 0 (off) or more.",
        fix="Remove the setting: the defaults 1.0, 1.0 and 0 sample from the student's own distribution.",
    )


@error(Diverged, "rollouts.not-finite")
def logits_not_finite(*, model: str) -> Text:
    return Text(
        given="{model} returns logits that are not finite during generation.",
        needed="No token can be sampled from them: a weight is infinite or NaN.",
        fix="Resume from the last checkpoint, with a lower learning rate if this model was being trained.",
    )


@error(Refusal, "rollouts.architecture.batch")
def batches_disagree(*, model: str, architecture: str, gap_nats: float) -> Text:
    return Text(
        given="A right-padded training batch changes the log-probabilities of {model} ({architecture}) by up to "
        "{gap_nats:.2g} nats, compared with a plain forward pass over each row.",
        needed="Training must see the same distribution that generation samples from.",
        fix="Use a model of another architecture.",
    )


@error(Refusal, "rollouts.architecture")
def no_decoder_agrees(*, model: str, architecture: str, gap_nats: float, attempts: list[str]) -> Text:
    return Text(
        given="Generation with a key/value cache changes the log-probabilities of {model} ({architecture}) by at least "
        "{gap_nats:.2g} nats, compared with its plain forward pass ({attempts}).",
        needed="Answers must be sampled from the distribution that is trained.",
        fix="Use a model of another architecture.",
    )


@note("rollouts.decoder-agrees")
def decoder_agrees(*, architecture: str, decoder: str) -> str:
    return "{architecture}: {decoder} agrees with the plain forward pass"


@note("rollouts.decoder-disagrees")
def decoder_disagrees(*, decoder: str, gap_nats: float) -> str:
    return "{decoder} differs from the plain forward pass by {gap_nats:.2g} nats"


@note("rollouts.decoder-unavailable")
def decoder_unavailable(*, decoder: str, reason: str) -> str:
    return "{decoder}: {reason}"
