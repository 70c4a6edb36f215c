"""Each setting that a mode accepts is in force there: it is in the record of the run, and the run reads it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from builders import prompt_row, write_rows
from limbeck.driver import train_run
from limbeck.errors import RecipeError, UsageError
from limbeck.recipe import keywords
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import load_recipe
from limbeck.recipe.parts import HostedApiSettings, Lora, OwnAnswers, PracticeGrowth, SamplingSettings, WarmUp
from limbeck.recipe.recipe import Recipe
from misbehaving_server import MisbehavingServer, completion, http
from pairs import write_pair

# long enough that a teacher drawn at random ends some of its answers by itself
TEXTS = {"max_teacher_tokens": 200, "teacher_temperature": 1.0}
OFF_POLICY = {"route": "off-policy", "answers_per_prompt": 4, **TEXTS}
MODES = {
    "on-policy": {},
    "on-policy, adapters": {"lora": {"rank": 2, "alpha": 4}},
    "mixed": {
        **TEXTS,
        "on_policy_share": 0.5,
        "warmup": {"steps": 1, "answers_per_prompt": 4},
        "practice_growth": {"start": 0.5, "until": 1.0},
        "own_answers": {"file": "own.jsonl", "weight": 0.5},
        "train_on": "all_turns",
        "teacher_examples": "few.jsonl",
        "objective": "kl_mix",
    },
    "off-policy by text": OFF_POLICY,
    "off-policy by token": {**OFF_POLICY, "objective": "divergence"},
    "off-policy, hosted": OFF_POLICY,
    "supervised": {"route": "supervised"},
}
PARTS = (Recipe, SamplingSettings, PracticeGrowth, WarmUp, OwnAnswers, Lora)


def flat(settings):
    names = {}
    for name, value in settings.items():
        names |= (
            {f"{name}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return names


@pytest.mark.report("CF-04")
@pytest.mark.parametrize("mode", MODES)
def test_a_run_reads_every_setting_that_its_mode_accepts_and_records_it(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rows = [prompt_row(f"question {number}", answer="ten") for number in range(12)]
    for name in ("own", "few"):
        write_rows(tmp_path / f"{name}.jsonl", [prompt_row(name, answer="ten")])
    read = set()

    def reading(kind):
        prefix = "" if kind is Recipe else f"{next(n for n, each in NESTED.items() if each is kind)}."

        def spy(self, name):
            read.add(f"{prefix}{name}")
            return object.__getattribute__(self, name)

        return spy

    with MisbehavingServer(lambda seen: http(completion(f"to {seen.prompt}, {seen.body['seed']}"))) as server:
        settings = dict(MODES[mode])
        if mode == "off-policy, hosted":
            settings["hosted"] = {"base_url": server.url}
        path = write_pair(tmp_path, rows=rows, steps=2, **settings)
        if mode == "off-policy, hosted":
            path.write_text(path.read_text().replace('teacher: "teacher"', "teacher: openai:tiny"))
        loaded = load_recipe(path, [], {})
        accepted = flat(loaded.recipe.settings())
        with monkeypatch.context() as patch:
            for kind in PARTS:
                patch.setattr(kind, "__getattribute__", reading(kind), raising=False)
            done = train_run(loaded)
    hosted = {f"hosted.{name}" for name in HostedApiSettings.model_fields} if "hosted" in read else set()
    assert set(accepted) - read - hosted == set()
    start = next(event for event in done.read_events() if event["kind"] == "start")
    assert flat(start["settings"]) == accepted == flat(load_recipe(done.recipe_path, [], {}).recipe.settings())


NESTED = {
    "sampling": SamplingSettings,
    "practice_growth": PracticeGrowth,
    "warmup": WarmUp,
    "own_answers": OwnAnswers,
    "lora": Lora,
}
# A value for each setting that is its default nowhere.
OTHER = {
    **{"held_out": 3, "beta": 0.25, "scale": "gkd", "forward_weight": 0.3, "temperature": 3.0},
    **{"max_practice_tokens": 5, "practice_growth": {"start": 0.3, "until": 0.7}, "steps": 9, "prompts_per_step": 3},
    **{"sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 3}, "answers_per_prompt": 3, "on_policy_share": 0.7},
    **{"warmup": {"steps": 2, "answers_per_prompt": 3}, "own_answers": {"file": "x.jsonl", "weight": 0.1}},
    **{"train_on": "all_turns", "max_teacher_tokens": 5, "teacher_temperature": 1.5, "teacher_examples": "y.jsonl"},
    **{"hosted": {"max_calls": 9}, "teacher_options": {"top_p": 0.9}, "lora": {"rank": 3, "alpha": 5}},
    **{"learning_rate": 0.3, "warmup_steps": 1, "decay_share": 0.5, "weight_decay": 0.1, "max_grad_norm": 0.5},
    **{"precision": "bf16-mixed", "teacher_dtype": "bfloat16", "max_prompt_tokens": 99, "long_prompts": "skip"},
    **{"bad_rows": "skip", "template": "teacher", "template_options": {"x": 1}, "micro_batch_tokens": 99, "slots": 3},
    **{"chunk_tokens": 9, "activation_checkpointing": True, "evaluate_every": 3, "held_out_sample": 3},
    **{"grader": {"kind": "exact"}, "keep": "best", "seed": 3, "name": "other", "workspace": "w", "device": "cpu"},
}
CHOSEN_BY_THE_MODE = {"route", "student", "teacher", "prompts", "objective"}


@pytest.mark.report("CF-04")
@pytest.mark.parametrize("mode", MODES)
def test_each_setting_is_in_force_as_given_or_refused_as_not_applicable(mode):
    assert OTHER.keys() | CHOSEN_BY_THE_MODE == Recipe.model_fields.keys()
    needed = {"student": "a/b", "prompts": "p.jsonl", "steps": 9}
    if mode != "supervised":
        needed["teacher"] = "openai:x" if "hosted" in mode else "c/d"
    refused = set()
    for name, value in OTHER.items():
        try:
            settings = Recipe.model_validate({**needed, **MODES[mode], name: value}).settings()
        except ValidationError as error:
            faults = {fault["loc"][0]: fault["type"] for fault in error.errors(include_url=False)}
            told = {each for each in faults.values() if each.startswith("recipe.")}
            assert told <= {"recipe.setting-unused", "recipe.precision-lora"}, (name, faults)
            assert told
            refused.add(name)
            continue
        given = flat({name: value})
        assert given.items() <= flat(settings).items()
    assert ("beta" in refused) == (mode not in ("on-policy", "on-policy, adapters", "off-policy by token"))
    assert ("sampling" in refused) == (mode not in ("on-policy", "on-policy, adapters", "mixed"))
    assert ("hosted" in refused) == (mode != "off-policy, hosted")


@pytest.mark.report("CF-04")
@pytest.mark.parametrize(
    ("share", "num_prompts", "fine"), [(0.5, 4, True), (0.9, 4, False), (0.1, 4, False), (0.5, 1, False)]
)
def test_a_share_that_would_mix_nothing_is_refused(share, num_prompts, fine):
    settings = {"student": "a/b", "teacher": "c/d", "prompts": "p.jsonl", "prompts_per_step": num_prompts}
    if fine:
        assert Recipe(**settings, on_policy_share=share).on_policy_share == share
        return
    rounded = "all prompts" if share > 0.5 else "no prompt"
    told = rf"on_policy_share.*prompts_per_step: {num_prompts}, a share of {share} rounds to {rounded} of a step"
    with pytest.raises(RecipeError, match=told) as refused:
        keywords.Recipe(**settings, on_policy_share=share)
    assert refused.value.code == "recipe.setting-unused"


@pytest.mark.report("CF-04")
def test_settings_of_a_judge_without_a_judge_are_refused():
    with pytest.raises(UsageError, match="judge-tokens is set without --judge"):
        EvaluationOptions(judge_tokens=128)
