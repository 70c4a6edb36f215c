"""Recipes written out: what is read again is the same."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limbeck.recipe.files import effective_recipe_text, load_recipe, recipe_text
from limbeck.recipe.recipe import Recipe

SOURCE = """\
student: org/small  # the cheap one
teacher: org/big
prompts: tickets.jsonl
learning_rate: 1e-4
sampling: {temperature: 0.7}
name: 007
template_options: {date: '1', x: 'a: b', on: true, lang: 'no'}
practice_growth: {}
"""


def recipe(**changes: object) -> Recipe:
    return Recipe.model_validate(
        {"student": "org/s", "teacher": "org/t", "prompts": "/p", "workspace": "/w", **changes}
    )


def test_a_written_recipe_is_read_again_as_the_same(tmp_path: Path) -> None:
    path, written = tmp_path / "support.yaml", tmp_path / "recipe.yaml"
    path.write_text(SOURCE, encoding="utf-8")
    loaded = load_recipe(path, ["objective=kl_mix", "steps=7"], {})
    written.write_text(recipe_text(loaded.recipe, "Resolved.\nlimbeck 0.1"), encoding="utf-8")
    lines = written.read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["# Resolved.", "# limbeck 0.1", "route: on-policy"]
    assert "forward_weight: 0.5" in lines
    assert not any(line.startswith("beta:") for line in lines)
    assert load_recipe(written, [], {}).recipe == loaded.recipe


@pytest.mark.parametrize("origin", [False, True])
def test_what_is_shown_is_itself_a_recipe(tmp_path: Path, origin: bool) -> None:
    path = tmp_path / "support.yaml"
    path.write_text(SOURCE)
    loaded = load_recipe(path, ["seed=3"], {"LIMBECK_BETA": "0.5"})
    text = effective_recipe_text(loaded, origin=origin)
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load_recipe(again, [], {}).recipe == loaded.recipe
    if origin:
        (beta,) = (line for line in text.splitlines() if line.startswith("beta:"))
        assert beta.split("#")[1].strip() == "environment LIMBECK_BETA"
        assert "# support.yaml line 5" in text
        assert "# default" in text
    else:
        assert "#" not in text


@settings(max_examples=50, deadline=None)
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
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(recipe_text(first), encoding="utf-8")
        assert load_recipe(path, [], {}).recipe == first


def test_the_header_is_a_comment_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_text(recipe(), header="a\n\nstudent: evil\r\nb\x0bc\u2028d"), encoding="utf-8")
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if "evil" in line] == ["# student: evil"]
    assert load_recipe(path, [], {}).recipe == recipe()
