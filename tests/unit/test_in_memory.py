"""Models, rows and graders that a program holds as objects."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import limbeck
from builders import CORPUS, prompt_row, save_model, tiny_llama, tiny_tokenizer
from limbeck.errors import DataError, ModelError, RecipeError, Refusal, UsageError
from limbeck.models.fingerprint import weights_hash

SETTINGS = {
    **{"held_out": 6, "steps": 4, "prompts_per_step": 4, "max_practice_tokens": 8, "learning_rate": 1e-3},
    **{"warmup_steps": 0, "evaluate_every": 2},
}
ROWS = [prompt_row(CORPUS[number % len(CORPUS)][: 12 + number]) for number in range(24)]


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def pair(tokenizer):
    return tiny_llama(tokenizer, scale=4.0).train(), tiny_llama(tokenizer, scale=4.0, seed=1)


def state_of_module(module):
    """All that a caller could notice of a module: numbers, objects, flags, functions, configurations."""
    return {
        "weights": {name: (id(each), each.dtype, each.detach().clone()) for name, each in module.named_parameters()},
        "flags": {name: (each.requires_grad, each.grad is None) for name, each in module.named_parameters()},
        "parts": {name: (id(part), part.training, "forward" in vars(part)) for name, part in module.named_modules()},
        "config": module.config.to_dict(),
        "attention": module.config._attn_implementation,
        "generation": (id(module.generation_config), module.generation_config.to_dict()),
        "has_adapters": hasattr(module, "peft_config"),
    }


def assert_unchanged(before, now, *, but_weights=False):
    for name in before.keys() - {"weights"}:
        assert before[name] == now[name], name
    for name, (identity, dtype, weight) in before["weights"].items():
        assert (identity, dtype) == now["weights"][name][:2], name
        if not but_weights:
            assert torch.equal(weight, now["weights"][name][2]), name


def test_a_pair_is_distilled_in_memory_and_stays_as_it_was(pair, tokenizer, tmp_path):
    student, teacher = pair
    torch.set_float32_matmul_precision("high")
    template = tokenizer.chat_template
    before = [state_of_module(each) for each in pair]
    try:
        run = limbeck.distil(student, teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path, **SETTINGS)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert run.status().state == "done"
    for old, module in zip(before, pair, strict=True):
        assert_unchanged(old, state_of_module(module))
    assert tokenizer.chat_template == template
    trained = AutoModelForCausalLM.from_pretrained(run.model_path, dtype=torch.float32)
    assert weights_hash(trained) != weights_hash(student)
    assert [record["step"] for record in run.steps()] == [1, 2, 3, 4]


def test_the_same_pair_from_disk_learns_the_same(pair, tokenizer, tmp_path):
    student, teacher = pair
    save_model(tmp_path / "student", student, tokenizer)
    save_model(tmp_path / "teacher", teacher, tokenizer)
    run = limbeck.distil(student, teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path, **SETTINGS)
    again = limbeck.distil(tmp_path / "student", tmp_path / "teacher", ROWS, workspace=tmp_path, **SETTINGS)
    assert [record["loss"] for record in run.steps()] == [record["loss"] for record in again.steps()]


@pytest.mark.parametrize(
    "settings", [{}, {"lora": {"rank": 2}}, {"precision": "bf16-mixed"}, {"activation_checkpointing": True}]
)
def test_in_place_the_students_own_parameters_are_trained(pair, tokenizer, tmp_path, settings):
    student, teacher = pair
    student = student.to(torch.bfloat16) if "precision" in settings else student
    before, first = state_of_module(student), weights_hash(student)
    chosen = {**SETTINGS, **settings}
    run = limbeck.distil(
        student, teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path, in_place=True, keep="last", **chosen
    )
    assert_unchanged(before, state_of_module(student), but_weights=True)
    assert weights_hash(student) != first
    stored = AutoModelForCausalLM.from_pretrained(run.model_path, dtype=student.dtype)
    assert weights_hash(stored) == weights_hash(student)
    hooks = [parameter._post_accumulate_grad_hooks for parameter in student.parameters()]
    assert hooks == [None] * len(hooks)


def test_an_error_gives_the_student_back_too(pair, tokenizer, tmp_path):
    student, teacher = pair
    before = state_of_module(student)

    def interrupt(event):
        if event["kind"] == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        limbeck.distil(
            student, teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path, in_place=True, listen=interrupt,
            lora={"rank": 2}, **SETTINGS,
        )  # fmt: skip
    assert_unchanged(before, state_of_module(student))


def test_a_copy_of_half_types_is_made_and_the_caller_keeps_them(pair, tokenizer, tmp_path):
    student, teacher = (module.to(torch.bfloat16) for module in pair)
    before = [state_of_module(each) for each in (student, teacher)]
    run = limbeck.distil(student, teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path, **SETTINGS)
    for old, module in zip(before, (student, teacher), strict=True):
        assert_unchanged(old, state_of_module(module))
    assert run.status().state == "done"


def stop_after(step):
    """A listener that ends a run in the middle of what follows a step."""

    def listen(event):
        if event["kind"] == "evaluation" and event["step"] == step:
            raise KeyboardInterrupt

    return listen


def interrupted(student, teacher, tokenizer, folder, **settings):
    with pytest.raises(KeyboardInterrupt):
        limbeck.distil(
            student, teacher, ROWS, tokenizer=tokenizer, workspace=folder, name="cut", listen=stop_after(2),
            **SETTINGS, **settings,
        )  # fmt: skip
    return folder / "runs" / "cut"


def test_a_run_of_objects_goes_on_in_another_process(pair, tokenizer, tmp_path):
    save_model(tmp_path / "named", pair[1], tokenizer)
    teacher = AutoModelForCausalLM.from_pretrained(tmp_path / "named")
    whole = limbeck.distil(pair[0], teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path / "whole", **SETTINGS)
    cut = interrupted(pair[0], teacher, tokenizer, tmp_path)
    script = f"import limbeck; print(limbeck.resume({str(cut)!r}).status().state)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.strip() == "done", done.stderr
    went_on = limbeck.show(cut)
    assert [record["loss"] for record in went_on.steps()] == [record["loss"] for record in whole.steps()]
    assert went_on.read_events()[-1]["weights"] == whole.read_events()[-1]["weights"]


def test_a_run_of_objects_can_be_moved(pair, tokenizer, tmp_path):
    interrupted(*pair, tokenizer, tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    run = limbeck.resume("cut", workspace=tmp_path / "after", teacher=pair[1])
    assert run.status().state == "done"
    assert str(tmp_path / "before") not in run.recipe_path.read_text().partition("student: ")[2].partition("\n")[0]


def test_a_teacher_without_a_name_is_asked_for_and_another_is_refused(pair, tokenizer, tmp_path):
    student, teacher = pair
    cut = interrupted(student, teacher, tokenizer, tmp_path)
    with pytest.raises(ModelError, match=r"limbeck\.resume\(run, teacher=model\)"):
        limbeck.resume(cut)
    with pytest.raises(Refusal, match="fingerprint") as caught:
        limbeck.resume(cut, teacher=tiny_llama(tokenizer, scale=4.0, seed=2))
    assert caught.value.code == "api.teacher-other"
    assert limbeck.resume(cut, teacher=teacher).status().state == "done"
    with pytest.raises(ModelError, match="not stored"):
        limbeck.evaluate(cut, options=limbeck.EvaluationOptions(grader="exact"))
    done = limbeck.evaluate(cut, teacher=teacher, grader=lambda answer, row: len(answer) % 2, workspace=tmp_path)
    assert set(done.scores) == {"student", "distilled", "teacher"}


def test_a_teacher_that_was_changed_since_it_was_loaded_is_not_read_from_its_name(pair, tokenizer, tmp_path):
    save_model(tmp_path / "named", pair[1], tokenizer)
    teacher = AutoModelForCausalLM.from_pretrained(tmp_path / "named")
    with torch.no_grad():
        teacher.get_output_embeddings().weight.mul_(1.5)
    cut = interrupted(pair[0], teacher, tokenizer, tmp_path)
    with pytest.raises(Refusal, match="trained or changed") as caught:
        limbeck.resume(cut)
    assert caught.value.code == "model.other-weights"
    assert limbeck.resume(cut, teacher=teacher).status().state == "done"


def test_a_teacher_held_in_a_half_type_is_read_again_and_rounded_as_it_was(pair, tokenizer, tmp_path):
    save_model(tmp_path / "named", pair[1], tokenizer)
    teacher = AutoModelForCausalLM.from_pretrained(tmp_path / "named", dtype=torch.bfloat16)
    cut = interrupted(pair[0], teacher, tokenizer, tmp_path)
    assert limbeck.resume(cut).status().state == "done"


def test_rows_and_weights_that_were_changed_in_the_run_are_refused(pair, tokenizer, tmp_path):
    cut = interrupted(*pair, tokenizer, tmp_path)
    rows = cut / "inputs" / "prompts.jsonl"
    rows.write_text(rows.read_text().replace("prompt", "prompt", 1) + json.dumps(prompt_row("one more")) + "\n")
    with pytest.raises(Refusal, match="prompts"):
        limbeck.resume(cut, teacher=pair[1])


def test_a_name_of_a_setting_that_is_nearly_right_is_told(pair, tokenizer, tmp_path):
    with pytest.raises(RecipeError, match=r"learning_rat=0\.1.*Did you mean learning_rate\?"):
        limbeck.distil(*pair, ROWS, tokenizer=tokenizer, workspace=tmp_path, learning_rat=0.1)
    for call in (limbeck.Recipe, lambda **settings: limbeck.train(settings)):
        with pytest.raises(RecipeError, match="Did you mean learning_rate"):
            call(student="a/b", teacher="c/d", prompts="p.jsonl", learning_rat=0.1)
    with pytest.raises(RecipeError, match="3 problems"):
        limbeck.Recipe(student="a/b", teacher="c/d", prompts="p.jsonl", beta=2, steps="many", sampling={"top_q": 1})
    assert not (tmp_path / "runs").exists()


def test_what_is_no_recipe_is_told(tmp_path):
    for given in (3, ["a"], None):
        with pytest.raises(UsageError, match="dict of settings"):
            limbeck.train(given)
    with pytest.raises(UsageError, match="with a recipe that is not a file"):
        limbeck.train({"student": "a/b"}, overrides=["steps=1"])


def test_what_is_no_model_and_no_rows_is_told(pair, tokenizer, tmp_path):
    with pytest.raises(ModelError, match="object of type list"):
        limbeck.distil([], pair[1], ROWS, tokenizer=tokenizer)
    with pytest.raises(ModelError, match="tokenizer="):
        limbeck.distil(*pair, ROWS)
    for rows, told in (({"train": ROWS}, "choose one"), ([3], "Row 0"), ([{"prompt": "a", "x": object()}], "as JSON")):
        with pytest.raises(DataError, match=told):
            limbeck.distil(*pair, rows, tokenizer=tokenizer)
    with pytest.raises(UsageError, match="object of type int"):
        limbeck.distil(*pair, ROWS, tokenizer=tokenizer, grader=3)


def test_single_steps_are_those_of_a_run_and_leave_a_plain_student(pair, tokenizer, tmp_path):
    student, teacher = pair
    run = limbeck.distil(student, teacher, ROWS, tokenizer=tokenizer, workspace=tmp_path, **SETTINGS)
    before = [state_of_module(each) for each in pair]
    with limbeck.steps(student, teacher, ROWS, tokenizer=tokenizer, **SETTINGS) as steps:
        losses = [record.loss for record in steps]
    assert losses == [record["loss"] for record in run.steps()]
    assert weights_hash(steps.student) == run.read_events()[-1]["weights"]
    assert not any("forward" in vars(part) for part in steps.student.modules())
    for old, module in zip(before, pair, strict=True):
        assert_unchanged(old, state_of_module(module))


def test_steps_in_place_stop_where_the_caller_stops(pair, tokenizer):
    student, teacher = pair
    before = state_of_module(student)
    steps = limbeck.steps(student, teacher, ROWS, tokenizer=tokenizer, in_place=True, lora={"rank": 2}, **SETTINGS)
    next(steps)
    assert steps.student is student
    assert hasattr(student, "peft_config")
    steps.close()
    steps.close()
    assert_unchanged(before, state_of_module(student), but_weights=True)
    assert any(
        not torch.equal(old, now)
        for (_, _, old), now in zip(before["weights"].values(), student.parameters(), strict=True)
    )
    assert next(steps, None) is None


def test_steps_take_an_optimizer_and_a_schedule(pair, tokenizer):
    made = []

    def optimizer(parameters):
        made.append(torch.optim.SGD(parameters, lr=1.0))
        return made[0]

    rates = [0.1, 0.2, 0.3, 0.4]
    steps = limbeck.steps(*pair, ROWS, tokenizer=tokenizer, optimizer=optimizer, schedule=rates.__getitem__, **SETTINGS)
    assert [record.learning_rate for record in steps] == rates
    assert steps.optimizer is made[0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_model_that_is_its_own_teacher_stays_the_teacher(tokenizer, in_place, lora):
    model = tiny_llama(tokenizer, scale=4.0)
    before = state_of_module(model)
    given = {"tokenizer": tokenizer, "in_place": in_place, "lora": lora, **SETTINGS}
    given |= {"objective": "divergence", "sampling": {"temperature": 2.0}, "learning_rate": 1e-2}
    records = list(limbeck.steps(model, model, ROWS, **given))
    assert records[0].loss == pytest.approx(0, abs=1e-6)
    assert_unchanged(before, state_of_module(model), but_weights=in_place)


def test_off_policy_steps_learn_what_the_teacher_writes(pair, tokenizer, tmp_path):
    settings = {name: value for name, value in SETTINGS.items() if name != "max_practice_tokens"}
    settings |= {"route": "off-policy", "answers_per_prompt": 2, "max_teacher_tokens": 10, "teacher_temperature": 1.0}
    rows = [*ROWS, *(prompt_row(f"{text} again") for text in CORPUS)]
    given = {"tokenizer": tokenizer, **settings}
    run = limbeck.distil(*pair, rows, workspace=tmp_path, **given)
    assert [record.loss for record in limbeck.steps(*pair, rows, **given)] == [each["loss"] for each in run.steps()]


def test_objects_are_worth_chatted_with_and_marked(pair, tokenizer, tmp_path):
    student, teacher = pair
    before = [state_of_module(each) for each in pair]
    recipe = {"student": student, "teacher": teacher, "prompts": ROWS, "held_out": 6, "workspace": tmp_path}
    recipe |= {"max_practice_tokens": 8, "grader": lambda answer, row: len(answer) % 2}
    worth = limbeck.worth(recipe, tokenizer=tokenizer)
    assert worth.verdict is not None
    assert "/tmp" not in json.dumps(worth.result()["prompts"])
    compared = limbeck.evaluate(
        student=student, teacher=teacher, prompts=ROWS[:4], tokenizer=tokenizer, grader="exact", workspace=tmp_path,
        options=limbeck.EvaluationOptions(max_tokens=4),
    )  # fmt: skip
    assert set(compared.scores) == {"student", "teacher"}
    talk = limbeck.chat(student, ["hello", "again"], tokenizer=tokenizer, max_tokens=8)
    assert len(talk) == 2
    marks = limbeck.mark(student, teacher, prompt="hello", answer="well", tokenizer=tokenizer)
    assert [row["position"] for row in marks.rows()] == list(range(len(marks.answers[0])))
    for old, module in zip(before, pair, strict=True):
        assert_unchanged(old, state_of_module(module))


def test_the_library_reads_no_settings_from_the_environment(pair, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIMBECK_STEPS", "1")
    monkeypatch.setenv("LIMBECK_BETA", "nonsense")
    run = limbeck.distil(*pair, ROWS, tokenizer=tokenizer, workspace=tmp_path, **SETTINGS)
    assert run.status().steps == SETTINGS["steps"]


def test_frames_and_datasets_are_rows_of_their_fields(tmp_path):
    from limbeck.inputs_in_memory import rows_file

    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": ["a", "b"], "answer": ["x", None], "score": [1.5, float("nan")], "n": [1, 2]})
    rows = [json.loads(line) for line in Path(rows_file(frame, "prompts", tmp_path)).read_text().splitlines()]
    assert rows == [{"prompt": "a", "answer": "x", "score": 1.5, "n": 1}, {"prompt": "b", "n": 2}]
    datasets = pytest.importorskip("datasets")
    turns = [{"role": "user", "content": "a", "name": None}]
    data = datasets.Dataset.from_list([{"messages": turns, "answer": None}])
    rows = [json.loads(line) for line in Path(rows_file(data, "held_out", tmp_path)).read_text().splitlines()]
    assert rows == [{"messages": [{"role": "user", "content": "a"}]}]


def test_the_fingerprint_is_that_of_the_numbers_and_not_of_their_type(tokenizer):
    model = tiny_llama(tokenizer).to(torch.bfloat16)
    wide = copy.deepcopy(model).float()
    assert weights_hash(model) != weights_hash(wide)
    assert weights_hash(model, read_as=torch.float32) == weights_hash(wide, read_as=torch.float32) == weights_hash(wide)
    assert weights_hash(wide, read_as=torch.bfloat16) == weights_hash(wide)


def test_results_are_shown_in_a_notebook_and_become_frames(pair, tokenizer, tmp_path):
    pytest.importorskip("pandas")
    run = limbeck.distil(*pair, ROWS, tokenizer=tokenizer, workspace=tmp_path, **SETTINGS)
    assert list(run.to_pandas()["step"]) == [1, 2, 3, 4]
    assert len(run.answers_to_pandas("prompts-train")) == 18
    runs, check = (
        limbeck.list_runs(tmp_path),
        limbeck.check({**recipe_of_objects(pair), "workspace": tmp_path}, tokenizer=tokenizer),
    )
    assert runs.to_pandas()["run"].tolist() == [run.name]
    lineage = limbeck.lineage(run)
    assert lineage.to_pandas()["role"].tolist() == ["run", "student", "teacher"]
    for shown in (run, runs, check, lineage, limbeck.doctor({})):
        html = shown._repr_html_()
        assert html.startswith("<iframe sandbox srcdoc=")
        assert "<script" not in html


def recipe_of_objects(pair):
    return {"student": pair[0], "teacher": pair[1], "prompts": ROWS, **SETTINGS}


def test_without_pandas_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(limbeck.LimbeckError, match="pip install pandas"):
        limbeck.list_runs().to_pandas()


def test_a_name_of_a_hub_model_leads_to_its_tokenizer(pair, tokenizer, tmp_path):
    save_model(tmp_path / "named", pair[0], tokenizer)
    student = AutoModelForCausalLM.from_pretrained(tmp_path / "named")
    talk = limbeck.chat(student, "hello")
    assert talk.replies == limbeck.chat(tmp_path / "named", "hello").replies
    assert AutoTokenizer.from_pretrained(tmp_path / "named").get_vocab() == tokenizer.get_vocab()
