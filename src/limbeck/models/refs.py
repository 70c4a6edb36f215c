"""What a model string means: hub id, folder, file.gguf, run:NAME, openai:MODEL, vllm:URL. Nothing is loaded here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from limbeck.errors import ModelError
from limbeck.names import check_name

__all__ = ["ModelRef", "parse_ref"]

Kind = Literal["hub", "folder", "gguf", "run", "hosted", "served"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SCHEME = re.compile(r"([a-z][a-z0-9]+):")
_FORMS = "a hub id (org/name or org/name@revision), a folder, a .gguf file, run:NAME, openai:MODEL or vllm:URL"


@dataclass(frozen=True)
class ModelRef:
    """A model string and what it means.

    Attributes:
        text: as written.
        kind: hub, folder, gguf (a file), run (the model of a run), hosted (a chat API) or served (a scoring server).
        path: the folder or file; None for hub, hosted and served.
        revision: branch, tag or commit of a hub id; None for the default branch.
    """

    text: str
    kind: Kind
    path: Path | None
    revision: str | None


def parse_ref(text: str, *, workspace: Path) -> ModelRef:
    """Reads a model string. A folder or file of that name goes before a hub id; run:NAME is looked up in `workspace`.

    Raises ModelError when the string means nothing, or means a file, folder or run that is not there.
    """
    text = text.strip()
    scheme = _SCHEME.match(text)
    if scheme is not None:
        return _parse_scheme(text, scheme.group(1), text[scheme.end() :].strip(), workspace)
    path = Path(text).expanduser()
    if text.lower().endswith(".gguf"):
        return _parse_gguf(text, path)
    if text and path.is_dir():
        return _parse_folder(text, path, workspace)
    if text and path.is_file():
        raise ModelError(
            "model.file-unsupported",
            given=f"{text} is a file.",
            needed="A single file is a model only if it is a .gguf; others are read from their folder.",
            fix=f"Name the folder {path.parent}.",
        )
    name, at, revision = text.partition("@")
    if _HUB_ID.fullmatch(name) and (bool(at) == bool(revision)) and not re.search(r"\s", revision):
        return ModelRef(text, "hub", None, revision or None)
    if not text or "/" in text or "\\" in text or text.startswith((".", "~")):
        needed = f"A model is {_FORMS}."
    else:
        needed = f"No folder has this name here, and a hub id has the form org/name. A model is {_FORMS}."
    raise ModelError(
        "model.not-found",
        given=f"{text or 'An empty text'} names no model{_nearest(path.name, _entries(path.parent)) if text else ''}.",
        needed=needed,
        fix="Correct the name; a path is relative to the folder you start in.",
    )


def _parse_scheme(text: str, scheme: str, rest: str, workspace: Path) -> ModelRef:
    if scheme == "run":
        return _parse_run(text, rest, workspace)
    if scheme == "openai" and rest:
        return ModelRef(text, "hosted", None, None)
    if scheme == "vllm" and urlsplit(rest).scheme in ("http", "https") and urlsplit(rest).hostname:
        return ModelRef(text, "served", None, None)
    wanted = {
        "openai": "After openai: stands the name of the model.",
        "vllm": "After vllm: stands the address of the server.",
    }
    example = {"openai": "openai:gpt-4.1", "vllm": "vllm:http://localhost:8000"}
    near = difflib.get_close_matches(scheme, ["run", "openai", "vllm"], n=1)
    raise ModelError(
        "model.form-unknown",
        given=f"{text} names no model.",
        needed=wanted.get(scheme, f"A model is {_FORMS}."),
        fix=f"Write for example {example.get(scheme, f'{near[0]}:{rest}' if near else 'org/name')}.",
    )


def _parse_run(text: str, name: str, workspace: Path) -> ModelRef:
    runs = workspace / "runs"
    run = runs / check_name(name, what="run")
    if not run.is_dir():
        raise ModelError(
            "model.run-missing",
            given=f"{text}: there is no run {name} in {runs}{_nearest(name, _entries(runs))}.",
            needed="run:NAME means the model that a run of this workspace has made.",
            fix="Correct the name, or start in the workspace of that run.",
        )
    model = run / "model"
    if not (model / "config.json").is_file():
        raise ModelError(
            "model.run-unfinished",
            given=f"{text}: the run {name} has no model yet.",
            needed="The model of a run is written at its end.",
            fix="Let the run finish (resume it if it stopped), or name another run.",
        )
    return ModelRef(text, "run", model, None)


def _parse_gguf(text: str, path: Path) -> ModelRef:
    if path.is_file():
        return ModelRef(text, "gguf", path, None)
    files = [name for name in _entries(path.parent) if name.lower().endswith(".gguf")]
    there = _nearest(path.name, files) or (f" (there is {', '.join(files[:3])})" if files else "")
    raise ModelError(
        "model.gguf-missing",
        given=f"{text} does not exist{there}.",
        needed="A .gguf model is a file on this machine.",
        fix="Correct the path; it is relative to the folder you start in. Download the file first if it is on a hub.",
    )


def _parse_folder(text: str, path: Path, workspace: Path) -> ModelRef:
    if (path / "config.json").is_file():
        return ModelRef(text, "folder", path, None)
    gguf = sorted(path.glob("*.gguf"))
    if (path / "model" / "config.json").is_file():
        fix = f"Name its model: {f'run:{path.name}' if path.parent == workspace / 'runs' else path / 'model'}."
    elif gguf:
        fix = f"Name the file: {gguf[0]}."
    elif (path / "adapter_config.json").is_file():
        fix = "It holds an adapter alone: merge it into its base model first, and name the merged folder."
    else:
        fix = "Name a folder as transformers saves it: config.json, tokenizer and safetensors weights."
    raise ModelError(
        "model.folder-incomplete",
        given=f"The folder {text} has no config.json.",
        needed="Without it nobody knows which model the weights belong to.",
        fix=fix,
    )


def _entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f" (nearest: {', '.join(near)})" if near else ""
