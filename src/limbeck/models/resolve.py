"""A model string to what it refers to. Nothing is loaded here."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from limbeck.data.row_errors import nearest
from limbeck.errors import ModelError
from limbeck.models.memory import is_in_memory, parse_memory, read_from_origin
from limbeck.models.messages import names as messages
from limbeck.models.messages.objects import origin_missing
from limbeck.models.refs import ModelRef
from limbeck.names import check_name
from limbeck.recipe.files import load_recipe

__all__ = ["parse_ref"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@(?P<revision>\S+))?")
_SCHEMED = re.compile(r"(?P<scheme>[a-z][a-z0-9]+):\s*(?P<rest>.*)", re.DOTALL)


def parse_ref(text: str, *, workspace: Path) -> ModelRef:
    """Parse a model string. A folder or file of that name takes precedence over a hub id; runs are in `workspace`.

    Raises ModelError if the string is not a model, or refers to a file, folder or run that does not exist.
    """
    text = text.strip()
    if text == "previous":
        raise messages.no_previous()
    if not text:
        raise messages.empty_name()
    if is_in_memory(text):
        return _parse_object(text, workspace)
    schemed = _SCHEMED.fullmatch(text)
    if schemed is not None:
        return _parse_scheme(text, schemed["scheme"], schemed["rest"], workspace)
    path = Path(text).expanduser()
    if path.is_dir():
        return _parse_folder(text, path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return ModelRef(text, "gguf", path, None)
    hub_id = _HUB_ID.fullmatch(text)
    if hub_id is not None and not path.exists() and path.suffix.lower() != ".gguf":
        return ModelRef(text, "hub", None, hub_id["revision"])
    raise messages.not_found(model=text, nearest=nearest(path.name, path.parent))


def _parse_object(text: str, workspace: Path) -> ModelRef:
    """A model that was given as an object: the object, or in another process the model that its name refers to."""
    found, digits, name = parse_memory(text)
    if found is not None:
        return found
    try:
        return read_from_origin(parse_ref(name, workspace=workspace), text, digits, name)
    except ModelError as error:
        raise origin_missing(model=text, origin=name) from error


def _parse_scheme(text: str, scheme: str, rest: str, workspace: Path) -> ModelRef:
    if scheme == "run":
        return _parse_run(text, rest, workspace)
    if scheme == "openai" and rest:
        return ModelRef(text, "hosted", None, None)
    if scheme == "vllm" and re.match(r"https?://[^/\s]", rest):
        return ModelRef(text, "served", None, None)
    near = difflib.get_close_matches(scheme, ["run", "openai", "vllm"], n=1)
    if near and near[0] != scheme:
        raise messages.form_misspelt(model=text, scheme=near[0])
    raise messages.form_unknown(model=text)


def _parse_run(text: str, name: str, workspace: Path) -> ModelRef:
    name, at, step = name.partition("@")
    runs = workspace / "runs"
    model = runs / check_name(name, what="run") / "model"
    if at and model.parent.is_dir():
        return _parse_checkpoint(text, model, step, workspace)
    if (model / "config.json").is_file():
        return ModelRef(text, "run", model, None)
    if model.parent.is_dir():
        raise messages.run_unfinished(name=name)
    raise messages.run_missing(name=name, runs=runs, nearest=nearest(name, runs))


def _parse_checkpoint(text: str, model: Path, step: str, workspace: Path) -> ModelRef:
    """A checkpoint contains only weights; the rest comes from the run's final model or, before its end, its student."""
    folder = model.parent / "checkpoints" / (f"step-{int(step):08d}" if step.isdecimal() else "none")
    if (folder / "MANIFEST.json").is_file():
        base: Path | None = model
        if not (model / "config.json").is_file():
            student = load_recipe(model.parent / "recipe.yaml", [], {}).recipe.student
            base = parse_ref(student, workspace=workspace).path
        if base is not None and base.is_dir():
            return ModelRef(text, "run", base, None, folder / "student.safetensors", int(step))
    steps = [int(path.name.removeprefix("step-")) for path in sorted(folder.parent.glob("step-*"))]
    raise messages.checkpoint_missing(model=text, steps=steps) if steps else messages.no_checkpoints(model=text)


def _parse_folder(text: str, path: Path) -> ModelRef:
    if (path / "adapter_config.json").is_file():
        raise messages.adapter_error(model=text)
    if (path / "config.json").is_file():
        return ModelRef(text, "folder", path, None)
    models = [path / "model"] if (path / "model" / "config.json").is_file() else sorted(path.glob("*.gguf"))
    if models:
        raise messages.model_inside_folder(folder=text, found=models[0])
    raise messages.folder_incomplete(folder=text)
