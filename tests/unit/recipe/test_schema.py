"""The settings of a run: their bounds, the rules between them, and that each explains itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from pydantic import ValidationError

from limbeck.errors import RecipeError
from limbeck.recipe import keywords
from limbeck.recipe.explain import explain, json_schema, setting_names
from limbeck.recipe.parts import PracticeGrowth
from limbeck.recipe.recipe import Recipe

NEEDED = {"student": "org/small", "teacher": "org/big", "prompts": "p.jsonl"}


def recipe(**changes: object) -> Recipe:
    return Recipe.model_validate({**NEEDED, **changes})


def causes(**changes: object) -> dict[str, str]:
    """The code of each refused setting; pydantic's own kind where it is a plain fault of type or range."""
    with pytest.raises(ValidationError) as caught:
        recipe(**changes)
    found = {}
    for fault in caught.value.errors(include_url=False):
        if fault["type"] == "default_factory_not_called":
            continue  # a default that waits for the setting at fault
        found[".".join(str(part) for part in fault["loc"])] = fault["type"]
    return found


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert recipe().settings() == {
        **NEEDED,
        "held_out": 0.1,
        "route": "on-policy",
        "objective": "divergence",
        "beta": 1.0,
        "scale": "unit",
        "temperature": 1.0,
        "max_practice_tokens": 256,
        "practice_growth": None,
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0},
        "steps": 200,
        "prompts_per_step": 32,
        "answers_per_prompt": 1,
        "on_policy_share": 1.0,
        "warmup": None,
        "own_answers": None,
        "lora": None,
        "learning_rate": 1e-5,
        "warmup_steps": 10,
        "decay_share": 0.2,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "precision": "float32",
        "teacher_dtype": "float32",
        "max_prompt_tokens": 1024,
        "long_prompts": "refuse",
        "bad_rows": "refuse",
        "template": "student",
        "template_options": {},
        "micro_batch_tokens": 4096,
        "slots": 32,
        "chunk_tokens": 128,
        "activation_checkpointing": False,
        "evaluate_every": 20,
        "held_out_sample": 64,
        "grader": None,
        "keep": "last",
        "seed": 0,
        "name": None,
        "workspace": ".",
        "device": "auto",
    }
    assert recipe(objective="kl_mix").forward_weight == 0.5
    assert PracticeGrowth() == PracticeGrowth(start=0.25, until=0.5)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("beta", [0, 1, 0.5], [-1e-9, 1.1, "0.5", True, math.nan, math.inf, None]),
        ("temperature", [0.1, 4], [0, -1, math.inf]),
        ("max_practice_tokens", [1, 1e3], [0, 1.5, "256", True, -3]),
        ("practice_growth", [None, {}, {"start": 1, "until": 0.1}], [4, {"start": 0}, {"until": 1.5}, {"begin": 0.5}]),
        ("sampling", [{}, {"temperature": 0}, {"top_p": 0.9, "top_k": 5}], [1.0, {"top_p": 0}, {"top_k": -1}, None]),
        ("steps", [1, 10_000], [0, -1, 2.5, False]),
        ("prompts_per_step", [1], [0]),
        ("lora", [None, {}, {"rank": 1, "alpha": 1}], [8, True, {"rank": 0}, {"alpha": 0.5}, {"dropout": 0.1}]),
        ("learning_rate", [1e-5, 1], [0, -1e-5, 2, math.nan]),
        ("warmup_steps", [0, 199], [-1, 200, 0.5]),
        ("decay_share", [0, 1], [-0.1, 1.5]),
        ("weight_decay", [0, 0.1], [-0.1, math.nan]),
        ("max_grad_norm", [0.5], [0, math.inf]),
        ("precision", ["float32", "bf16-mixed", "auto"], ["float16", "bfloat16", None]),
        ("teacher_dtype", ["float32", "bfloat16", "auto"], ["float16", "bf16-mixed", None]),
        ("held_out", [0.1, 1, 200, "held.jsonl"], [0, 0.0, 1.0, 12.5, -3, True, "", " ", math.nan, None]),
        ("long_prompts", ["refuse", "skip"], ["truncate", True]),
        ("template_options", [{"enable_thinking": False, "date": "1 May"}], [{"tools": []}, "x", None]),
        ("device", ["auto", "cpu", "cuda", "cuda:3"], ["gpu", "cuda:", "cuda:0; rm", "cpu\n", ""]),
        ("seed", [0, 2**63 - 1], [-1, 2**63, 0.5]),
        ("name", [None, "calm-otter-17"], ["../x", "", "a b", ".x", 7]),
        ("student", ["a/b", "./folder", "x.gguf", "run:calm-otter-17"], ["", "  ", None, 7]),
        ("prompts", ["p.jsonl"], ["", None]),
        ("objective", ["divergence", "kl_mix", "soft_targets"], ["jsd", ""]),
        ("scale", ["unit", "gkd"], ["raw"]),
        ("on_policy_share", [1, 0.5], [0, 1.1, None]),
        ("warmup", [None, {}, {"steps": 199, "answers_per_prompt": 1}], [5, {"steps": 200}, {"steps": 0}]),
        ("own_answers", [None, {"file": "a.jsonl", "weight": 0.1}], [{}, "a.jsonl", {"file": "a", "weight": 0}]),
    ],
)
def test_bounds(name: str, allowed: list[object], refused: list[object]) -> None:
    for value in allowed:
        assert name in type(recipe(**{name: value})).model_fields
    for value in refused:
        assert any(key.split(".")[0] == name for key in causes(**{name: value})), value


def test_whole_numbers_in_scientific_form_are_whole_numbers() -> None:
    steps = recipe(steps=1e3).steps
    assert steps == 1000
    assert type(steps) is int


@pytest.mark.parametrize(
    ("objective", "unused"),
    [
        ("kl_mix", {"beta": 0.5, "scale": "unit"}),
        ("soft_targets", {"beta": 1.0, "scale": "gkd", "forward_weight": 0.5}),
        ("divergence", {"forward_weight": 0.5}),
    ],
)
def test_a_setting_of_another_objective_is_refused_even_at_its_default(
    objective: str, unused: dict[str, object]
) -> None:
    assert causes(objective=objective, **unused) == dict.fromkeys(unused, "recipe.setting-unused")
    assert not set(unused) & set(recipe(objective=objective).settings())


@pytest.mark.parametrize("objective", ["divergence", "kl_mix", "soft_targets"])
def test_settings_read_again_are_the_same_recipe(objective: str) -> None:
    first = recipe(
        objective=objective,
        steps=30,
        practice_growth={},
        lora={},
        sampling={"top_p": 0.9},
        template_options={"a": True},
    )
    assert Recipe.model_validate(first.settings()) == first
    assert Recipe.model_validate(json.loads(json.dumps(first.settings()))) == first


def test_short_runs_warm_up_shorter() -> None:
    assert [recipe(steps=steps).warmup_steps for steps in (1, 9, 10, 55, 100, 5000)] == [0, 0, 1, 5, 10, 10]


def test_adapters_learn_faster_by_default_and_only_by_default() -> None:
    assert recipe(lora={}).learning_rate == 1e-4
    assert recipe(lora=None).learning_rate == 1e-5
    assert recipe(lora={}, learning_rate=3e-4).learning_rate == 3e-4


def test_a_chat_api_cannot_be_the_teacher_and_the_message_says_why() -> None:
    with pytest.raises(ValidationError, match="cannot score a given text"):
        recipe(teacher="openai:gpt-5")
    remote = "recipe.model-remote"
    assert causes(teacher="vllm:http://x", student="openai:x") == {"teacher": remote, "student": remote}


def test_the_refusal_of_a_remote_model_names_a_way_that_leads_on() -> None:
    """off-policy for a chat API, its chat API for a scoring server, and neither where the student is meant."""

    def fix(**changes: object) -> str:
        with pytest.raises(ValidationError) as caught:
            recipe(**changes)
        return str(caught.value.errors(include_url=False)[0]["ctx"]["fix"])

    assert "set route: off-policy" in fix(teacher=" openai:gpt-5")
    assert "teacher: openai:MODEL" in fix(teacher="vllm:http://x") == fix(teacher="vllm:http://x", **OFF_POLICY)
    assert "off-policy" not in fix(student="openai:x") + fix(student="vllm:http://x", **OFF_POLICY)


OFF_POLICY = {"route": "off-policy"}
SUPERVISED = {"route": "supervised", "teacher": None}


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        (OFF_POLICY, {"max_practice_tokens": 9, "practice_growth": {}, "sampling": {}, "warmup": {}}),
        (OFF_POLICY, {"beta": 0.0, "scale": "unit", "temperature": 1.0, "train_on": "last_turn"}),
        ({**OFF_POLICY, "objective": "soft_targets"}, {"beta": 0.0, "on_policy_share": 0.5}),
        (SUPERVISED, {"teacher": "a/b", "objective": "divergence", "beta": 1, "temperature": 1, "own_answers": {}}),
        (SUPERVISED, {"answers_per_prompt": 1, "max_teacher_tokens": 9, "teacher_temperature": 1, "warmup": {}}),
        (
            {},
            {
                "max_teacher_tokens": 9,
                "teacher_temperature": 0.7,
                "teacher_examples": "a.jsonl",
                "train_on": "all_turns",
            },
        ),
    ],
)
def test_a_setting_that_the_route_does_not_use_is_refused_and_left_out(
    settings: dict[str, object], unused: dict[str, object]
) -> None:
    found = causes(**{**settings, **unused})
    assert {name: found[name] for name in unused} == dict.fromkeys(unused, "recipe.setting-unused")
    assert not set(unused) & set(recipe(**settings).settings())


def test_settings_of_the_teachers_answers_wait_for_a_step_that_reads_them() -> None:
    for reads in ({"warmup": {"steps": 5}}, {"on_policy_share": 0.5}, OFF_POLICY):
        assert recipe(**reads, max_teacher_tokens=9).settings()["max_teacher_tokens"] == 9
    assert recipe(own_answers={"file": "a.jsonl"}, train_on="all_turns").settings()["train_on"] == "all_turns"


@pytest.mark.parametrize("settings", [OFF_POLICY, {**OFF_POLICY, "objective": "divergence"}, SUPERVISED])
def test_settings_of_every_route_read_again_are_the_same_recipe(settings: dict[str, object]) -> None:
    first = recipe(**settings)
    assert Recipe.model_validate(json.loads(json.dumps(first.settings()))) == first


def test_defaults_that_depend_on_the_route() -> None:
    off_policy = recipe(**OFF_POLICY)
    assert (off_policy.objective, off_policy.answers_per_prompt) == ("cross_entropy", 4)
    assert recipe(**OFF_POLICY, objective="divergence").beta == 0.0
    assert recipe(**SUPERVISED).objective == "cross_entropy"


def test_a_route_with_a_teacher_asks_for_one() -> None:
    assert causes(teacher=None) == causes(teacher=None, **OFF_POLICY) == {"teacher": "recipe.key-missing"}


def test_a_chat_api_may_write_off_policy_but_has_no_distribution() -> None:
    assert recipe(**OFF_POLICY, teacher="openai:x").teacher == "openai:x"
    assert causes(**OFF_POLICY, teacher="openai:x", objective="kl_mix") == {"objective": "recipe.model-remote"}
    assert causes(**OFF_POLICY, teacher="vllm:http://x") == {"teacher": "recipe.model-remote"}


HOSTED = {**OFF_POLICY, "teacher": "openai:x"}


def test_where_a_hosted_teacher_is_and_what_it_may_cost() -> None:
    url = "http://10.0.0.5:8000/v1"
    given = {"base_url": url, "alias": "desk", "max_cost": 5, "input_price": 0.4, "output_price": 0}
    found = recipe(**HOSTED, hosted=given, teacher_options={"top_p": 0.9, "seed": None})
    assert (found.hosted.base_url, found.hosted.max_cost, found.hosted.concurrency) == (url, 5.0, 8)
    assert Recipe.model_validate(json.loads(json.dumps(found.settings()))) == found
    assert "teacher_dtype" not in found.settings()
    assert not {"hosted", "teacher_options"} & set(recipe(**OFF_POLICY).settings())


@pytest.mark.parametrize(
    ("field", "refused"),
    [
        ("base_url", ["ftp://h/v1", "h/v1", "http://u:p@h/v1", "http://h/v1?key=1", "http://", "http://h v", None]),
        ("alias", ["../x", "", "a b"]),
        ("max_calls", [0, 1.5, True]),
        ("max_total_tokens", [0, -1]),
        ("max_cost", [0, -1, math.inf, 5]),  # 5 without prices
        ("input_price", [-1, math.nan]),
        ("concurrency", [0]),
        ("deadline_s", [0, math.inf]),
    ],
)
def test_bounds_of_a_hosted_teachers_settings(field: str, refused: list[object]) -> None:
    for value in refused:
        assert f"hosted.{field}" in causes(**HOSTED, hosted={field: value}), value


def test_settings_of_a_hosted_teacher_are_refused_for_another_one() -> None:
    unused = "recipe.setting-unused"
    assert causes(**OFF_POLICY, hosted={}, teacher_options={}) == {"hosted": unused, "teacher_options": unused}
    assert causes(hosted={}) == {"hosted": unused}
    assert causes(**HOSTED, teacher_dtype="bfloat16") == {"teacher_dtype": unused}


def test_several_answers_at_temperature_0_would_be_one() -> None:
    alike = {"teacher_temperature": "recipe.answers-alike"}
    assert causes(**OFF_POLICY, teacher_temperature=0) == causes(warmup={}, teacher_temperature=0) == alike
    assert recipe(**OFF_POLICY, answers_per_prompt=1, teacher_temperature=0).teacher_temperature == 0


@pytest.mark.report("LM-07")
def test_on_policy_there_is_no_cross_entropy() -> None:
    assert causes(objective="cross_entropy") == {"objective": "recipe.cross-entropy"}


def test_all_faults_come_at_once() -> None:
    found = causes(beta=2, steps=0, teacher="openai:x", long_prompts="cut", seed="x", sampling={"top_p": 3})
    assert set(found) >= {"beta", "steps", "teacher", "long_prompts", "seed", "sampling.top_p"}


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        recipe().beta = 0.5  # type: ignore[misc]


@pytest.mark.report("LM-07")
def test_no_setting_brings_a_cross_entropy_term_into_on_policy_training() -> None:
    names = {
        part for name in setting_names() if name not in ("own_answers.weight", "lora.alpha") for part in name.split(".")
    }
    assert not names & {
        "weight",
        "alpha",
        "lmbda",
        "lambda",
        "ce_weight",
        "sft_alpha",
        "nll_weight",
        "hard_label_weight",
    }
    assert causes(ce_weight=1.0) == {"ce_weight": "extra_forbidden"}


@pytest.mark.report("LM-01")
def test_schema_and_explanation_name_the_divergence_at_each_end_of_beta() -> None:
    text = str(explain("beta"))
    described = json_schema()["properties"]["beta"]["description"]
    for source in (text, described):
        assert "beta 0 is KL(teacher‖student)" in source
        assert "beta 1 is KL(student‖teacher)" in source
        assert "m = beta·teacher + (1-beta)·student" in source
        assert "beta·KL(teacher‖m) + (1-beta)·KL(student‖m)" in source


@pytest.mark.parametrize("name", setting_names())
def test_every_setting_explains_itself(name: str) -> None:
    told = explain(name)
    for text in (told.meaning, told.needs, told.how_to_choose, told.default_and_why):
        assert len(text) >= 3
        assert "  " not in text
    assert told.meaning.endswith(".")
    assert set(told.routes) <= {"on-policy", "off-policy", "supervised"}
    assert told.routes
    assert "Undefined" not in told.default_and_why


def test_the_explanation_names_the_objective_that_alone_uses_a_setting() -> None:
    assert explain("forward_weight").objective == "kl_mix"
    assert explain("temperature").objective == "divergence or kl_mix or soft_targets"
    assert explain("steps").objective is None


def test_an_unknown_setting_cannot_be_explained_but_the_nearest_is_named() -> None:
    with pytest.raises(RecipeError, match="Did you mean learning_rate"):
        explain("learnig-rate")


def test_the_stated_default_is_the_default() -> None:
    assert explain("steps").default_and_why.startswith("200: ")
    assert explain("name").default_and_why.startswith("null: ")
    assert explain("student").default_and_why.startswith("No default: ")
    assert explain("sampling.top_p").default_and_why.startswith("1.0: ")
    assert explain("warmup_steps").default_and_why.startswith("10, or a tenth")


def test_the_json_schema_refuses_unknown_keys_and_is_strict_json() -> None:
    schema = json_schema()
    json.dumps(schema, allow_nan=False)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Recipe.model_fields)
    assert explain("steps").how_to_choose in schema["properties"]["steps"]["description"]
    assert schema["required"] == ["student", "prompts"]


def test_recipes_import_without_torch_and_little_else() -> None:
    script = (
        "import sys; import limbeck.recipe.files\n"
        "heavy = sorted({'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules)); print(len(sys.modules), *heavy)"
    )
    num_modules, *heavy = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert heavy == []
    assert int(num_modules) < 400  # 272 where this was written


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ("exact", {"kind": "exact"}),
        ("mine.graders:judge", {"kind": "function", "function": "mine.graders:judge"}),
        ({"kind": "number", "units": "EUR, euro"}, {"kind": "number", "units": "EUR, euro"}),
    ],
)
def test_a_grader_is_a_name_or_settings_and_comes_back_as_given(given: object, settings: dict[str, str]) -> None:
    recipe = Recipe(student="a/b", teacher="c/d", prompts="p.jsonl", grader=given)
    assert recipe.settings()["grader"] == settings
    assert recipe.keep == "best"
    again = Recipe(**recipe.settings())
    assert again.grader == recipe.grader


@pytest.mark.parametrize(
    ("given", "told"),
    [("exactly", "There is no such grader"), ({"kind": "exact", "tolerance": 1.0}, "does not use tolerance")],
)
def test_a_grader_that_cannot_be_meant_is_refused(given: object, told: str) -> None:
    assert causes(grader=given) == {"grader": "recipe.grader"}
    with pytest.raises(RecipeError, match=told) as refused:
        keywords.Recipe(student="a/b", teacher="c/d", prompts="p.jsonl", grader=given)
    assert refused.value.code == "recipe.grader"


@pytest.mark.parametrize(
    ("given", "bf16", "precision", "teacher_dtype"),
    [
        ({"precision": "auto"}, True, "bf16-mixed", "bfloat16"),
        ({"precision": "auto"}, False, "float32", "float32"),
        ({"precision": "auto", "lora": {}}, True, "float32", "bfloat16"),
        ({"teacher_dtype": "auto"}, True, "float32", "bfloat16"),
        ({"precision": "auto", "teacher_dtype": "float32"}, True, "bf16-mixed", "float32"),
        # what is said outright holds on every machine
        ({"precision": "bf16-mixed"}, False, "bf16-mixed", "bfloat16"),
        ({}, True, "float32", "float32"),
    ],
)
def test_auto_number_formats_follow_the_machine(given, bf16, precision, teacher_dtype) -> None:
    settled = recipe(**given).for_machine(bf16=bf16)
    assert (settled.precision, settled.teacher_dtype) == (precision, teacher_dtype)
    assert settled.for_machine(bf16=not bf16) == settled  # a run that goes on keeps what was recorded
