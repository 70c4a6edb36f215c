"""Texts use the terms of `dev/GLOSSARY.md`: none contains a pattern that the glossary bans.

The test covers strings, docstrings and comments of the package, its page templates, the docs, recipes and examples. The
help of commands and settings is part of docs/reference/cli.md and recipe.md, which another test compares with the code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "dev" / "GLOSSARY.md"

# Folders and files whose texts are still to be rewritten. Whoever rewrites the texts of an entry removes it.
PENDING: tuple[str, ...] = ()

# Strings there are data (customer messages, names of runs), not messages of Limbeck.
DATA = ("src/limbeck/embedded/task.py", "src/limbeck/names.py")
PLAIN = (".md", ".yaml", ".html", ".jinja", ".js")


def rows_of_the_glossary() -> list[list[str]]:
    rows = []
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0] != "term" and not set(cells[0]) <= {"-"}:
            rows.append(cells)
    return rows


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the glossary, on whole words; `{}` is a value that is filled in."""
    body = pattern.replace("{}", r"\{\}").replace(" ", r"\s+")
    start = "" if body.startswith(("^", r"\{", r"\b")) else r"(?<![\w-])"
    end = "" if body.endswith((r"\s+", r"\}", ",")) else r"(?![\w-])"
    return re.compile(f"{start}(?:{body}){end}", re.IGNORECASE)


BANNED = {
    pattern: (compiled(pattern), term)
    for term, _, _, replaced in rows_of_the_glossary()
    for pattern in re.findall(r"`([^`]+)`", replaced)
}


def banned_in(text: str) -> list[str]:
    """What a text contains that the glossary bans, each with the term to use instead."""
    return [
        f"{found.group()!r} -> {term}"
        for pattern, term in BANNED.values()
        if (found := pattern.search(text)) is not None
    ]


def texts_of_code(source: str, *, with_strings: bool) -> Iterator[tuple[int, str]]:
    """Docstrings, strings with a space and comments, each with its line; values that are filled in become {}."""
    tree = ast.parse(source)
    docstrings, parts = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(first.value)
        if isinstance(node, ast.JoinedStr):
            parts |= set(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and with_strings:
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in parts:
            continue
        elif node in docstrings or (with_strings and " " in node.value):
            yield node.lineno, node.value
    yield from _comments(source)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments; those on lines that follow each other are one text."""
    block: list[str] = []
    last = first = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and block:
                yield first, " ".join(block)
                block = []
            first, last = (first if block else token.start[0]), token.start[0]
            block.append(token.string.lstrip("#: "))
    if block:
        yield first, " ".join(block)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from texts_of_code(text, with_strings=path.relative_to(ROOT).as_posix() not in DATA)
        return
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        yield line, paragraph
        line += paragraph.count("\n")


def files_with_texts() -> list[Path]:
    folders = (ROOT / "src" / "limbeck", ROOT / "docs", ROOT / "recipes", ROOT / "examples")
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", *PLAIN)]
    return sorted([*found, ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


FILES = files_with_texts()


def place_of(path: Path) -> str:
    """The entry of PENDING that covers a file: a folder or file of the package, or one at the root."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:3]) if parts[0] == "src" else parts[0]


def findings(path: Path) -> list[str]:
    where = path.relative_to(ROOT).as_posix()
    return [f"{where}:{line}: {found}" for line, text in texts_of(path) for found in banned_in(text)]


@pytest.mark.parametrize("place", sorted({place_of(path) for path in FILES} - set(PENDING)))
def test_no_text_contains_a_banned_phrase(place):
    found = [each for path in FILES if place_of(path) == place for each in findings(path)]
    assert found == [], "\n".join(["see dev/GLOSSARY.md", *found])


@pytest.mark.parametrize("place", PENDING)
def test_what_is_pending_has_something_to_rewrite(place):
    assert any(findings(path) for path in FILES if place_of(path) == place), f"remove {place} from PENDING"


@pytest.mark.parametrize(
    "text",
    [
        "the command or the recipe cannot be meant",
        "Nobody has asked whether this is worth it",
        "The likeness of letters (chrF) of an answer",
        "names a model behind an interface",
        "Take the model out.",
        "faults are told at once",
        "What the student is asked.",
        "40% of the answers go in circles at their end",
        "the one and the other",
        "s p50",
        "An a evaluation is",
        "1 of 239 prompts are cut off",
        "{} of {} answers are cut off",
        "the rooms that this calls",
        "Of the prices.",
    ],
)
def test_phrases_of_the_past_are_found(text):
    assert banned_in(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "The recipe is invalid.",
        "No baseline check yet: run `limbeck worth support.yaml`.",
        "Export the model.",
        "The student generates a practice answer, and the teacher scores it.",
        "2 of 239 prompts were skipped",
        "The run is no longer locked.",
        "Set route: off-policy.",
        "the median of the seconds",
    ],
)
def test_plain_sentences_pass(text):
    assert banned_in(text) == []


def test_a_phrase_is_found_across_lines_and_not_inside_words():
    assert banned_in("the student goes\n    on with") != []
    assert banned_in("cargoes only; roommate; untold") == []


def test_the_glossary_has_one_row_a_term_and_follows_itself():
    rows = rows_of_the_glossary()
    terms = [term for term, *_ in rows]
    assert len(terms) == len(set(terms)) > 50
    assert [found for term, meaning, *_ in rows for found in banned_in(f"{term}: {meaning}")] == []


def test_strings_docstrings_and_comments_are_all_read():
    source = '"""One doc."""\nx = f"two {y} three"\n# four\n# five\nz = "six seven"\nw = "eight"\n'
    assert [text for _, text in texts_of_code(source, with_strings=True)] == [
        *("One doc.", "two {} three", "six seven"),
        "four five",
    ]
