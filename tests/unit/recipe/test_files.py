"""Recipe files: every fault told at once with its line, layers in their order, paths from the folder of the recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from limbeck.errors import RecipeError
from limbeck.recipe.files import LoadedRecipe, Problem, RecipeProblems, load_recipe
from limbeck.recipe.parts import Lora

MINIMAL = "student: org/small\nteacher: org/big\nprompts: tickets.jsonl\n"

TYPING_ERRORS = """\
student: org/small
teacher: org/big
prompts: tickets.jsonl
learning-rate: 1e-4
learnig_rate: 2e-5
training:
  beta: 0.5
max_teacher_tokens: 512
steps: 10
steps: 20
"""


def load(folder: Path, text: str, *overrides: str, **environ: str) -> LoadedRecipe:
    path = folder / "support.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, overrides, environ)


def problems(folder: Path, text: str, *overrides: str, **environ: str) -> dict[str, Problem]:
    with pytest.raises(RecipeProblems) as caught:
        load(folder, text, *overrides, **environ)
    assert len({each.subject for each in caught.value.problems}) == len(caught.value.problems)
    return {each.subject: each for each in caught.value.problems}


@pytest.mark.report("CF-01")
def test_all_typing_errors_of_a_file_are_told_at_once_with_line_and_likely_key(tmp_path: Path) -> None:
    found = problems(tmp_path, TYPING_ERRORS)
    assert [(each.place, subject) for subject, each in found.items()] == [
        ("support.yaml line 4", "learning-rate: 1e-4"),
        ("support.yaml line 5", "learnig_rate: 2e-5"),
        ("support.yaml line 7", "training.beta: 0.5"),
        ("support.yaml line 10", "steps: 20"),
        ("support.yaml line 8", "max_teacher_tokens: 512"),
    ]
    told = list(found.values())
    assert told[0].fix == told[1].fix == "Did you mean learning_rate?"
    assert told[2].fix == "Did you mean beta at the top level?"
    assert told[3].code == "recipe.key-duplicate"
    assert "first: support.yaml line 9" in told[3].needed
    assert "only with warmup" in told[4].needed


@pytest.mark.report("CF-01")
def test_the_same_typing_errors_on_the_command_line_and_in_the_environment(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        MINIMAL,
        "learning-rate=1e-4",
        "learnig_rate=2e-5",
        "training.beta=0.5",
        "max_teacher_tokens=512",
        "steps=10",
        "steps=20",
        LIMBECK_LEARNIG_RATE="3e-5",
        LIMBECK_SAMPLING__BETA="0.5",
    )
    assert {each.place for each in found.values()} == {
        "--set",
        "environment LIMBECK_LEARNIG_RATE",
        "environment LIMBECK_SAMPLING__BETA",
    }
    assert len(found) == 7
    assert sum("learning_rate" in each.fix for each in found.values()) == 3
    assert found["steps: 20"].code == "recipe.key-duplicate"


@pytest.mark.report("CF-01")
def test_typing_errors_are_told_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "support.yaml"
    path.write_text(TYPING_ERRORS, encoding="utf-8")
    script = (
        "import sys; from limbeck.recipe.files import load_recipe; from limbeck.errors import RecipeError\n"
        f"try: load_recipe({str(path)!r}, [], {{}})\n"
        "except RecipeError as error: print(len(error.problems), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "False", "False"]


@pytest.mark.report("CF-02")
def test_numbers_and_words_mean_what_they_look_like(tmp_path: Path) -> None:
    for spelled in ("2e-5", "2.0e-5", "0.00002", "2E-05", ".00002"):
        assert load(tmp_path, MINIMAL + f"learning_rate: {spelled}\n").recipe.learning_rate == 2e-5
        assert load(tmp_path, MINIMAL, f"learning_rate={spelled}").recipe.learning_rate == 2e-5
    assert load(tmp_path, MINIMAL + "steps: 1_000\n").recipe.steps == 1000
    assert load(tmp_path, MINIMAL + "steps: 1e3\n").recipe.steps == 1000
    for name in ("007", "on", "no", "true", "1e3", "2024-01-01", "0x1F"):
        assert load(tmp_path, MINIMAL + f"name: {name}\n").recipe.name == name
        assert load(tmp_path, MINIMAL, f"name={name}").recipe.name == name
    assert load(tmp_path, MINIMAL + "name: null\n").recipe.name is None
    options = load(tmp_path, MINIMAL + "template_options: {a: false, b: 'no', n: 3, d: 2024-01-01}\n")
    assert options.recipe.template_options == {"a": False, "b": "no", "n": 3, "d": "2024-01-01"}


@pytest.mark.report("CF-02")
@pytest.mark.parametrize(
    ("line", "needed", "fix"),
    [
        ("learning_rate: '2e-5'", "a number above 0", "recipe explain"),
        ("learning_rate: 0,00002", "a number above 0", "recipe explain"),
        ("learning_rate: fast", "a number above 0", "recipe explain learning_rate"),
        ("max_practice_tokens: 256.5", "a whole number", "recipe explain"),
        ("steps: true", "a whole number", "recipe explain"),
        ("steps:", "a whole number", "recipe explain"),
        ("beta: .nan", "from 0 to 1", "recipe explain"),
        ("sampling: 0.7", "temperature, top_p and top_k", "recipe explain sampling"),
        ("sampling: {top_p: '0.9'}", "at most 1", "recipe explain sampling.top_p"),
        ("beta: [0, 1]", "from 0 to 1", "recipe explain"),
        ("long_prompts: cut", "refuse or skip", "recipe explain"),
        ("precision: float16", "float32", "recipe explain"),
        ("template_options: {think: no}", "as text", "Use true or false"),
        ("template_options: {think: Off}", "as text", "Use true or false"),
        ("template_options: {tools: [a]}", "single values", "recipe explain"),
        ("held_out: 1.0", "a share between 0 and 1", "recipe explain held_out"),
        ("name: !!python/name:os.system x", "null, or up to", "recipe explain name"),
        ("name: ../x", "null, or up to", "recipe explain name"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_with_line_key_value_and_need(
    tmp_path: Path, line: str, needed: str, fix: str
) -> None:
    (problem,) = problems(tmp_path, MINIMAL + line + "\n").values()
    key = line.split(":")[0]
    assert problem.place == "support.yaml line 4"
    assert problem.subject.startswith(key)
    assert needed in problem.needed
    assert fix in problem.fix
    if "{" not in line and "[" not in line and "!" not in line:
        assert problem.subject == (line if line != "steps:" else "steps: (empty)")
    assert "pydantic" not in str(problem)
    assert "http" not in str(problem)


@pytest.mark.report("LM-07")
@pytest.mark.parametrize("key", ["ce_weight", "alpha", "lmbda", "lambda", "sft-alpha", "Hard_Label_Weight"])
def test_a_cross_entropy_weight_is_refused_with_the_reason(tmp_path: Path, key: str) -> None:
    (problem,) = problems(tmp_path, MINIMAL + f"{key}: 1.0\n").values()
    assert problem.code == "recipe.cross-entropy"
    assert "repeating its own words" in problem.needed


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("Learning_Rate", "learning_rate"),
        ("learning rate", "learning_rate"),
        ("max_practise_tokens", "max_practice_tokens"),
        ("top_p", "sampling.top_p"),
        ("practice_growth.beta", "beta"),
        ("sampling.topp", "sampling.top_p"),
        ("sampling.temprature", "sampling.temperature"),
        ("beta.beta", "beta"),
        ("weigth_decay", "weight_decay"),
    ],
)
def test_the_nearest_setting_is_named(tmp_path: Path, key: str, meant: str) -> None:
    (problem,) = problems(tmp_path, MINIMAL, f"{key}=1").values()
    assert problem.fix in (f"Did you mean {meant}?", f"Did you mean {meant} at the top level?")


def test_a_key_like_no_other_is_still_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, MINIMAL + "zzzqqq: 1\n").values()
    assert problem.code == "recipe.key-unknown"
    assert "Did you mean" not in problem.fix


@pytest.mark.report("LE-01", "LE-06")
@pytest.mark.parametrize("key", ["target_modules", "modules_to_save"])
def test_adapters_at_chosen_modules_are_refused_with_the_reason(tmp_path: Path, key: str) -> None:
    (problem,) = problems(tmp_path, MINIMAL + f"lora: {{rank: 8, {key}: [q_proj, lm_head]}}\n").values()
    assert problem.code == "recipe.lora-modules"
    assert "Embedding and output head are never adapted" in problem.needed


@pytest.mark.parametrize(
    ("key", "instead"), [("epochs", "set steps"), ("num_train_epochs", "set steps"), ("qlora", "lora: {}")]
)
def test_what_is_not_offered_is_refused_with_what_to_set_instead(tmp_path: Path, key: str, instead: str) -> None:
    (problem,) = problems(tmp_path, MINIMAL + f"{key}: 3\n").values()
    assert problem.code == "recipe.not-offered"
    assert instead in problem.fix


def test_lora_is_turned_on_by_an_empty_section_or_by_a_part_of_it(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).recipe.lora is None
    assert load(tmp_path, MINIMAL + "lora: {}\n").recipe.lora == Lora(rank=32, alpha=64)
    assert load(tmp_path, MINIMAL, "lora.rank=8").recipe.lora == Lora(rank=8, alpha=64)


def test_one_problem_keeps_its_own_code_and_many_share_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as one:
        load(tmp_path, MINIMAL.replace("org/big", "openai:gpt-5"))
    assert one.value.code == "recipe.model-remote"
    assert "cannot score a given text" in one.value.needed
    assert one.value.given == "support.yaml line 2: teacher: openai:gpt-5"
    assert one.value.exit_code == 2
    with pytest.raises(RecipeError) as many:
        load(tmp_path, "beta: 2\n")
    assert many.value.code == "recipe.problems"
    assert "4 problems" in many.value.given
    for name in ("student", "teacher", "prompts"):
        assert f"support.yaml: {name} is missing." in many.value.given


@pytest.mark.report("HA-10")
def test_a_key_or_a_password_in_a_recipe_is_refused_and_not_repeated(tmp_path: Path) -> None:
    secret = "sk-test-SECRET"
    text = MINIMAL + f"hosted:\n  api_key: {secret}\n  base_url: https://user:{secret}@h/v1\n"
    text += f"openai_api_key: {secret}\n"
    found = problems(tmp_path, text, LIMBECK_HOSTED__KEY=secret)
    assert secret not in str(found)
    codes = {problem.code for problem in found.values()}
    assert {"recipe.key-in-recipe"} <= codes
    told = next(problem for problem in found.values() if problem.code == "recipe.key-in-recipe")
    assert "environment" in told.needed
    with pytest.raises(RecipeError) as one:
        load(tmp_path, MINIMAL + f"route: off-policy\nhosted: {{base_url: 'https://h/v1?key={secret}'}}\n")
    assert secret not in str(one.value)


def test_a_hosted_teacher_in_a_file_with_its_own_section(tmp_path: Path) -> None:
    text = MINIMAL.replace("org/big", "openai:gpt-5") + "route: off-policy\n"
    text += (
        "hosted: {base_url: 'http://localhost:8000/v1', max_calls: 1e3}\nteacher_options: {seed: null, top_p: 0.9}\n"
    )
    found = load(tmp_path, text, LIMBECK_HOSTED__CONCURRENCY="2").recipe
    assert (found.hosted.base_url, found.hosted.max_calls, found.hosted.concurrency) == (
        *("http://localhost:8000/v1", 1000),
        2,
    )
    assert found.teacher_options == {"seed": None, "top_p": 0.9}
    with pytest.raises(RecipeError, match=r"input_price and output_price"):
        load(tmp_path, text, "hosted.max_cost=3")


def test_precedence_and_origins(tmp_path: Path) -> None:
    text = MINIMAL + "# how\nbeta: 0.1\nsteps: 11\nsampling: {temperature: 0.5, top_k: 3}\nseed: 1\n"
    loaded = load(
        tmp_path,
        text,
        "seed=3",
        "sampling.top_k=4",
        LIMBECK_SEED="2",
        LIMBECK_STEPS="12",
        LIMBECK_SAMPLING__TOP_P="0.9",
    )
    recipe, origins = loaded.recipe, loaded.origins
    assert (recipe.beta, recipe.steps, recipe.seed, recipe.learning_rate) == (0.1, 12, 3, 1e-5)
    assert (recipe.sampling.temperature, recipe.sampling.top_p, recipe.sampling.top_k) == (0.5, 0.9, 4)
    assert origins["beta"] == "support.yaml line 5"
    assert origins["steps"] == "environment LIMBECK_STEPS"
    assert origins["seed"] == "--set"
    assert origins["sampling.temperature"] == "support.yaml line 7"
    assert origins["sampling.top_p"] == "environment LIMBECK_SAMPLING__TOP_P"
    assert origins["sampling.top_k"] == "--set"
    assert "learning_rate" not in origins
    assert loaded.path == tmp_path / "support.yaml"


def test_only_the_prefix_counts_in_the_environment(tmp_path: Path) -> None:
    loaded = load(tmp_path, MINIMAL, BETA="0", MYLIMBECK_BETA="0", limbeck_beta="0", HF_HOME="/x")
    assert loaded.recipe.beta == 1.0


def test_a_part_replaces_null_and_null_replaces_the_parts(tmp_path: Path) -> None:
    grown = load(tmp_path, MINIMAL + "practice_growth: null\n", "practice_growth.start=0.5").recipe.practice_growth
    assert grown is not None
    assert (grown.start, grown.until) == (0.5, 0.5)
    assert (
        load(tmp_path, MINIMAL + "practice_growth: {start: 0.5}\n", "practice_growth=null").recipe.practice_growth
        is None
    )
    assert load(tmp_path, MINIMAL, "template_options.enable_thinking=false").recipe.template_options == {
        "enable_thinking": False
    }
    (problem,) = problems(tmp_path, MINIMAL, "practice_growth=null", "practice_growth.start=0.5").values()
    assert problem.code == "recipe.key-duplicate"


@pytest.mark.parametrize("text", ["beta", "=1", "", "  =3"])
def test_an_override_has_a_key_and_a_value(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError, match="key=value") as caught:
        load(tmp_path, MINIMAL, text)
    assert caught.value.code == "recipe.override-form"


def test_an_override_keeps_what_stands_after_the_first_equals_sign(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL, "student=org/a=b").recipe.student == "org/a=b"
    assert load(tmp_path, MINIMAL, "student=org/a # b").recipe.student == "org/a # b"
    assert load(tmp_path, MINIMAL, "student='org/a'").recipe.student == "org/a"


def test_relative_paths_start_at_the_folder_of_the_recipe_and_the_workspace_at_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "recipes", tmp_path / "elsewhere"
    (folder / "models" / "small").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    text = "student: models/small\nteacher: ../big.gguf\nprompts: data/p.jsonl\ntemplate: chat.jinja\n"
    recipe = load(folder, text, "held_out=h.jsonl", LIMBECK_WORKSPACE="work").recipe
    assert recipe.student == str(folder / "models" / "small")
    assert recipe.teacher == str(tmp_path / "big.gguf")
    assert recipe.prompts == str(folder / "data" / "p.jsonl")
    assert recipe.template == str(folder / "chat.jinja")
    assert recipe.held_out == str(folder / "h.jsonl")
    assert recipe.workspace == str(elsewhere / "work")
    assert load(folder, text).recipe.workspace == str(elsewhere)


@pytest.mark.parametrize("text", ["org/name", "name", "run:calm-otter-17", "org/name@main"])
def test_what_is_no_path_stays_a_model_id(tmp_path: Path, text: str) -> None:
    recipe = load(tmp_path, MINIMAL, f"student={text}", "template=teacher", "held_out=5").recipe
    assert (recipe.student, recipe.template, recipe.held_out) == (text, "teacher", 5)


def test_absolute_paths_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    recipe = load(tmp_path, MINIMAL, "prompts=~/p.jsonl", "student=/models/small", "template=./student").recipe
    assert recipe.prompts == str(tmp_path / "home" / "p.jsonl")
    assert recipe.student == "/models/small"
    assert recipe.template == str(tmp_path / "student")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("student: [a\n", "support.yaml line 2 is not valid YAML"),
        ("a: b: c\n", "support.yaml line 1 is not valid YAML"),
        ("student: a\n\tteacher: b\n", "line 2 is not valid YAML"),
        ("- a\n- b\n", "no settings"),
        ("just text\n", "no settings"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML"),
        ("a: \0\n", "cannot be read"),
        ("a: " + "[" * 1200 + "\n", "cannot be read"),
    ],
)
def test_what_is_no_recipe_at_all(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, text)
    assert caught.value.code == "recipe.unreadable"
    assert told in caught.value.given


def test_merge_keys_and_odd_keys_are_refused(tmp_path: Path) -> None:
    text = MINIMAL + "? [a, b]\n: 1\n1: 2\nnull: 3\n<<: 4\n"
    assert problems(tmp_path, text).keys() == {"[...]: 1", "1: 2", "null: 3", "<<: 4"}


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join(['*' + old] * 10)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    assert problems(tmp_path, MINIMAL + "\n".join(lines) + "\n")


def test_duplicates_are_told_on_every_level_and_several_times(tmp_path: Path) -> None:
    text = MINIMAL + "beta: 1\nsampling:\n  top_p: 1\n  top_p: 0.5\nbeta: 0\nsampling: {top_k: 3}\n"
    found = problems(tmp_path, text)
    assert [(each.place, key) for key, each in found.items()] == [
        ("support.yaml line 7", "sampling.top_p: 0.5"),
        ("support.yaml line 8", "beta: 0"),
        ("support.yaml line 9", "sampling: (no single value)"),
    ]


def test_byte_order_marks_line_ends_and_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "support.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_recipe(path, [], {}).recipe.student == "org/small"
    path.write_bytes(MINIMAL.encode() + b"name: caf\xe9\n")
    with pytest.raises(RecipeError, match=r"cannot be read: .* codec"):
        load_recipe(path, [], {})


def test_a_missing_file_names_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "support.yaml").write_text(MINIMAL)
    with pytest.raises(RecipeError, match=r"Did you mean .*support\.yaml"):
        load_recipe(tmp_path / "suport.yml", [], {})
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(tmp_path / "nowhere" / "x.yaml", [], {})
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path, [], {})


def test_long_values_are_shortened_in_messages(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, MINIMAL + f"beta: {'x' * 5000}\n").values()
    assert len(problem.subject) < 80
    (problem,) = problems(tmp_path, MINIMAL + f"steps: {'9' * 250}x\n").values()
    assert len(problem.subject) < 80


def test_a_number_too_long_for_a_number_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, MINIMAL + f"steps: {'9' * 6000}\n").values()
    assert "a whole number" in problem.needed


def test_an_empty_file_lacks_what_is_needed(tmp_path: Path) -> None:
    assert set(problems(tmp_path, "# nothing yet\n")) == {
        "student is missing.",
        "teacher is missing.",
        "prompts is missing.",
    }


def test_files_of_answers_lie_beside_the_recipe(tmp_path: Path) -> None:
    text = "student: org/small\nteacher: org/big\nprompts: p.jsonl\nroute: off-policy\n"
    loaded = load(tmp_path, text + "teacher_examples: few.jsonl\nown_answers:\n  file: ours.jsonl\n").recipe
    assert loaded.teacher_examples == str(tmp_path / "few.jsonl")
    assert loaded.own_answers is not None
    assert loaded.own_answers.file == str(tmp_path / "ours.jsonl")


def test_a_missing_part_of_a_setting_and_a_missing_teacher_are_named(tmp_path: Path) -> None:
    found = problems(tmp_path, "student: a/b\nprompts: p.jsonl\nown_answers: {weight: 0.5}\n")
    assert set(found) == {"teacher is missing.", "own_answers.file is missing."}


def test_the_word_previous_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "previous").mkdir()
    assert load(tmp_path, MINIMAL, "student=previous").recipe.student == "previous"
