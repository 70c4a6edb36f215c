"""Recipes written out: what is read again is the same, and a user's comments stay."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.errors import Stopped
from limbeck.recipe.files import build_recipe, load_recipe, recipe_text, show, write_recipe
from limbeck.recipe.reading import read_entries
from limbeck.recipe.schema import Recipe

COMMENTED = """\
# Support tickets, second try.
student: org/small  # the cheap one
teacher: org/big

# The prompts of March.
prompts: tickets.jsonl
learning_rate: 1e-4   # ten times the usual
sampling: {temperature: 0.7}  # narrower
name: 007
"""


def recipe(**changes: object) -> Recipe:
    return build_recipe({"student": "org/s", "teacher": "org/t", "prompts": "/p.jsonl", **changes}, Path("/w"))


def test_comments_order_and_spelling_stay(tmp_path: Path) -> None:
    path = tmp_path / "support.yaml"
    path.write_text(COMMENTED, encoding="utf-8")
    loaded = load_recipe(path, ["beta=0.5", "steps=7"], {})
    written = tmp_path / "recipe.yaml"
    write_recipe(written, loaded.recipe, "Resolved.\nlimbeck 0.1", comments_of=loaded.text)
    lines = written.read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["# Resolved.", "# limbeck 0.1", "# Support tickets, second try."]
    assert "student: org/small  # the cheap one" in lines
    assert "learning_rate: 1e-4   # ten times the usual" in lines
    assert "# The prompts of March." in lines
    assert any(line.startswith("sampling: {temperature: 0.7, ") and line.endswith("# narrower") for line in lines)
    assert load_recipe(written, [], {}).recipe == loaded.recipe
    assert list(tmp_path.glob(".*")) == []


def test_settings_of_another_objective_leave_the_file(tmp_path: Path) -> None:
    text = recipe_text(recipe(objective="kl_mix"), comments_of="beta: 0.5\nstudent: x\n")
    assert "beta" not in text
    assert "forward_weight: 0.5" in text


@pytest.mark.parametrize("origin", [False, True])
def test_what_is_shown_is_itself_a_recipe(tmp_path: Path, origin: bool) -> None:
    path = tmp_path / "support.yaml"
    path.write_text(COMMENTED + "template_options: {date: '1', x: 'a: b', on: true}\npractice_growth: {}\n")
    loaded = load_recipe(path, ["seed=3"], {"LIMBECK_BETA": "0.5"})
    text = show(loaded, origin=origin)
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load_recipe(again, [], {}).recipe == loaded.recipe
    if origin:
        (beta,) = (line for line in text.splitlines() if line.startswith("beta:"))
        assert beta.split("#")[1].strip() == "environment LIMBECK_BETA"
        assert "# support.yaml line 7" in text
        assert "# default" in text
    else:
        assert "#" not in text


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=12, alphabet=st.characters(exclude_categories=["Cs"])),
        st.one_of(
            st.text(max_size=20, alphabet=st.characters(exclude_categories=["Cs"])),
            st.booleans(),
            st.none(),
            st.integers(-(10**20), 10**20),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        max_size=4,
    )
)
def test_any_template_options_survive_being_written_and_read(options: dict[str, object]) -> None:
    first = recipe(template_options=options)
    for text in (recipe_text(first), recipe_text(first, comments_of="template_options: {}\n")):
        entries, problems = read_entries(text, "x.yaml")
        assert problems == []
        read = {
            entry.path[1]: entry.value.plain
            for entry in entries
            if len(entry.path) == 2 and entry.path[0] == "template_options"
        }
        assert read == options


def test_the_header_is_a_comment_whatever_it_holds() -> None:
    text = recipe_text(recipe(), header="a\n\nstudent: evil\r\nb\x0bc\u2028d")
    assert [line for line in text.splitlines() if "evil" in line] == ["# student: evil"]
    assert read_entries(text, "x")[1] == []


def test_a_recipe_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Stopped, match="No space left"):
        write_recipe(path, recipe())
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("recipe.yaml", "old")]
