"""The only printer. Results go to stdout; progress, warnings and errors go to stderr.

Whatever is printed passes through `safe` first, and none of it is read as markup: the text of a model, a prompt or a
file name is data, and may hold sequences that retitle a terminal, write its clipboard or turn the reading direction.
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO, TypeGuard

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table, box
from rich.text import Text

from limbeck.errors import LimbeckError

__all__ = ["PLAIN_WIDTH", "Printer", "encodable", "is_interactive", "is_number", "print_text", "safe"]

PLAIN_WIDTH = 80

# A whole control sequence goes, introduced by ESC or by its one-character C1 form: CSI with its parameters; the
# string sequences OSC, DCS, SOS, PM and APC with their text; ESC with its intermediate and final characters.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# What is left of C0 (but newline and tab), DEL and C1 goes too, so that no half of a sequence can meet another half.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Characters that cannot be seen, or that change how others are seen: direction marks, zero-width and filler
# characters, tags, variation selectors, line and paragraph separators, lone surrogates.
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\uffff\ud800-\udfff\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_SHOWN_AS_ESCAPES = re.compile(f"[{_INVISIBLE}]")
# Joiners and the two emoji selectors belong to the spelling of Persian, Hindi and emoji; alone they hide something.
_JOINERS = "\u200c\u200d"
_SELECTORS = "\ufe0e\ufe0f"
_BASES_OF_KEYCAPS = "#*0123456789"


def safe(text: str) -> str:
    """`text` as a terminal may show it: no control sequence, no control character but newline and tab.

    Direction controls and other invisible characters are shown as escapes (backslash, u, four digits): they are part
    of what a model wrote, so they are made visible and not dropped.
    """
    plain = _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))
    return _SHOWN_AS_ESCAPES.sub(_escape_unless_spelling, plain)


def _escape_unless_spelling(match: re.Match[str]) -> str:
    character, text, at = match.group(), match.string, match.start()
    before = text[at - 1] if at > 0 else " "
    after = text[at + 1] if at + 1 < len(text) else " "
    if character in _JOINERS and _is_visible_beyond_ascii(before, _SELECTORS) and _is_visible_beyond_ascii(after):
        return character
    if character in _SELECTORS and (_is_visible_beyond_ascii(before) or before in _BASES_OF_KEYCAPS):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _is_visible_beyond_ascii(character: str, also: str = "") -> bool:
    visible = ord(character) > 0xA0 and not character.isspace() and _SHOWN_AS_ESCAPES.match(character) is None
    return visible or character in also


def is_interactive(stream: TextIO) -> bool:
    """Whether a moving display may be drawn on `stream`: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class Printer:
    """Says things to a person: `say`, `table` and `rule` are results, `progress`, `warn` and `fail` are not."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None, width: int | None = None) -> None:
        self.out = _console(sys.stdout if out is None else out, width)
        self.err = _console(sys.stderr if err is None else err, width)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a result. A terminal wraps it at its width; a pipe gets every line whole."""
        print_text(self.out, text, style)

    def progress(self, text: str) -> None:
        """Print what is going on, to stderr."""
        print_text(self.err, text, "dim")

    def warn(self, text: str) -> None:
        """Print a warning, to stderr."""
        _labelled(self.err, [("Warning", text)], indent=0, style="bold yellow")

    def fail(self, error: LimbeckError) -> None:
        """Print an error in its three parts, with its code, to stderr."""
        self.err.print(Text.assemble(("Error", "bold red"), f"  {safe(error.code)}"), soft_wrap=True)
        parts = [("given", error.given), ("needed", error.needed), ("fix", error.fix)]
        _labelled(self.err, parts, indent=2, style="bold")

    def describe(self, title: str, parts: Sequence[tuple[str, str]]) -> None:
        """Print a result made of labelled paragraphs under a title."""
        self.say(title, style="bold")
        _labelled(self.out, parts, indent=2, style="bold")

    def table(self, rows: Sequence[Mapping[str, object]], *, title: str | None = None) -> None:
        """Print rows as a table, its columns as in the first row. Numbers stand right; a missing value is a dash."""
        if not rows:
            return
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        columns = list(rows[0])
        for column in columns:
            values = [row.get(column) for row in rows]
            numeric = all(value is None or is_number(value) for value in values)
            grid.add_column(Text(encodable(self.out, column)), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            grid.add_row(*(Text(encodable(self.out, _cell(row.get(column)))) for column in columns))
        if title is not None:
            self.say(title, style="bold")
        if self.out.is_terminal:
            self.out.print(grid)
        else:
            self.out.file.write(_unfolded(self.out, grid))

    def rule(self, title: str = "") -> None:
        """Print a line across, with a title in it."""
        self.out.print(Rule(Text(encodable(self.out, title)), align="left", style="dim"))


def _console(stream: TextIO, width: int | None) -> Console:
    """A console that is a terminal exactly when its stream is one, whatever the environment asks to force."""
    terminal = is_interactive(stream)
    colour = terminal and os.environ.get("NO_COLOR", "") == ""
    return Console(
        file=stream,
        force_terminal=terminal,
        force_interactive=terminal,
        force_jupyter=False,
        color_system="auto" if colour else None,
        no_color=not colour,
        width=width if terminal or width is not None else PLAIN_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def encodable(console: Console, text: str) -> str:
    """Safe text that the console's stream can encode; a character that it cannot becomes an escape."""
    encoding = console.encoding
    return safe(text).encode(encoding, "backslashreplace").decode(encoding)


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print safe text, wrapped between words on a terminal and whole into a pipe."""
    for line in _wrapped(console, text, console.width):
        console.print(Text(line, style=style), soft_wrap=True)


def _labelled(console: Console, parts: Sequence[tuple[str, str]], *, indent: int, style: str) -> None:
    label_width = max(len(label) for label, _ in parts)
    margin = indent + label_width + 2
    for label, text in parts:
        lead = f"{' ' * indent}{label:<{label_width}}  "
        for line in _wrapped(console, text, console.width - margin):
            console.print(Text.assemble((lead, style), line), soft_wrap=True)
            lead = " " * margin


def _wrapped(console: Console, text: str, width: int) -> list[str]:
    """Lines of at most `width` columns on a terminal; a word longer than that (a path, a command) is never cut."""
    lines: list[str] = []
    for paragraph in encodable(console, text).split("\n"):
        if console.is_terminal and cell_len(paragraph) > width:
            lines.extend(_broken_at_spaces(paragraph, width))
        else:
            lines.append(paragraph.rstrip())
    return lines


def _broken_at_spaces(paragraph: str, width: int) -> list[str]:
    """Lines as full as they can be, each indented as the paragraph is."""
    indent: str = " " * (len(paragraph) - len(paragraph.lstrip(" ")))
    lines: list[str] = [indent]
    for spaces, word in re.findall(r"( *)([^ ]+)", paragraph):
        start = lines[-1] == indent
        if start or cell_len(lines[-1] + spaces + word) <= width:
            lines[-1] += word if start else spaces + word
        else:
            lines.append(indent + word)
    return lines


def _unfolded(console: Console, grid: Table) -> str:
    """The table as wide as its cells need, for a pipe: no cell is folded or cut, no line ends in spaces."""
    wide = Console(
        file=io.StringIO(), width=1_000_000, color_system=None, force_jupyter=False, markup=False, emoji=False,
        highlight=False, legacy_windows=False,
    )  # fmt: skip
    text = "".join(segment.text for segment in wide.render(grid))
    lines = [line.rstrip() for line in text.splitlines()]
    return "".join(encodable(console, line) + "\n" for line in lines)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is an int or a float; True and False are no numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)
