"""Prose that could drift from the code: generated pages, and the reports that this version answers for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from limbeck.driver import train_run
from limbeck.recipe.files import load_recipe
from pairs import write_pair

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import generate_docs  # noqa: E402
from transcripts import BLOCK, Command, commands_of, files_of, filled, skeleton  # noqa: E402

REPORTS = (
    *("EP-01", "EP-03", "EP-04", "EP-06", "VT-01", "VT-05", "LM-01", "LM-03", "LM-04", "LM-06", "LM-07", "CT-02"),
    *("CT-03", "LT-01", "LT-02", "TH-01", "TH-03", "DC-05", "CF-01"),
    *("CF-04", "CR-01", "CR-04", "CR-05", "CR-06", "CR-07", "CR-08", "CR-09"),
    *("CT-01", "CT-05", "CT-06", "CT-07", "CT-08", "CT-10", "CT-11"),
    *("DC-01", "DC-02", "DC-03", "DC-04", "DC-07", "DC-08", "DC-09"),
    *("EV-01", "EV-03", "EV-04"),
    *("HA-01", "HA-02", "HA-03", "HA-04", "HA-05", "HA-07", "HA-08", "HA-10", "HA-11", "HA-12", "HA-13"),
)
GENERATED = set(generate_docs.pages())
PROSE = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in GENERATED),
]


@pytest.mark.parametrize("path", generate_docs.pages(), ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path):
    assert path.read_text(encoding="utf-8") == generate_docs.pages()[path], "run `make docs`"


def test_each_of_these_public_reports_has_a_test():
    page = generate_docs.reports_page()
    assert [report for report in REPORTS if f"## {report}\n" not in page] == []


def test_the_pages_name_commands_that_exist():
    """Every `limbeck COMMAND` of a code block or an inline code span."""
    known = {command.split()[0] for command in generate_docs.COMMANDS}
    named = set()
    for path in PROSE:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"(?:^(?:    |\$ )?|`)limbeck ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "worth", "train", "eval", "resume", "mark", "export", "lineage"} <= named
    assert named <= known, named - known


def test_every_command_is_in_the_reference():
    from limbeck.cli import app

    names = {name for name in app if not name.startswith("-")}
    assert names == {command.split()[0] for command in generate_docs.COMMANDS}


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_are_there(path):
    text = path.read_text(encoding="utf-8")
    linked = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in linked if target and not (path.parent / target).exists()] == []
    named = re.findall(r"\b(?:docs|examples|recipes|scripts|tests|src)/[\w./-]*\w", text)
    made = ("recipes/demo/",)  # scripts/demo_prompts.py writes some of these
    assert [name for name in named if not (ROOT / name).exists() and not name.startswith(made)] == []


def test_recipes_and_scripts_name_pages_that_are_there():
    files = [path for folder in ("recipes", "scripts", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.*")]
    named = {
        (path.name, page)
        for path in files
        if path.suffix in (".py", ".yaml")
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named
    assert [each for each in named if not (ROOT / each[1]).is_file()] == []


def tree_of(text):
    """The files that a drawn tree names, by their paths below its first line; numbers of steps are left out."""
    found, above = set(), []
    for line in text.splitlines()[1:]:
        name = line.split()[0]
        level = (len(line) - len(line.lstrip())) // 4 - 1
        above = [*above[:level], name.rstrip("/")]
        if not name.endswith("/"):
            found.add(re.sub(r"step-\d+", "step-N", "/".join(above)))
    return found


def test_the_run_folder_is_as_its_page_draws_it(tmp_path):
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    drawn = tree_of(next(block["body"] for block in BLOCK.finditer(page) if block["body"].startswith("runs/")))
    kinds = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    written, logged = set(), set()
    for name, settings in (
        ("adapter", {"lora": {"rank": 2}}),
        ("off-policy", {"route": "off-policy", "max_teacher_tokens": 24, "teacher_temperature": 1.0}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        run = train_run(load_recipe(write_pair(folder, **settings), [], {}))
        files = (path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file())
        written |= {re.sub(r"step-\d+", "step-N", path) for path in files}
        logged |= {event["kind"] for event in run.read_events()}
    assert written == drawn
    assert {"start", "step", "evaluation", "answers", "done"} <= logged
    assert logged <= kinds


def test_a_transcript_is_read_run_and_filled_in_by_block():
    page = "```yaml\n# a.yaml\nx: PATH/y\n```\n\n```console\n$ one \\\n    two\nold\n$ three\n```\n\ntext\n"
    assert commands_of(page) == [Command("one \\\n    two", "old\n"), Command("three", "")]
    assert list(files_of(page)) == ["a.yaml"]
    assert "PATH" not in files_of(page)["a.yaml"]
    new = filled(page, [Command("", "new\n"), Command("", "four\n")])
    assert new == page.replace("old\n$ three\n", "new\n$ three\nfour\n")


def test_the_skeleton_of_a_transcript_sees_other_columns_and_no_other_numbers():
    output = "Steps ──────\n      first   last\n──────────\nloss  0.9  0.1\n"
    assert skeleton(output) == ["first last", "Steps"]
    assert skeleton(output.replace("0.9", "1.7")) == skeleton(output)
    assert skeleton(output.replace("last", "end")) != skeleton(output)
    assert skeleton("rows.jsonl:4 ──────\n" + output) == skeleton(output)
