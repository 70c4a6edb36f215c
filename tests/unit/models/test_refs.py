"""Model strings."""

from __future__ import annotations

from pathlib import Path

import pytest

from limbeck.errors import ModelError, UsageError
from limbeck.models.refs import ModelRef
from limbeck.models.resolve import parse_ref


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("student-model", "runs/calm-otter-17/model", "org/local"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    (tmp_path / "runs/fresh-hare-20").mkdir()
    (tmp_path / "tiny.Q8_0.gguf").write_bytes(b"GGUF")
    (tmp_path / "only-gguf").mkdir()
    (tmp_path / "only-gguf/model.gguf").write_bytes(b"GGUF")
    (tmp_path / "weights.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "path", "revision"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "hub", None, None),
        ("Qwen/Qwen2.5-0.5B-Instruct@main", "hub", None, "main"),
        ("org/name@refs/pr/3", "hub", None, "refs/pr/3"),
        ("student-model", "folder", "student-model", None),
        ("./student-model/", "folder", "student-model", None),
        # a folder of that name goes before a hub id
        ("org/local", "folder", "org/local", None),
        ("tiny.Q8_0.gguf", "gguf", "tiny.Q8_0.gguf", None),
        ("only-gguf/model.gguf", "gguf", "only-gguf/model.gguf", None),
        ("openai:gpt-4.1-mini", "hosted", None, None),
        ("vllm:http://localhost:8000/v1", "served", None, None),
    ],
)
def test_what_a_model_string_means(
    workspace: Path, text: str, kind: str, path: str | None, revision: str | None
) -> None:
    ref = parse_ref(f" {text}\n", workspace=workspace)
    assert ref == ModelRef(text, ref.kind, None if path is None else Path(path), revision)
    assert ref.kind == kind


def test_a_run_means_its_model_in_the_workspace(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    ref = parse_ref("run:calm-otter-17", workspace=workspace)
    assert ref == ModelRef("run:calm-otter-17", "run", workspace / "runs/calm-otter-17/model", None)


@pytest.mark.report("LE-07")
@pytest.mark.parametrize("beside", [(), ("config.json", "model.safetensors", "adapter_model.safetensors")])
def test_a_folder_with_an_adapter_is_never_read_as_its_base_alone(workspace: Path, beside: tuple[str, ...]) -> None:
    folder = workspace / "tuned"
    folder.mkdir()
    for name in ("adapter_config.json", *beside):
        (folder / name).write_text("{}")
    with pytest.raises(ModelError, match=r"tuned contains an adapter.*merged model") as refused:
        parse_ref("tuned", workspace=workspace)
    assert refused.value.code == "model.adapter"


def test_a_home_folder_is_expanded(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    assert parse_ref("~/student-model", workspace=workspace).path == workspace / "student-model"


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("", "model.not-found", "The name of a model is empty"),
        ("studnet-model", "model.not-found", "(nearest: student-model)"),
        ("gpt2", "model.not-found", "a hub id (org/name"),
        ("./nowhere/at-all", "model.not-found", "There is no model ./nowhere/at-all"),
        ("org/name@", "model.not-found", "There is no model org/name@"),
        ("org/name/more", "model.not-found", "There is no model org/name/more"),
        ("org/na me", "model.not-found", "There is no model org/na me"),
        ("weights.safetensors", "model.not-found", "a .gguf file"),
        ("tiny.Q4_0.gguf", "model.not-found", "(nearest: tiny.Q8_0.gguf, "),
        ("only-gguf/modl.gguf", "model.not-found", "(nearest: model.gguf)"),
        ("only-gguf", "model.folder-incomplete", "Use only-gguf/model.gguf."),
        ("runs", "model.folder-incomplete", "a folder as transformers saves it"),
        ("run:calm-oter-17", "model.run-missing", "(nearest: calm-otter-17)"),
        ("run:fresh-hare-20", "model.run-unfinished", "has no model yet"),
        ("openai:", "model.form-unknown", "openai:gpt-4.1"),
        ("vllm:localhost:8000", "model.form-unknown", "vllm:http://localhost:8000"),
        ("runs:calm-otter-17", "model.form-unknown", "did you mean run: at its beginning?"),
        ("hf:org/name", "model.form-unknown", "A model is a hub id"),
    ],
)
def test_a_string_that_means_nothing_is_refused_with_the_way_out(
    workspace: Path, text: str, code: str, part: str
) -> None:
    with pytest.raises(ModelError) as raised:
        parse_ref(text, workspace=workspace)
    assert raised.value.code == code
    assert part in str(raised.value)


def test_the_folder_of_a_run_points_at_its_model(workspace: Path) -> None:
    with pytest.raises(ModelError, match=r"Use .*runs/calm-otter-17/model"):
        parse_ref(str(workspace / "runs/calm-otter-17"), workspace=workspace)


@pytest.mark.parametrize("name", ["../secrets", "a/b", "", ".hidden"])
def test_a_run_name_stays_inside_the_workspace(workspace: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"names\.not-allowed"):
        parse_ref(f"run:{name}", workspace=workspace)
