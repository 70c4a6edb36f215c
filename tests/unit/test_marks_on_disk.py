"""`limbeck mark` as a user meets it: the example of docs/how-to/read-marks.md, a run's marks, and what is refused."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import limbeck
from builders import prompt_row
from limbeck import embedded
from limbeck.cli import run_cli
from limbeck.driver import train_run
from limbeck.errors import Refusal, UsageError
from limbeck.recipe.files import load_recipe
from limbeck.runs.marks import BETAS, read_marks
from pairs import write_pair

ROOT = Path(__file__).parent.parent.parent
PAIR_FOLDER = Path(embedded.__file__).parent
PAIR = [str(PAIR_FOLDER / name) for name in ("student", "teacher")]
sys.path.insert(0, str(ROOT / "scripts"))

from transcripts import commands_of  # noqa: E402

# The story of docs/how-to/read-marks.md: the answer is right but for month and day, which are turned round.
PROMPT = (
    "The goods on invoice 3986 went back on 9 Jun, so we would like our CHF 407.00 back. Best, Lea (Tulip)"  # 06-09
)
ANSWER = (
    '{"topic":"refund","customer":"Tulip","contact":"Lea","invoice":"3986","amount":407.00,"currency":"CHF",'
    '"date":"09-06"}'
)
MONTH, DAY = 17, 19


@pytest.fixture(scope="module")
def story():
    return limbeck.mark(*PAIR, prompt=PROMPT, answer=ANSWER, continue_from=MONTH)


def test_two_things_turned_round_are_marked_exactly_and_the_rest_is_quiet(story):
    (answer,) = story.answers
    assert answer.text() == ANSWER
    for beta in BETAS:
        marks = answer.marks(beta)
        assert [(mark.position, mark.kind, mark.turning_point) for mark in marks] == [
            (MONTH, "serious", True),
            (DAY, "serious", False),
        ]
        nats = answer.nats(beta)
        assert min(nats[MONTH], nats[DAY]) > 3 * max(nats[place] for place in range(len(nats)) if place not in (17, 19))
    said = [answer.candidates(place)[0] for place in (MONTH, DAY)]
    assert [answer.piece(place).shown for place in (MONTH, DAY)] == ["09", "06"]
    assert [each.piece.shown for each in said] == ["06", "09"]


def test_from_the_turning_point_the_teacher_writes_the_right_ending(story):
    assert (story.continued.position, story.continued.text) == (MONTH, '06-09"}')


def test_what_even_the_student_would_not_have_said_is_marked_too():
    """Customer and contact exchanged: both models know better, and their divergence there is small."""
    prompt = "Hello, the total for no. 3700 is wrong: you wrote £137.50 on 23 December, we ordered less. Omar, Jasmin"
    right = {"topic": "dispute", "customer": "Jasmin", "contact": "Omar", "invoice": "3700"}
    turned = json.dumps({**right, "customer": "Omar", "contact": "Jasmin"}, separators=(",", ":"))
    answer = f'{turned[:-1]},"amount":137.50,"currency":"GBP","date":"12-23"}}'
    (marked,) = limbeck.mark(*PAIR, prompt=prompt, answer=answer).answers
    assert [(mark.position, mark.kind) for mark in marked.marks(1.0)] == [(3, "serious"), (5, "serious")]


def test_the_page_shows_what_the_command_prints(capsys):
    page = (ROOT / "docs" / "how-to" / "read-marks.md").read_text(encoding="utf-8")
    (command,) = commands_of(page)
    arguments = shlex.split(command.text.replace("\\\n", " "))
    assert arguments == [
        *("limbeck", "mark", "PATH/student", "PATH/teacher", "--prompt", PROMPT, "--answer", ANSWER),
        *("--continue-from", str(MONTH)),
    ]
    assert run_cli([argument.replace("PATH/", f"{PAIR_FOLDER}/") for argument in arguments[1:]]) == 0
    shown = capsys.readouterr().out.replace(f"{PAIR_FOLDER}/", "PATH/")
    assert command.output == "".join(f"{line.rstrip()}\n" for line in shown.splitlines()), "make transcripts"


def trained(folder, **settings):
    return train_run(load_recipe(write_pair(folder, **settings), [], {}))


def test_a_run_keeps_marks_that_are_shown_without_loading_anything(tmp_path, capsys):
    rows = [prompt_row(f"<b>\x1b]0;title\x07 \u202e [link](x) {number}") for number in range(24)]
    run = trained(tmp_path, rows=rows, held_out=12)
    assert sorted(path.name for path in (run.path / "marks").iterdir()) == [
        f"step-{step:06d}.safetensors" for step in (0, 2, 4)
    ]
    sheet = read_marks(run.path / "marks" / "step-000004.safetensors")
    assert (sheet.student, sheet.step, sheet.beta) == ("run:tiny@4", 4, 1.0)
    assert [answer.source.startswith("practice on ") for answer in sheet.answers] == [False] * 8 + [True] * 4
    events = [event for event in run.read_events() if event["kind"] == "marks"]
    assert [event["answers"] for event in events] == [8, 12, 12]
    script = (
        "import sys\nfrom limbeck.cli import run_cli\n"
        f"code = run_cli(['mark', 'tiny@4', '--worst', '2', '--workspace', {str(tmp_path)!r}])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Marked: ") == 2
    assert "<b>" in done.stdout
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)
    assert run_cli(["mark", "tiny", "--json", "--beta", "0.25", "--workspace", str(tmp_path)]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["beta"] for row in printed] == [0.25] * 3
    assert [row["mean_nats"] for row in printed] == sorted((row["mean_nats"] for row in printed), reverse=True)


def test_a_run_means_its_student_and_teacher_and_its_checkpoints_can_be_asked(tmp_path):
    trained(tmp_path, objective="soft_targets", temperature=2.0)
    sheets = [limbeck.mark(name, prompt="one two", max_tokens=6, workspace=tmp_path) for name in ("tiny", "run:tiny@4")]
    for sheet, step in zip(sheets, (None, 4), strict=True):
        assert (sheet.step, sheet.beta, Path(sheet.teacher).name) == (step, 0.0, "teacher")
        assert sheet.answers[0].temperatures == (1.0, 2.0)
    assert sheets[0].answers[0].student_logp.tolist() == sheets[1].answers[0].student_logp.tolist()
    for asked in ({"prompt": "one", "worst": 2}, {"answer": "two"}, {"prompt": "one", "continue_from": 99}):
        with pytest.raises(UsageError):
            limbeck.mark("tiny", **asked, max_tokens=6, workspace=tmp_path)


def test_a_run_without_a_teacher_needs_one_named(tmp_path):
    rows = [{**prompt_row(f"one {number}"), "answer": "two"} for number in range(12)]
    run = trained(tmp_path, route="supervised", rows=rows, steps=2)
    assert not (run.path / "marks").exists()
    with pytest.raises(Refusal, match="limbeck mark run:tiny TEACHER"):
        limbeck.mark("tiny", prompt="one", workspace=tmp_path)
    sheet = limbeck.mark("run:tiny", str(tmp_path / "teacher"), prompt="one", max_tokens=4, workspace=tmp_path)
    assert sheet.student == "run:tiny"
