"""Messages about the files of a model and about its architecture."""

from __future__ import annotations

from limbeck.errors import ModelError, Refusal, Text, error

__all__: list[str] = []


@error(ModelError, "model.weights-unreadable")
def weights_unreadable(*, model: str, reason: str) -> Text:
    return Text(
        given="The weights of {model} could not be read ({reason}).",
        needed="Limbeck reads weights from safetensors files, never from pickled ones, or from a GGUF file.",
        fix="Check the name and that the download is complete. Save a .bin model again as safetensors.",
    )


@error(ModelError, "model.configuration-unreadable")
def configuration_unreadable(*, model: str, reason: str) -> Text:
    return Text(
        given="The configuration of {model} could not be read ({reason}).",
        needed="A model needs a config.json of an architecture that transformers supports, or a GGUF file.",
        fix="Check the name and that the download is complete, or update transformers.",
    )


@error(ModelError, "model.tokenizer-unreadable")
def tokenizer_unreadable(*, model: str, reason: str) -> Text:
    return Text(
        given="The tokenizer of {model} could not be read ({reason}).",
        needed="Prompts are tokenised with the model's own tokenizer.",
        fix="Check that its files are complete. tokenizer.save_pretrained(FOLDER) writes all of them.",
    )


@error(ModelError, "model.generation-config-unreadable")
def generation_config_unreadable(*, model: str, reason: str) -> Text:
    return Text(
        given="The generation config of {model} could not be read ({reason}).",
        needed="It specifies the tokens that end an answer.",
        fix="Repair generation_config.json, or delete it: config.json is used then.",
    )


@error(ModelError, "model.weights-missing")
def weights_missing(*, model: str, num: int, first: str) -> Text:
    return Text(
        given="The weights of {model} lack {num:tensor|tensors}; the first is {first}.",
        needed="transformers would fill a missing tensor with random numbers.",
        fix="Download or save the model again.",
    )


@error(ModelError, "model.checkpoint-other")
def checkpoint_other(*, checkpoint: str, num: int, first: str) -> Text:
    return Text(
        given="{checkpoint} and the model differ in the presence or shape of {num:weight|weights}; the first is "
        "{first}.",
        needed="A checkpoint that is used as a model must contain every weight of the model.",
        fix="Leave out @STEP once the run has finished.",
    )


@error(Refusal, "model.own-code")
def own_code(*, model: str) -> Text:
    return Text(
        given="{model} comes with its own Python code (auto_map in its configuration).",
        needed="Such code would run with your permissions, so Limbeck never runs it.",
        fix="Use a version of the model that transformers supports without such code.",
    )


@error(ModelError, "model.not-local")
def not_local(*, model: str) -> Text:
    return Text(
        given="{model} is a model at a hosted API.",
        needed="On-policy distillation needs the student's weights and the teacher's log-probabilities for text that "
        "the student generated. A hosted API provides neither.",
        fix="Use a local model: a hub id, a folder, a .gguf file or run:NAME.",
    )


@error(ModelError, "model.not-local.served")
def served_not_local(*, model: str) -> Text:
    return Text(
        given="{model} is a scoring server.",
        needed="A server can only score text as a teacher. Here the weights of the model are needed.",
        fix="Use a local model: a hub id, a folder, a .gguf file or run:NAME.",
    )


@error(Refusal, "model.no-checkpointing")
def no_checkpointing(*, model: str) -> Text:
    return Text(
        given="activation_checkpointing is true, but no layer of {model} supports it.",
        needed="Only layers that transformers marks as safe can be recomputed in the backward pass.",
        fix="Remove activation_checkpointing. Lower micro_batch_tokens to save memory.",
    )


@error(Refusal, "model.head-unknown")
def head_unknown(*, model: str, architecture: str, gap: float) -> Text:
    return Text(
        given="The logits of {model} ({architecture}) differ from its output head applied to its hidden states by "
        "{gap:.1e} of the largest logit.",
        needed="Limbeck computes the divergence from hidden states and output head. An unknown step between them would "
        "train the student towards the wrong distribution.",
        fix="Use another model, or report this architecture.",
    )
