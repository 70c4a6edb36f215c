"""The only printer. Results go to stdout; progress, warnings and errors go to stderr.

Whatever is printed passes through `safe` first, and none of it is read as markup: the text of a model, a prompt or a
file name is data, and may hold sequences that retitle a terminal, write its clipboard or turn the reading direction.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO, TypeGuard

from rich.console import Console
from rich.rule import Rule
from rich.table import Table, box
from rich.text import Text

from limbeck.errors import LimbeckError

__all__ = [
    "PLAIN_WIDTH",
    "Printer",
    "encodable",
    "is_interactive",
    "is_number",
    "print_json",
    "print_text",
    "safe",
    "visible",
]

PLAIN_WIDTH = 80
_UNLIMITED_WIDTH = 1_000_000  # a pipe gets lines and tables as wide as they are
_LEAST_COLUMN = 8  # text in a column is folded, but not narrower than this
_GAP = 3  # between columns
_MIN_WIDTH = 20  # what text is wrapped at in a window narrower than that

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
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\ud800-\udfff\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Joiners and the two emoji selectors belong to the spelling of Persian, Hindi and emoji, and stay behind a visible
# character that is not ASCII; elsewhere they hide something.
_JOINERS, _SELECTORS = "\u200c\u200d", "\ufe0e\ufe0f"
_VISIBLE = f"[^\x00-\xa0{_INVISIBLE}{_JOINERS}{_SELECTORS}]"
_SHOWN_AS_ESCAPES = re.compile(
    f"[{_INVISIBLE}]|(?<!{_VISIBLE})[{_SELECTORS}](?!\u20e3)|(?<!{_VISIBLE})(?<!{_VISIBLE}[{_SELECTORS}])[{_JOINERS}]"
)
_UNSEEN = re.compile(f"{_CONTROLS.pattern}|{_SHOWN_AS_ESCAPES.pattern}")


def safe(text: str) -> str:
    """`text` as a terminal may show it: no control sequence, no control character but newline and tab.

    Direction controls and other invisible characters are shown as escapes (backslash, u, four digits): they are part
    of what a model wrote, so they are made visible and not dropped.
    """
    plain = _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))
    return _SHOWN_AS_ESCAPES.sub(_escape, plain)


def visible(text: str) -> Iterator[tuple[str, bool]]:
    """`text` in pieces for a page: what can be seen as it is (False), and escapes for single characters that cannot.

    Control characters are shown too, where `safe` drops them: a page has no terminal that would obey them.
    """
    end = 0
    text = text.replace("\r\n", "\n")
    for match in _UNSEEN.finditer(text):
        if match.start() > end:
            yield text[end : match.start()], False
        yield _escape(match), True
        end = match.end()
    if end < len(text):
        yield text[end:], False


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def is_interactive(stream: TextIO) -> bool:
    """Whether a moving display may be drawn on `stream`: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class Printer:
    """Says things to a person: `say`, `table` and `rule` are results, `progress`, `warn` and `fail` are not."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = _console(sys.stdout if out is None else out)
        self.err = _console(sys.stderr if err is None else err)

    def say(self, text: str, *, style: str = "") -> None:
        print_text(self.out, text, style)

    def say_parts(self, parts: Sequence[tuple[str, str]]) -> None:
        """Texts with their styles as one running text, folded at the width of a terminal."""
        self.out.print(Text.assemble(*((encodable(self.out, text), style) for text, style in parts)))

    def progress(self, text: str) -> None:
        print_text(self.err, text, "dim")

    def warn(self, text: str) -> None:
        self._labelled("Warning  ", text, "bold yellow")

    def fail(self, error: LimbeckError) -> None:
        """Print an error in its three parts, with its code, to stderr."""
        self._labelled("Error  ", error.code, "bold red")
        self._labelled("  given   ", error.given, "bold")
        self._labelled("  needed  ", error.needed, "bold")
        self._labelled("  fix     ", error.fix, "bold")

    def _labelled(self, label: str, text: str, style: str) -> None:
        """The text beside its label, on all its lines."""
        for number, line in enumerate(_wrapped(self.err, text, self.err.width - len(label))):
            lead = label if number == 0 else " " * len(label)
            self.err.print(Text.assemble((lead, style), line), soft_wrap=True)

    def table(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Print rows as a table, its columns as in the first row. Numbers stand right; a missing value is a dash.

        Where a window is too narrow for the columns, each row stands by itself, a line for each of its values.
        """
        if not rows:
            return
        least = sum(max(min(len(text), _LEAST_COLUMN) for text in texts) for texts in _columns(rows))
        if least + _GAP * (len(rows[0]) - 1) > self.out.width:
            for row in rows:
                self.say(_cell(row.get(next(iter(rows[0])))), style="bold")
                for column in list(rows[0])[1:]:
                    self.say(f"  {column}: {_cell(row.get(column))}")
            return
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for column in rows[0]:
            numeric = all(row.get(column) is None or is_number(row.get(column)) for row in rows)
            grid.add_column(Text(encodable(self.out, column)), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            grid.add_row(*(Text(encodable(self.out, _cell(row.get(column)))) for column in rows[0]))
        self.out.print(grid)

    def rule(self, title: str = "") -> None:
        line = "─" if self.out.encoding.startswith("utf") else "-"  # of itself a rule without title keeps the former
        rule = Rule(Text(encodable(self.out, title)), align="left", style="dim", characters=line)
        self.out.print(rule, width=PLAIN_WIDTH)


def _console(stream: TextIO) -> Console:
    """A console that is a terminal exactly when its stream is one, whatever the environment asks to force."""
    terminal = is_interactive(stream)
    colour = "auto" if terminal and not os.environ.get("NO_COLOR") else None
    width = None if terminal else _UNLIMITED_WIDTH
    return Console(
        file=stream, force_terminal=terminal, force_jupyter=False, color_system=colour, width=width, markup=False
    )


def encodable(console: Console, text: str) -> str:
    """Safe text that the console's stream can encode; a character that it cannot becomes an escape."""
    return safe(text).encode(console.encoding, "backslashreplace").decode(console.encoding)


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print safe text, wrapped between words on a terminal and whole into a pipe."""
    for line in _wrapped(console, text, console.width):
        console.print(Text(line, style), soft_wrap=True)


def print_json(text: str) -> None:
    """JSON to stdout as it is, for another program; in ASCII where the encoding of stdout lacks a character of it."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text)) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()


def _wrapped(console: Console, text: str, width: int) -> list[str]:
    """Lines of at most `width` characters on a terminal; a word longer than that (a path, a command) is never cut."""
    lines = encodable(console, text).split("\n")
    if not console.is_terminal:
        return lines
    wrapper = textwrap.TextWrapper(max(width, _MIN_WIDTH), break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line) or [""]]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is an int or a float; True and False are no numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """The texts of each column with its head."""
    return [[column, *(_cell(row.get(column)) for row in rows)] for column in rows[0]]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
