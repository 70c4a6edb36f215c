"""No message, help text, docstring or page uses a word that the glossary replaced."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "limbeck"
GLOSSARY = ROOT / "dev" / "GLOSSARY.md"
# Folders and files of the package that are still to be read through.
PENDING: set[str] = {
    *("data", "models", "evaluation", "recipe", "planning", "reporting", "embedded", "objectives", "rollouts"),
    *("teachers", "training", "routes", "runs", "driver", "http", "machine", "names", "api", "cli", "conversation"),
    *("console", "progress"),
}


def banned() -> tuple[str, ...]:
    """What stands between backquotes in the last column of the glossary's table."""
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("|")][2:]
    return tuple(word for row in rows for word in re.findall(r"`([^`]+)`", row.rstrip("|").rpartition("|")[2]))


BANNED = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in banned()), re.IGNORECASE)


def prose_of(text: str) -> list[tuple[int, str]]:
    """Docstrings and texts with a blank of a Python file, with their lines; code and keys are no prose."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            found.append((node.lineno, " ".join(node.value.split())))
    return found


def test_the_glossary_bans_what_it_replaces():
    assert len(banned()) >= 20
    assert "cannot be meant" in banned()
    assert BANNED.search("This key Cannot be meant.")
    assert not BANNED.search("mushroom roommate")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_package_speaks_the_words_of_the_glossary(path):
    if set(path.relative_to(PACKAGE).with_suffix("").parts) & PENDING:
        return
    for line, text in prose_of(path.read_text(encoding="utf-8")):
        found = BANNED.search(text)
        assert found is None, f"line {line}: {found[0]!r} in {text[:120]!r}"


PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(PACKAGE / "reporting").rglob("*.html")],
    key=str,
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_pages_speak_the_words_of_the_glossary(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        found = BANNED.search(line)
        assert found is None, f"line {number}: {found[0]!r} in {line[:120]!r}"
