"""From the text of a recipe to its entries: dotted path, value, and the line it stands on.

The values follow the core schema of YAML 1.2, whatever the file declares: 1e-4 is a number, no and on are text. Each
value keeps its spelling too, for a field that wants text takes 007 as it is written. What a recipe has no use for and
readers disagree on is refused: repeated keys, aliases, merge keys, tags. ruamel.yaml parses; nothing is constructed.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from limbeck.errors import RecipeError

__all__ = ["Entry", "Problem", "RecipeProblems", "Value", "read_entries", "read_value", "shorten"]

MAX_RECIPE_CHARACTERS = 250_000
_MAX_NUMBER_LENGTH = 300
_MAX_SHOWN_LENGTH = 60
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq"))


@dataclass(frozen=True)
class Value:
    """A value as it is meant (`plain`) and as it is spelled (`raw`)."""

    plain: object
    raw: str
    quoted: bool = False


@dataclass(frozen=True)
class Entry:
    """One setting as somebody gave it; `place` says where, for example "support.yaml line 7"."""

    path: tuple[str, ...]
    value: Value
    place: str

    @property
    def key(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a recipe. `subject` is the key with its value, or the piece of text at fault."""

    code: str
    place: str
    subject: str
    needed: str
    fix: str


class RecipeProblems(RecipeError):
    """All that is wrong with a recipe, at once."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            (only,) = problems
            given = f"{only.place}: {only.subject}"
            super().__init__(only.code, given=given, needed=only.needed, fix=only.fix)
            return
        told = (f"  {each.place}: {each.subject}\n    {each.needed} {each.fix}" for each in problems)
        super().__init__(
            "recipe.problems",
            given="\n".join([f"{name} has {len(problems)} problems.", *told]),
            needed="Every key is a setting with a value of its kind; nothing is ignored and nothing is guessed.",
            fix="Correct them and start again. `limbeck recipe explain` lists the settings.",
        )


def read_value(text: str, place: str) -> Value:
    """A single value from outside a file, read as it would be in one; in quotes it is text."""
    text = text.strip()
    if text[:1] not in ("'", '"'):
        return Value(_resolve(text), text)
    node = _compose(text, place)
    if isinstance(node, ScalarNode):
        return Value(node.value, node.value, quoted=True)
    return Value(text, text)


def shorten(text: str) -> str:
    """A value as a message shows it: on one line and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN_LENGTH else line[: _MAX_SHOWN_LENGTH - 3] + "..."


def _resolve(raw: str) -> object:
    if raw in _WORDS:
        return _WORDS[raw]
    if len(raw) > _MAX_NUMBER_LENGTH:
        return raw
    if _INT.fullmatch(raw):
        return int(raw)
    if _OCTAL_OR_HEX.fullmatch(raw):
        return int(raw[2:], 8 if raw[1] == "o" else 16)
    if _FLOAT.fullmatch(raw):
        return float(raw)
    if _INFINITE.fullmatch(raw):
        return -math.inf if raw[0] == "-" else math.inf
    return raw


def read_entries(text: str, name: str) -> tuple[list[Entry], list[Problem]]:
    """The entries of a recipe file called `name`, and what is wrong with its form.

    Raises RecipeError where there is nothing to go on with: text that is not YAML, or no mapping at its top.
    """
    if len(text) > MAX_RECIPE_CHARACTERS:
        raise _unreadable(name, f"is {len(text)} characters long", f"A recipe has at most {MAX_RECIPE_CHARACTERS}.")
    root = _compose(text, name)
    if root is None:
        return [], []
    if not isinstance(root, MappingNode):
        raise _unreadable(name, "holds no settings at its top", "A recipe is lines of the form key: value.")
    reader = _Reader(name)
    reader.walk(root, ())
    return reader.entries, reader.problems


def _compose(text: str, name: str) -> Node | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            return YAML(typ="rt", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name} line {mark.line + 1}" if mark is not None else name
        fault = error.problem or error.context or "no YAML"
        raise _unreadable(place, f"is not YAML: {fault}", "A recipe is YAML: lines of the form key: value.") from error
    except (YAMLError, ValueError) as error:
        fault = shorten(str(error))
        raise _unreadable(name, f"is not YAML: {fault}", "A recipe is YAML: lines of the form key: value.") from error
    except RecursionError as error:
        raise _unreadable(name, "is nested too deeply", "A recipe has two levels.") from error


def _unreadable(place: str, fault: str, needed: str) -> RecipeError:
    fix = "Correct the file; `limbeck recipe explain` lists the settings."
    return RecipeError("recipe.unreadable", given=f"{place} {fault}.", needed=needed, fix=fix)


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[int] = set()
        self.entries: list[Entry] = []
        self.problems: list[Problem] = []

    def walk(self, node: MappingNode, path: tuple[str, ...]) -> None:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, ScalarNode) else "?"
            subject = ".".join((*path, str(key)))
            if key_node.tag == _TAG + "merge":
                self._refuse_form(line, subject, "a merge key")
            elif key in lines:
                self.problems.append(
                    Problem(
                        "recipe.key-duplicate",
                        f"{self._name} lines {lines[key]} and {line}",
                        subject,
                        "The same key stands there twice, and readers differ in which of them counts.",
                        "Remove one of the two.",
                    )
                )
            elif self._is_plain_form(key_node, line, subject) and self._is_plain_form(value_node, line, subject):
                lines[key] = line
                self._take(value_node, (*path, str(key)), line)

    def _is_plain_form(self, node: Node, line: int, subject: str) -> bool:
        if id(node) in self._seen:
            self._refuse_form(line, subject, "an alias (*)")
        elif node.tag not in _KNOWN_TAGS:
            self._refuse_form(line, subject, f"the tag {node.tag}")
        else:
            self._seen.add(id(node))
            return True
        return False

    def _refuse_form(self, line: int, subject: str, form: str) -> None:
        self.problems.append(
            Problem(
                "recipe.yaml-form",
                f"{self._name} line {line}",
                subject,
                f"A recipe is plain keys and values, so that what you read is what counts; this is {form}.",
                "Write the value out.",
            )
        )

    def _take(self, node: Node, path: tuple[str, ...], line: int) -> None:
        place = f"{self._name} line {line}"
        if isinstance(node, MappingNode) and node.value:
            self.walk(node, path)
        elif isinstance(node, ScalarNode):
            quoted = node.style is not None
            value = Value(node.value if quoted else _resolve(node.value), node.value, quoted)
            self.entries.append(Entry(path, value, place))
        elif isinstance(node, SequenceNode):
            self.entries.append(Entry(path, Value([], "[a list]"), place))
        else:
            self.entries.append(Entry(path, Value({}, "{}"), place))
