"""Runs that come from runs: stages in one command, parents by content, the tree, and teachers that differ."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
from test_routes_on_disk import OFF_POLICY, of_kind, own_rows, weights_of

from builders import CHATML, OTHER_CORPUS, save_model, tiny_llama, tiny_tokenizer
from limbeck import api
from limbeck.cli import run_cli
from limbeck.errors import LimbeckError, ModelError, Refusal
from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.runs.lineage import LineageNode, content_of, lineage_of, other_teachers, teachers_of
from limbeck.runs.store import Run
from pairs import write_pair


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Three stages in one workspace: off-policy, on-policy with the same teacher, supervised."""
    workspace = tmp_path_factory.mktemp("chain")
    common = {"workspace": str(workspace), "steps": 2, "rows": own_rows()}
    paths = []
    for name, settings in (("warm", OFF_POLICY), ("main", {}), ("style", {"route": "supervised"})):
        (workspace / name).mkdir()
        student = {} if name == "warm" else {"student": "previous"}
        path = write_pair(workspace / name, **common, **settings)
        text = path.read_text().replace('name: "tiny"', f'name: "{name}"')
        if student:
            text = text.replace('student: "student"', "student: previous")
        text = text.replace('teacher: "teacher"', f'teacher: "{workspace}/warm/teacher"')
        path.write_text(text)
        paths.append(path)
    last = api.train(*paths)
    return workspace, last


def test_each_stage_goes_on_from_the_one_before(chain):
    workspace, last = chain
    assert last.name == "style"
    runs = {name: Run.open(workspace / "runs" / name) for name in ("warm", "main", "style")}
    for later, earlier in (("main", "warm"), ("style", "main")):
        start = of_kind(runs[later], "start")[0]
        assert start["student"]["weights"] == weights_of(runs[earlier])
        assert start["parents"] == [
            {"role": "student", "run": earlier, "step": None, "weights": weights_of(runs[earlier])}
        ]
    assert of_kind(runs["warm"], "start")[0]["parents"] == []


def test_the_tree_leads_back_to_the_first_models(chain):
    workspace, last = chain
    root = lineage_of(last, workspace)
    names, node = [], root
    while node.parents:
        node = node.parents[0]
        names.append((node.role, node.name))
    assert [name for _, name in names[:2]] == ["main", "warm"]
    assert names[2][1].endswith("warm/student")
    assert other_teachers(root) == ""
    assert [run for run, _ in teachers_of(root)] == ["main", "warm"]


def test_the_command_draws_it(chain, capsys):
    workspace, _ = chain
    assert run_cli(["lineage", "style", "--workspace", str(workspace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("style  (supervised, done after step 2)")
    assert lines[1].startswith("└─ student: main  (on-policy")
    assert lines[2].startswith("   ├─ student: warm  (off-policy")


def test_a_parent_that_was_trained_anew_is_told(chain, tmp_path):
    workspace, _ = chain
    other = tmp_path / "copy"
    shutil.copytree(workspace / "runs", other / "runs")
    log = other / "runs" / "main" / "events.jsonl"
    log.write_text(log.read_text().replace(weights_of(Run.open(other / "runs" / "main")), "0" * 64))
    assert "CHANGED" in lineage_of(Run.open(other / "runs" / "style"), other).parents[0].about
    shutil.rmtree(other / "runs" / "main")
    assert "not in this workspace" in lineage_of(Run.open(other / "runs" / "style"), other).parents[0].about


def test_another_teacher_in_a_later_stage_is_warned_of(chain, tmp_path):
    workspace, _ = chain
    tokenizer = tiny_tokenizer()
    save_model(tmp_path / "other", tiny_llama(tokenizer, scale=4.0, seed=9), tokenizer)
    recipe = workspace / "main" / "recipe.yaml"
    run = api.train(recipe, overrides=["student=run:warm", f"teacher={tmp_path / 'other'}", "name=other", "steps=1"])
    notes = [event["text"] for event in of_kind(run, "note")]
    assert any("different teachers: " in note and " for other, " in note and " for warm. " in note for note in notes)


def test_a_checkpoint_of_a_run_is_a_model_by_its_own_content(chain, tmp_path):
    workspace, _ = chain
    recipe = workspace / "main" / "recipe.yaml"
    long = api.train(recipe, overrides=["student=run:warm", "name=long", "steps=3", "evaluate_every=1"])
    whole = load_model(parse_ref("run:long", workspace=workspace), **_plainly())
    step3 = load_model(parse_ref("run:long@3", workspace=workspace), **_plainly())
    step2 = load_model(parse_ref("run:long@2", workspace=workspace), **_plainly())
    same = [a.equal(b) for a, b in zip(whole.module.parameters(), step3.module.parameters(), strict=True)]
    assert all(same)
    assert not all(a.equal(b) for a, b in zip(whole.module.parameters(), step2.module.parameters(), strict=True))
    run = api.train(recipe, overrides=["student=run:long@2", "name=back", "steps=1"])
    parent = of_kind(run, "start")[0]["parents"][0]
    assert parent == {"role": "student", "run": "long", "step": 2, "weights": content_of(long, 2)}
    assert lineage_of(run, workspace).parents[0].name == "long@2"
    with pytest.raises(ModelError, match="of these steps: 2, 3"):
        parse_ref("run:long@1", workspace=workspace)
    shutil.rmtree(long.model_path)  # before its end, a run's checkpoint stands on its student
    load_model(parse_ref("run:long@2", workspace=workspace), **_plainly())


def _plainly():
    return {"trainable": False, "dtype": torch.float32, "device": torch.device("cpu")}


def test_a_dry_run_plans_every_stage_before_there_is_a_run_of_any(tmp_path, capsys):
    paths = []
    for name, settings in (("first", {}), ("second", {"student": "previous", "teacher": "run:first"})):
        path = write_pair(tmp_path / name, workspace=str(tmp_path), num_prompts=20 if name == "first" else 14)
        path = path.rename(path.with_name(f"{name}.yaml"))
        text = path.read_text().replace('name: "tiny"', f'name: "{name}"')
        for role, model in settings.items():
            text = text.replace(f'{role}: "{role}"', f'{role}: "{model}"')
        path.write_text(text)
        paths.append(str(path))
    assert run_cli(["train", *paths, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert told.index("first.yaml") < told.index("14 prompts for training") < told.index("second.yaml")
    assert told.index("second.yaml") < told.index("8 prompts for training")
    assert not (tmp_path / "runs").exists()
    assert run_cli(["train", paths[1], "--dry-run"]) == 2  # alone it has nothing before it
    (tmp_path / "second" / "rows.jsonl").unlink()
    assert run_cli(["train", *paths, "--dry-run"]) == 2


def test_teachers_are_told_apart_by_content_and_not_by_name():
    def stages(*teachers):
        node = None
        for number, teacher in enumerate(teachers):
            parents = () if node is None else (replace(node, role="student"),)
            node = LineageNode(
                "run", f"stage-{number}", "", dict(zip(("name", "weights", "dtype"), teacher, strict=True)), parents
            )
        return other_teachers(node)

    first = ("big", "a" * 64, "float32")
    assert stages(first, ("moved/big", "a" * 64, "float32")) == ""
    assert "different teachers: big for stage-1, big for stage-0." in stages(first, ("big", "b" * 64, "float32"))
    # rounded weights have another hash, and an interface has none: then the name decides
    assert stages(first, ("big", "b" * 64, "bfloat16")) == ""
    assert "different" in stages(first, ("other", "b" * 64, "bfloat16"))
    assert stages(("openai:x at desk", None, None), ("openai:x at desk", None, None)) == ""
    assert "different" in stages(("openai:x at desk", None, None), ("openai:x at home", None, None))
    assert "different" in stages(first, ("openai:x at home", None, None))


def test_a_stage_that_learns_from_one_before_it_has_no_other_teacher(chain):
    """Lost skills are brought back by the run before they were lost, which is no second master."""
    workspace, _ = chain
    recipe = workspace / "main" / "recipe.yaml"
    back = api.train(recipe, overrides=["student=run:style", "teacher=run:warm", "name=recovered", "steps=1"])
    assert not [event for event in of_kind(back, "note") if "different teachers" in event["text"]]
    roles = {parent["role"]: parent["run"] for parent in of_kind(back, "start")[0]["parents"]}
    assert roles == {"student": "style", "teacher": "warm"}


def test_previous_needs_a_stage_before(tmp_path):
    with pytest.raises(ModelError, match=r"limbeck train FIRST\.yaml SECOND\.yaml"):
        api.train(write_pair(tmp_path), overrides=["student=previous"])


def variant(recipe, beside, /, **settings):
    """The recipe beside itself under another name, with other settings."""
    values = dict(line.split(": ", 1) for line in recipe.read_text().splitlines())
    values |= {key: json.dumps(value) for key, value in settings.items()}
    path = recipe.with_name(f"{beside}.yaml")
    path.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return path


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A recipe, and beside it a teacher that splits text otherwise and a run called taken."""
    folder = tmp_path_factory.mktemp("stages")
    path = variant(write_pair(folder, steps=1), "first", name="first")
    other = tiny_tokenizer(corpus=OTHER_CORPUS)
    save_model(folder / "other", tiny_llama(other), other)
    (folder / "runs" / "taken").mkdir(parents=True)
    return path


FAULTS = {
    "a setting": ({"beta": 7}, "recipe."),
    "the name of another stage": ({"name": "first"}, "run.exists"),
    "a name that is taken": ({"name": "taken"}, "run.exists"),
    "prompts that are not there": ({"prompts": "nowhere.jsonl"}, "data.file-missing"),
    "a model that is not there": ({"teacher": "nowhere"}, "model.not-found"),
    "the run of no stage": ({"teacher": "run:second"}, "model.run-missing"),
    "a pair that splits text otherwise": ({"teacher": "other"}, "vocabulary.mismatch"),
    "previous in another workspace": ({"workspace": "elsewhere"}, "model.no-previous"),
    "nothing to grade": ({"keep": "best"}, "evaluation.keep-ungraded"),
    "memory": ({"micro_batch_tokens": 10**9}, "memory.does-not-fit"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_later_stage_is_told_before_the_first_trains(first, fault, monkeypatch, capsys):
    settings, code = FAULTS[fault]
    later = variant(first, "later", **{"name": "later", "student": "previous", **settings})
    monkeypatch.setattr("limbeck.training.setup.load_model", None)
    with pytest.raises(LimbeckError) as told:
        api.train(first, later)
    assert told.value.code.startswith(code)
    assert run_cli(["train", str(first), str(later), "--dry-run"]) == told.value.exit_code
    assert code in capsys.readouterr().err
    assert [path.name for path in (first.parent / "runs").iterdir()] == ["taken"]


def test_a_stage_is_asked_in_the_template_that_the_one_before_it_hands_over(tmp_path):
    """The student comes without a template, and takes on its teacher's in the first stage."""
    path = write_pair(tmp_path, steps=1, rows=own_rows(), template="teacher")
    (tmp_path / "student" / "chat_template.jinja").unlink()
    later = variant(path, "later", name="later", student="previous", template="student")
    last = api.train(path, later)
    assert last.status().state == "done"
    assert of_kind(last, "start")[0]["template"]["sha256"] == sha256(CHATML.encode()).hexdigest()


def test_answers_alone_are_those_of_the_training_run(tmp_path):
    path = write_pair(tmp_path, **OFF_POLICY)
    assert run_cli(["answers", str(path)]) == 0
    written = Run.open(tmp_path / "runs" / "tiny-answers")
    assert written.status().state == "done"
    trained = api.train(path)
    for name in ("teacher", "targets"):
        assert written.read_answers(name) == trained.read_answers(name)


def test_answers_of_a_recipe_that_reads_none_are_refused(tmp_path):
    with pytest.raises(
        Refusal, match="route: on-policy, and neither a warmup nor an on_policy_share below 1"
    ) as refused:
        api.answers(write_pair(tmp_path))
    assert refused.value.code == "answers.not-needed"
