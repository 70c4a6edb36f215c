"""Messages about models that were given as objects."""

from __future__ import annotations

from limbeck.errors import ModelError, Refusal, Text, error

__all__: list[str] = []


@error(ModelError, "model.not-in-memory")
def not_in_memory(*, model: str) -> Text:
    return Text(
        given="{model} was given as an object in another process.",
        needed="Such a model is not stored. Limbeck knows it by a fingerprint of its weights, and by the name under "
        "which transformers loaded it, if it had one.",
        fix="Load the model and pass it: limbeck.resume(run, teacher=model), or teacher=model of limbeck.evaluate and "
        "limbeck.mark. A recipe can use another model: --set teacher=MODEL.",
    )


@error(ModelError, "model.not-in-memory.unnamed")
def unnamed_not_in_memory(*, model: str) -> Text:
    return Text(
        given="{model} was given as an object in another process and had no name.",
        needed="Such a model is not stored. Limbeck could load it again only by the name under which transformers "
        "loaded it.",
        fix="Load the model and pass it: limbeck.resume(run, teacher=model), or teacher=model of limbeck.evaluate and "
        "limbeck.mark. A recipe can use another model: --set teacher=MODEL.",
    )


@error(ModelError, "model.not-in-memory.origin-missing")
def origin_missing(*, model: str, origin: str) -> Text:
    return Text(
        given="{model} was given as an object in another process, and {origin} does not exist any more.",
        needed="Such a model is not stored. Limbeck can load it again only by the name under which transformers loaded "
        "it.",
        fix="Load the model and pass it: limbeck.resume(run, teacher=model), or teacher=model of limbeck.evaluate and "
        "limbeck.mark. A recipe can use another model: --set teacher=MODEL.",
    )


@error(Refusal, "model.other-weights")
def other_weights(*, model: str, expected: str, found: str) -> Text:
    return Text(
        given="The weights of {model} have the fingerprint {found}; those of the model that was given as an object "
        "had {expected}.",
        needed="A run or an evaluation must be continued with the same model. The object was probably trained or "
        "changed after it was loaded.",
        fix="Pass the model itself: limbeck.resume(run, teacher=model), or teacher=model of limbeck.evaluate and "
        "limbeck.mark.",
    )


@error(ModelError, "model.no-tokenizer")
def no_tokenizer(*, role: str) -> Text:
    return Text(
        given="The {role} was given as an object without a tokenizer and without a name by which one could be loaded.",
        needed="Prompts are tokenised with the model's own tokenizer.",
        fix="Pass it: tokenizer=AutoTokenizer.from_pretrained(...).",
    )


@error(ModelError, "model.no-tokenizer.unreadable")
def tokenizer_of_name_unreadable(*, role: str, name: str, reason: str) -> Text:
    return Text(
        given="The {role} was given as an object without a tokenizer, and none could be loaded by its name {name} "
        "({reason}).",
        needed="Prompts are tokenised with the model's own tokenizer.",
        fix="Pass it: tokenizer=AutoTokenizer.from_pretrained(...).",
    )


@error(ModelError, "model.unfit-object")
def unfit_type(*, role: str, kind: str) -> Text:
    return Text(
        given="The {role} is an object of type {kind}.",
        needed="A model is a causal language model of transformers (a PreTrainedModel), or the name of one.",
        fix="Load it with AutoModelForCausalLM.from_pretrained. Merge adapters first: model.merge_and_unload().",
    )


@error(ModelError, "model.unfit-object.no-head")
def object_without_head(*, role: str, kind: str) -> Text:
    return Text(
        given="The {role} is a {kind}, which has no output head.",
        needed="A model is a causal language model of transformers, whose output head gives logits.",
        fix="Load it with AutoModelForCausalLM.from_pretrained.",
    )


@error(ModelError, "model.unfit-object.meta")
def object_without_weights(*, role: str, weight: str) -> Text:
    return Text(
        given="The weight {weight} of the {role} is on the meta device, without values.",
        needed="Every weight of a model must be in memory.",
        fix="Load it with AutoModelForCausalLM.from_pretrained.",
    )


@error(ModelError, "model.unfit-object.dtype")
def object_quantised(*, role: str, weight: str, dtype: str) -> Text:
    return Text(
        given="The weight {weight} of the {role} has the dtype {dtype}.",
        needed="Every weight of a model must be a floating-point tensor.",
        fix="Load the model without quantisation, with AutoModelForCausalLM.from_pretrained(..., dtype=torch.float32).",
    )
