"""The command line as a user meets it: what it prints, what it exits with, what it never does."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from builders import prompt_row, tiny_tokenizer
from limbeck.cli import app, run_cli
from pairs import write_pair


def limbeck(*arguments, **options):
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from limbeck.cli import main; main()", *map(str, arguments)],
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["recipe", "explain", "beta"], ["runs"], ["--version"]]
)
def test_light_verbs_import_no_torch(arguments):
    script = (
        "import sys\nfrom limbeck.cli import run_cli\n"
        f"code = run_cli({arguments!r})\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["eval", "--help"], ["worth", "--help"], ["recipe", "--help"]])
def test_help_builds_no_schema_and_imports_nothing_heavy(arguments):
    script = (
        "import sys\nfrom limbeck.cli import run_cli\n"
        f"code = run_cli({arguments!r})\n"
        "heavy = {'pydantic', 'pydantic_core', 'torch', 'transformers', 'numpy', 'jinja2', 'ruamel', 'regex'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: limbeck" in done.stdout


def test_commands_are_listed_in_the_order_of_use_and_each_parameter_has_a_help():
    names = [name for name in app if not name.startswith("-")]
    assert names == [
        *("demo", "doctor", "recipe", "check", "worth", "answers", "train", "resume", "runs", "show", "lineage"),
        *("eval", "mark", "report", "chat", "export"),
    ]
    shown = limbeck("--help").stdout
    places = [shown.index(f"│ {name} ") for name in names]
    assert places == sorted(places)
    recipe = app["recipe"]
    commands = [app[name] for name in names if name != "recipe"]
    commands += [recipe[name] for name in ("show", "explain", "schema")]
    for command in commands:
        assert command.help.strip()
        for argument in command.assemble_argument_collection():
            assert argument.parameter.help or argument.children, f"{command.name}: {argument.name}"


@pytest.mark.parametrize(
    "arguments", [["trian"], ["train"], ["train", "x.yaml", "--no-such"], ["chat", "m", "--max-tokens", "many"]]
)
def test_a_command_line_that_means_nothing_exits_with_2(capsys, arguments):
    assert run_cli(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in ("cli.usage", "given", "needed", "fix"):
        assert part in captured.err


def test_a_missing_recipe_exits_with_2_and_suggests_the_nearest(tmp_path, capsys):
    write_pair(tmp_path)
    assert run_cli(["train", str(tmp_path / "recpie.yaml")]) == 2
    assert "recipe.yaml?" in capsys.readouterr().err


@pytest.mark.report("CF-01")
def test_all_wrong_keys_are_told_at_once_with_the_nearest_and_nothing_is_loaded(tmp_path, capsys):
    path = write_pair(tmp_path)
    path.write_text(path.read_text() + "learnig_rate: 0.1\nsampling: {beta: 0.5}\n")
    code = run_cli(["check", str(path), "--set", "promts_per_step=3"])
    told = capsys.readouterr().err
    assert code == 2
    for wrong, right in (("learnig_rate", "learning_rate"), ("beta", "beta"), ("promts_per_step", "prompts_per_step")):
        assert wrong in told
        assert right in told


def test_check_shows_rows_pair_memory_and_the_objective_check(tmp_path, capsys):
    assert run_cli(["check", str(write_pair(tmp_path))]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "rows.jsonl:", "<|im_start|>user", "Shared vocabulary: 300 token ids", "lean",
        "teacher weights", "fits", "KL(student‖teacher)", "student as its own teacher", "fused",
        "The chat template adds no system message",
    ):  # fmt: skip
        assert expected in shown, expected
    assert shown.count("ok") >= 5
    assert "FAILED" not in shown
    assert not (tmp_path / "runs").exists()


def test_injected_system_text_is_shown(tmp_path, capsys):
    from builders import CHATML_WITH_DEFAULT_SYSTEM

    path = write_pair(tmp_path, tokenizer=tiny_tokenizer(chat_template=CHATML_WITH_DEFAULT_SYSTEM))
    assert run_cli(["train", str(path), "--dry-run"]) == 0
    assert "You are a helpful assistant." in capsys.readouterr().out


def test_a_dry_run_reads_no_weight(tmp_path, capsys):
    path = write_pair(tmp_path)
    (tmp_path / "teacher" / "model.safetensors").write_bytes(b"no weights")
    assert run_cli(["train", str(path), "--dry-run"]) == 0
    assert "The run fits: about" in capsys.readouterr().out
    assert run_cli(["train", str(path), "--dry-run", "--json"]) == 0
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (told["kind"], told["memory"]["fits"], told["prompts"]["held_out"] > 0) == ("check", True, True)
    assert not (tmp_path / "runs").exists()
    assert run_cli(["train", str(path)]) == 2


def test_train_prints_plain_lines_to_a_pipe_and_the_result_at_the_end(tmp_path):
    done = limbeck("train", write_pair(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "done after step 4 of 4" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Next: limbeck eval {tmp_path / 'runs' / 'tiny'}"
    assert "teacher's text" in done.stdout
    assert "held-out loss: teacher's text" in done.stderr
    assert "Writing model shards" not in done.stderr


def test_train_as_json_streams_the_events_of_the_log(tmp_path, capsys):
    assert run_cli(["train", str(write_pair(tmp_path)), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stored = [json.loads(line) for line in (tmp_path / "runs/tiny/events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == [line["kind"] for line in stored]
    assert lines[-1]["kind"] == "done"


def test_runs_and_show_tell_of_a_run(tmp_path, capsys):
    run_cli(["train", str(write_pair(tmp_path)), "--json"])
    capsys.readouterr()
    assert run_cli(["runs", "--workspace", str(tmp_path)]) == 0
    assert "tiny" in capsys.readouterr().out
    for name in ("tiny", str(tmp_path / "runs" / "tiny")):
        assert run_cli(["show", name, "--workspace", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "Worst tokens" in shown
        assert "student's text" in shown
        assert max(map(len, shown.splitlines())) < 140
    assert run_cli(["show", "tinny", "--workspace", str(tmp_path)]) == 2
    assert "Did you mean tiny?" in capsys.readouterr().err
    assert run_cli(["show", "tiny", "--workspace", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["kind"] == "done"


def test_a_second_run_of_the_same_name_is_refused(tmp_path, capsys):
    path = write_pair(tmp_path, steps=1, evaluate_every=1)
    assert run_cli(["train", str(path), "--json"]) == 0
    assert run_cli(["train", str(path), "--json"]) == 2
    assert "exists" in capsys.readouterr().err


def test_an_unlike_pair_exits_with_3(tmp_path, capsys):
    from builders import OTHER_CORPUS

    path = write_pair(tmp_path)
    tiny_tokenizer(corpus=OTHER_CORPUS).save_pretrained(tmp_path / "teacher")
    assert run_cli(["check", str(path)]) == 3
    assert "use different vocabularies" in capsys.readouterr().err


def test_chat_answers_each_line_of_a_pipe(tmp_path, capsys, monkeypatch):
    write_pair(tmp_path)
    done = limbeck("chat", tmp_path / "student", "--max-tokens", "5", input="hello\nagain\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n"))
    assert run_cli(["chat", str(tmp_path / "student"), "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out == done.stdout


@pytest.mark.report("TU-04")
def test_prompts_cannot_write_to_the_terminal(tmp_path, capsys):
    rows = [prompt_row(f"row {number} \x1b]0;owned\x07 \x1b[31m \u202e") for number in range(8)]
    assert run_cli(["train", str(write_pair(tmp_path, rows=rows)), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "row 7" in shown.out
    assert "\x1b" not in shown.out + shown.err
    assert "\u202e" not in shown.out


def test_doctor_tells_the_machine_and_hides_secrets(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("HF_TOKEN", "hf-canary")
    assert run_cli(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "torch" in shown
    assert "threads" in shown
    assert "canary" not in shown
    (memory,) = [line for line in shown.splitlines() if line.startswith("total memory")]
    assert memory.rstrip().endswith("GiB")
    assert "bytes" not in shown
    assert run_cli(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["device"]


def test_the_schema_is_json(capsys):
    assert run_cli(["recipe", "schema"]) == 0
    assert "beta" in json.loads(capsys.readouterr().out)["properties"]


def test_the_next_command_after_training_is_short_in_the_workspace_itself(tmp_path, capsys, monkeypatch):
    path = write_pair(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_cli(["train", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: limbeck eval tiny"


@pytest.mark.parametrize("arguments", [[], ["objective"]])
def test_explanations_are_wrapped_in_a_pipe(capsys, arguments):
    assert run_cli(["recipe", "explain", *arguments]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "KL(teacher‖student)" in shown or not arguments
    for name in ("route", "sampling.top_p", "device"):
        assert any(line.split()[0] == name for line in shown.splitlines()) or arguments


def test_recipe_show_tells_where_values_came_from(tmp_path, capsys):
    assert run_cli(["recipe", "show", str(write_pair(tmp_path)), "--origin", "--set", "beta=0.5"]) == 0
    shown = capsys.readouterr().out
    assert any("beta: 0.5" in line and "--set" in line for line in shown.splitlines())
    assert any("temperature" in line and "default" in line for line in shown.splitlines())


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    write_pair(tmp_path)
    command = f"{sys.executable} -c 'from limbeck.cli import main; main()' recipe schema | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
