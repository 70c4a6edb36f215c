"""What is said of models that were given as objects."""

from __future__ import annotations

from limbeck.errors import ModelError, Refusal, Text, error

__all__ = ["no_tokenizer", "not_in_memory", "other_weights", "unfit_object"]


@error(ModelError, "model.not-in-memory")
def not_in_memory(*, model: str, reason: str) -> Text:
    return Text(
        given="{model} was given as an object in another process{reason}.",
        needed="Such a model is not stored. It is known by a fingerprint of its weights, and by the name under which "
        "transformers loaded it, if it had one.",
        fix="Load the model and pass it on: limbeck.resume(run, teacher=model), or teacher=model of limbeck.evaluate "
        "and limbeck.mark. A recipe can name a model instead: --set teacher=MODEL.",
    )


@error(Refusal, "model.other-weights")
def other_weights(*, model: str, expected: str, found: str) -> Text:
    return Text(
        given="The weights of {model} have the fingerprint {found}; those of the model that was given as an object "
        "had {expected}.",
        needed="A run or an evaluation that goes on needs the same model. The object was probably trained or changed "
        "after it was loaded.",
        fix="Pass on the model itself: limbeck.resume(run, teacher=model), or teacher=model of limbeck.evaluate and "
        "limbeck.mark.",
    )


@error(ModelError, "model.no-tokenizer")
def no_tokenizer(*, model: str, reason: str) -> Text:
    return Text(
        given="{model} was given as an object without a tokenizer, and none could be loaded by its name{reason}.",
        needed="Prompts are turned into token ids by the model's own tokenizer.",
        fix="Pass it on: tokenizer=AutoTokenizer.from_pretrained(...).",
    )


@error(ModelError, "model.unfit-object")
def unfit_object(*, model: str, reason: str) -> Text:
    return Text(
        given="{model} cannot be used as a model: {reason}.",
        needed="A model is a causal language model of transformers (a PreTrainedModel) with floating-point weights, or "
        "the text that names one.",
        fix="Load it with AutoModelForCausalLM.from_pretrained. Merge adapters first: model.merge_and_unload().",
    )
