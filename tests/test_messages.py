"""The catalogue: every message is one template with typed parameters, and nothing makes an error beside it."""

from __future__ import annotations

import ast
import inspect
import string
import types
import typing
from importlib import import_module
from pathlib import Path

import pytest

from limbeck import errors
from limbeck.errors import CATALOGUE, DataError, LimbeckError, Note, Text, fill

PACKAGE = Path(__file__).parent.parent / "src" / "limbeck"
CATALOGUES = sorted(
    ".".join(("limbeck", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in PACKAGE.rglob("*.py")
    if "messages" in path.relative_to(PACKAGE).with_suffix("").parts
)
for module in CATALOGUES:
    import_module(module)

SAMPLES = {str: "TEXT", int: 3, float: 0.25, bool: True, Path: Path("folder/file.jsonl")}
# Files that make errors of parts that come from elsewhere: a parser's complaint, the problems of a recipe.
MAKERS = {"errors.py"}
# Folders and files whose messages are still to be moved into their catalogue.
PENDING: set[str] = set()


def sample(annotation: object) -> object:
    """A value of a parameter's type."""
    if annotation in SAMPLES:
        return SAMPLES[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return sample(next(each for each in inner if each is not types.NoneType))
    if origin is typing.Literal:
        return inner[0]
    if (origin is not None and issubclass(origin, (list, tuple))) or origin in (typing.Sequence,):
        return [sample(inner[0]), sample(inner[0])]
    if getattr(origin, "__name__", "") in ("Sequence", "Iterable", "Collection"):
        return [sample(inner[0]), sample(inner[0])]
    raise AssertionError(f"a message takes no {annotation}")


def values_of(template) -> dict[str, object]:
    hints = typing.get_type_hints(template)
    return {name: sample(hints[name]) for name in inspect.signature(template).parameters}


def fields_of(text: str) -> set[str]:
    return {field.partition(".")[0].partition("[")[0] for _, field, _, _ in string.Formatter().parse(text) if field}


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_a_message_is_one_template_that_shows_each_of_its_parameters(code):
    template = CATALOGUE[code]
    values = values_of(template)
    made = template(**values)
    texts = [made] if isinstance(made, str) else list(vars(made).values())
    assert fields_of(" ".join(texts)) == set(values), f"{code} declares other parameters than it shows"
    for text in texts:
        shown = fill(text, values)
        assert shown.strip(), f"{code} has an empty part"
        assert "{" not in shown or "{{" in text, f"{code}: {shown}"
    tree = ast.parse(inspect.cleandoc(inspect.getsource(template)))
    body = [
        node for node in tree.body[0].body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert len(body) == 1, f"{code} chooses between texts: each text is a message of its own"
    assert isinstance(body[0], ast.Return), code


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_errors_are_made_in_a_catalogue(path):
    if path.name in MAKERS or set(path.relative_to(PACKAGE).with_suffix("").parts) & (PENDING | {"messages"}):
        return
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LimbeckError)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            raise AssertionError(f"line {node.lineno} makes a {node.func.id}; its text belongs into messages.py")


@errors.error(DataError, "test.rows")
def rows_left_out(*, file: str, num: int, names: list[str]) -> Text:
    return Text(given="{file} has {num:row|rows}: {names}.", needed="{{one}} is needed.", fix="{num:# is|# are} it.")


@errors.note("test.note")
def columns(*, num: int) -> str:
    return "{num:only # column is|only # columns are} read."


del CATALOGUE["test.rows"], CATALOGUE["test.note"]


def test_an_error_keeps_its_code_and_parameters_beside_its_text():
    found = rows_left_out(file="a{b}.jsonl", num=1200, names=["x", "y"])
    assert isinstance(found, DataError)
    assert isinstance(found, ValueError)
    assert str(found) == "a{b}.jsonl has 1,200 rows: x, y. {one} is needed. 1,200 are it. [test.rows]"
    assert found.parameters == {"file": "a{b}.jsonl", "num": 1200, "names": ["x", "y"]}
    assert rows_left_out(file="f", num=1, names=[]).given == "f has 1 row: ."
    assert rows_left_out(file="f", num=0, names=[]).fix == "0 are it."


def test_a_note_is_its_text_and_can_be_copied():
    import copy

    found = columns(num=1)
    assert found == "only 1 column is read."
    assert isinstance(found, Note)
    for same in (copy.copy(found), copy.deepcopy(found)):
        assert (same, same.code, same.parameters) == (found, "test.note", {"num": 1})
    with pytest.raises(TypeError):
        columns(many=1)


def test_a_code_stands_for_one_message():
    decorate = errors.note("test.twice")
    decorate(lambda: "text")
    with pytest.raises(AssertionError, match="two messages"):
        decorate(lambda: "text")
    del CATALOGUE["test.twice"]
