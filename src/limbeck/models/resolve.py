"""A model string to what it names. Nothing is loaded here."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from limbeck.data.row_errors import nearest
from limbeck.errors import ModelError
from limbeck.models.memory import is_in_memory, parse_memory, read_from_origin
from limbeck.models.messages import not_in_memory
from limbeck.models.refs import ModelRef
from limbeck.names import check_name
from limbeck.recipe.files import load_recipe

__all__ = ["adapter_error", "parse_ref"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@(?P<revision>\S+))?")
_SCHEMED = re.compile(r"(?P<scheme>[a-z][a-z0-9]+):\s*(?P<rest>.*)", re.DOTALL)
_FORMS = "a hub id (org/name or org/name@revision), a folder, a .gguf file, run:NAME, openai:MODEL or vllm:URL"


def parse_ref(text: str, *, workspace: Path) -> ModelRef:
    """Reads a model string. A folder or file of that name goes before a hub id; run:NAME is looked up in `workspace`.

    Raises ModelError when the string means nothing, or means a file, folder or run that is not there.
    """
    text = text.strip()
    if text == "previous":
        raise ModelError(
            "model.no-previous",
            given="The student is previous, and no stage in its workspace comes before this recipe.",
            needed="previous is the run of the recipe before it, in one command and one workspace.",
            fix="Write limbeck train FIRST.yaml SECOND.yaml, or name the run: student: run:NAME.",
        )
    if is_in_memory(text):
        return _parse_object(text, workspace)
    schemed = _SCHEMED.fullmatch(text)
    if schemed is not None:
        return _parse_scheme(text, schemed["scheme"], schemed["rest"], workspace)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return _parse_folder(text, path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return ModelRef(text, "gguf", path, None)
    hub_id = _HUB_ID.fullmatch(text)
    if hub_id is not None and not path.exists() and path.suffix.lower() != ".gguf":
        return ModelRef(text, "hub", None, hub_id["revision"])
    raise ModelError(
        "model.not-found",
        given=f"{text or 'An empty text'} names no model{nearest(path.name, path.parent) if text else ''}.",
        needed=f"A model is {_FORMS}.",
        fix="Correct the name; a path is relative to the folder you start in.",
    )


def _parse_object(text: str, workspace: Path) -> ModelRef:
    """A model that was given as an object: the object, or in another process what its name leads to."""
    found, digits, name = parse_memory(text)
    if found is not None:
        return found
    try:
        return read_from_origin(parse_ref(name, workspace=workspace), text, digits, name)
    except ModelError as error:
        raise not_in_memory(model=text, reason=f", and {name} is not there any more") from error


def _parse_scheme(text: str, scheme: str, rest: str, workspace: Path) -> ModelRef:
    if scheme == "run":
        return _parse_run(text, rest, workspace)
    if scheme == "openai" and rest:
        return ModelRef(text, "hosted", None, None)
    if scheme == "vllm" and re.match(r"https?://[^/\s]", rest):
        return ModelRef(text, "served", None, None)
    near = difflib.get_close_matches(scheme, ["run", "openai", "vllm"], n=1)
    raise ModelError(
        "model.form-unknown",
        given=f"{text} names no model{f' (is {near[0]}: meant?)' if near else ''}.",
        needed=f"A model is {_FORMS}.",
        fix="Write for example openai:gpt-4.1 or vllm:http://localhost:8000.",
    )


def _parse_run(text: str, name: str, workspace: Path) -> ModelRef:
    name, at, step = name.partition("@")
    runs = workspace / "runs"
    model = runs / check_name(name, what="run") / "model"
    if at and model.parent.is_dir():
        return _parse_checkpoint(text, model, step, workspace)
    if (model / "config.json").is_file():
        return ModelRef(text, "run", model, None)
    if model.parent.is_dir():
        code, reason = "model.run-unfinished", f"the run {name} has no model yet"
    else:
        code, reason = "model.run-missing", f"there is no run {name} in {runs}{nearest(name, runs)}"
    raise ModelError(
        code,
        given=f"{text}: {reason}.",
        needed="run:NAME means the model that a run of this workspace has written at its end.",
        fix="Correct the name, let the run finish, or start in the workspace of that run.",
    )


def _parse_checkpoint(text: str, model: Path, step: str, workspace: Path) -> ModelRef:
    """A checkpoint holds weights alone; the rest is that of the run's model, before its end that of its student."""
    folder = model.parent / "checkpoints" / (f"step-{int(step):08d}" if step.isdecimal() else "none")
    if (folder / "MANIFEST.json").is_file():
        base: Path | None = model
        if not (model / "config.json").is_file():
            student = load_recipe(model.parent / "recipe.yaml", [], {}).recipe.student
            base = parse_ref(student, workspace=workspace).path
        if base is not None and base.is_dir():
            return ModelRef(text, "run", base, None, folder / "student.safetensors", int(step))
    kept = [int(path.name.removeprefix("step-")) for path in sorted(folder.parent.glob("step-*"))]
    raise ModelError(
        "model.checkpoint-missing",
        given=f"{text}: the run has no checkpoint of this step from which a model can be made.",
        needed=f"Checkpoints are there of the steps {', '.join(map(str, kept)) or '(none)'}; the last two are kept.",
        fix="Name one of these steps, or leave it out once the run is done.",
    )


def _parse_folder(text: str, path: Path) -> ModelRef:
    if (path / "adapter_config.json").is_file():
        raise adapter_error(text)
    if (path / "config.json").is_file():
        return ModelRef(text, "folder", path, None)
    models = [path / "model"] if (path / "model" / "config.json").is_file() else sorted(path.glob("*.gguf"))
    raise ModelError(
        "model.folder-incomplete",
        given=f"The folder {text} has no config.json.",
        needed="A model is a folder as transformers saves it (config.json, tokenizer, weights), or a .gguf file.",
        fix=f"Name {models[0] if models else 'such a folder'}.",
    )


def adapter_error(text: str) -> ModelError:
    """What to say of a model that is an adapter, whatever else lies beside it."""
    return ModelError(
        "model.adapter",
        given=f"{text} holds an adapter (adapter_config.json).",
        needed="An adapter changes a base, and a folder or repository that holds both could be read as either.",
        fix="Name the merged model: run:NAME of a run with lora is one, and peft's merge_and_unload makes one.",
    )
