"""Messages about names of models: what they refer to, and what does not exist."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import ModelError, Text, error

__all__: list[str] = []


@error(ModelError, "model.not-found")
def not_found(*, model: str, nearest: str) -> Text:
    return Text(
        given="There is no model {model}{nearest}.",
        needed="A model is a hub id (org/name or org/name@revision), a folder, a .gguf file, run:NAME, openai:MODEL or "
        "vllm:URL.",
        fix="Fix the name. A relative path starts at the current folder.",
    )


@error(ModelError, "model.not-found.empty")
def empty_name() -> Text:
    return Text(
        given="The name of a model is empty.",
        needed="A model is a hub id (org/name or org/name@revision), a folder, a .gguf file, run:NAME, openai:MODEL or "
        "vllm:URL.",
        fix="Set student and teacher to a model. A relative path starts at the current folder.",
    )


@error(ModelError, "model.no-previous")
def no_previous() -> Text:
    return Text(
        given="previous does not refer to a run: no recipe before this one uses the same workspace.",
        needed="previous is the run of the recipe before this one, in the same command and the same workspace.",
        fix="Run limbeck train FIRST.yaml SECOND.yaml, or replace previous with run:NAME.",
    )


@error(ModelError, "model.form-unknown")
def form_unknown(*, model: str) -> Text:
    return Text(
        given="{model} does not refer to a model.",
        needed="A model is a hub id (org/name or org/name@revision), a folder, a .gguf file, run:NAME, openai:MODEL or "
        "vllm:URL.",
        fix="Use for example openai:gpt-4.1 or vllm:http://localhost:8000.",
    )


@error(ModelError, "model.form-unknown.near")
def form_misspelt(*, model: str, scheme: str) -> Text:
    return Text(
        given="{model} does not refer to a model (did you mean {scheme}: at its beginning?).",
        needed="A model is a hub id (org/name or org/name@revision), a folder, a .gguf file, run:NAME, openai:MODEL or "
        "vllm:URL.",
        fix="Use for example run:NAME, openai:gpt-4.1 or vllm:http://localhost:8000.",
    )


@error(ModelError, "model.run-missing")
def run_missing(*, name: str, runs: Path, nearest: str) -> Text:
    return Text(
        given="There is no run {name} in {runs}{nearest}.",
        needed="run:NAME refers to the final model of a run in the workspace.",
        fix="Fix the name, or set workspace to the folder that contains the run.",
    )


@error(ModelError, "model.run-unfinished")
def run_unfinished(*, name: str) -> Text:
    return Text(
        given="The run {name} has no model yet.",
        needed="run:NAME refers to the final model of a run in the workspace.",
        fix="Finish the run with limbeck resume {name}, or use one of its checkpoints: run:{name}@STEP.",
    )


@error(ModelError, "model.checkpoint-missing")
def checkpoint_missing(*, model: str, steps: list[int]) -> Text:
    return Text(
        given="{model}: the run has no checkpoint of this step that can be used as a model.",
        needed="There are checkpoints of these steps: {steps}. A run keeps the last two.",
        fix="Use one of these steps, or leave out @STEP once the run has finished.",
    )


@error(ModelError, "model.checkpoint-missing.none")
def no_checkpoints(*, model: str) -> Text:
    return Text(
        given="{model}: the run has no checkpoints.",
        needed="run:NAME@STEP refers to a checkpoint of a run in the workspace.",
        fix="Leave out @STEP once the run has finished.",
    )


@error(ModelError, "model.folder-incomplete")
def folder_incomplete(*, folder: str) -> Text:
    return Text(
        given="The folder {folder} has no config.json.",
        needed="A model is a folder as transformers saves it (config.json, tokenizer, weights), or a .gguf file.",
        fix="Use such a folder or file.",
    )


@error(ModelError, "model.folder-incomplete.near")
def model_inside_folder(*, folder: str, found: Path) -> Text:
    return Text(
        given="The folder {folder} has no config.json.",
        needed="A model is a folder as transformers saves it (config.json, tokenizer, weights), or a .gguf file.",
        fix="Use {found}.",
    )


@error(ModelError, "model.adapter")
def adapter_error(*, model: str) -> Text:
    return Text(
        given="{model} contains an adapter (adapter_config.json).",
        needed="An adapter changes a base model. A folder or repository that contains both could be loaded as either.",
        fix="Use the merged model: run:NAME of a run with lora, or the result of merge_and_unload of peft.",
    )
