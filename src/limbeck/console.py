"""The only printer. Results go to stdout; progress, warnings and errors go to stderr.

Whatever is printed passes through `safe` first, and none of it is read as markup: the text of a model, a prompt or a
file name is data, and may hold sequences that retitle a terminal, write its clipboard or reverse the reading direction.

Results wrap at the width of a terminal, and at 80 columns in a pipe. Warnings and errors stay on one line in a pipe, so
that a search in a log finds them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO, TypeGuard

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table, box
from rich.text import Text

from limbeck.errors import LimbeckError
from limbeck.messages import CONSOLE_LABELS

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
_UNLIMITED_WIDTH = 1_000_000  # of warnings and errors in a pipe
_LEAST_COLUMN = 8  # the text of a cell is folded, but not narrower than this,
_LONGEST_WORD = 20  # and words up to this length stay whole
_GAP = 3  # between columns
_MIN_WIDTH = 20  # the width of text in a window narrower than that
_LEAD = re.compile(r"[\s│]*(?:- |\d+\. |[├└]─ )?")  # the start of a list item or of a branch

# A whole control sequence is removed, introduced by ESC or by its one-character C1 form: CSI with its parameters; the
# string sequences OSC, DCS, SOS, PM and APC with their text; ESC with its intermediate and final characters.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# The rest of C0 (except newline and tab), DEL and C1 is removed too, so that two halves cannot form a new sequence.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Characters that cannot be seen, or that change how others are seen: direction marks, zero-width and filler
# characters, tags, variation selectors, line and paragraph separators, lone surrogates.
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\ud800-\udfff\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Joiners and the two emoji selectors belong to the spelling of Persian, Hindi and emoji, and stay behind a visible
# character that is not ASCII; anywhere else they would hide something.
_JOINERS, _SELECTORS = "\u200c\u200d", "\ufe0e\ufe0f"
_VISIBLE = f"[^\x00-\xa0{_INVISIBLE}{_JOINERS}{_SELECTORS}]"
_SHOWN_AS_ESCAPES = re.compile(
    f"[{_INVISIBLE}]|(?<!{_VISIBLE})[{_SELECTORS}](?!\u20e3)|(?<!{_VISIBLE})(?<!{_VISIBLE}[{_SELECTORS}])[{_JOINERS}]"
)
_UNSEEN = re.compile(f"{_CONTROLS.pattern}|{_SHOWN_AS_ESCAPES.pattern}")


def safe(text: str) -> str:
    """`text` without control sequences and control characters, except newline and tab.

    Direction controls and other invisible characters become escapes (backslash, u, four digits): they are part of the
    model's text, so they are made visible and not removed.
    """
    plain = _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))
    return _SHOWN_AS_ESCAPES.sub(_escape, plain)


def visible(text: str) -> Iterator[tuple[str, bool]]:
    """`text` in pieces for a page: visible text (False), and escapes of single invisible characters (True).

    Control characters become escapes too, where `safe` removes them: a page has no terminal that would obey them.
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
    """Whether a live display can be shown on `stream`: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class Printer:
    """Prints for people. `say`, `say_whole`, `table` and `rule` print results; `progress`, `warn` and `fail` do not."""

    def __init__(self, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = _console(sys.stdout if out is None else out, PLAIN_WIDTH)
        self.err = _console(sys.stderr if err is None else err, _UNLIMITED_WIDTH)

    def say(self, text: str, *, style: str = "") -> None:
        """Print text, wrapped between words."""
        print_text(self.out, text, style)

    def say_whole(self, text: str, *, style: str = "") -> None:
        """Print text without wrapping it: a command to copy, or lines for another program."""
        for line in encodable(self.out, text).split("\n"):
            self.out.print(Text(line, style), soft_wrap=True)

    def say_parts(self, parts: Sequence[tuple[str, str]]) -> None:
        """Print texts with their styles as one running text, folded at the width of the output."""
        self.out.print(Text.assemble(*((encodable(self.out, text), style) for text, style in parts)))

    def progress(self, text: str) -> None:
        print_text(self.err, text, "dim")

    def warn(self, text: str) -> None:
        self._labelled(f"{CONSOLE_LABELS['warning']}  ", text, "bold yellow")

    def fail(self, error: LimbeckError) -> None:
        """Print an error in its three parts, with its code, to stderr."""
        self._labelled(f"{CONSOLE_LABELS['error']}  ", error.code, "bold red")
        width = max(len(CONSOLE_LABELS[part]) for part in ("given", "needed", "fix"))
        for part, text in (("given", error.given), ("needed", error.needed), ("fix", error.fix)):
            self._labelled(f"  {CONSOLE_LABELS[part]:<{width}}  ", text, "bold")

    def _labelled(self, label: str, text: str, style: str) -> None:
        """Print a label and the text next to it; further lines are indented by the width of the label."""
        for number, line in enumerate(_wrapped(self.err, text, self.err.width - len(label))):
            lead = label if number == 0 else " " * len(label)
            self.err.print(Text.assemble((lead, style), line), soft_wrap=True)

    def table(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Print rows as a table with the columns of the first row. Numbers are right-aligned; None is a dash.

        If the columns do not fit, each row is printed as a list, with one line for each of its values.
        """
        if not rows:
            return
        first, *others = rows[0]
        columns = _columns(rows, self.out)
        widths = _column_widths(columns, self.out.width - _GAP * len(others))
        if widths is None:
            for row in rows:
                self.say(_cell(row.get(first)), style="bold")
                for column in others:
                    self.say(f"  {column}: {_cell(row.get(column))}")
            return
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for (head, *_), width, column in zip(columns, widths, rows[0], strict=True):
            numeric = all(row.get(column) is None or is_number(row.get(column)) for row in rows)
            grid.add_column(Text(head), justify="right" if numeric else "left", overflow="fold", width=width)
        for cells in zip(*(column[1:] for column in columns), strict=True):
            grid.add_row(*map(Text, cells))
        self.out.print(grid)

    def rule(self, title: str = "") -> None:
        """Print a heading: the title, and a line up to the end of its row."""
        width = min(self.out.width, PLAIN_WIDTH)
        bar = "─" if self.out.encoding.startswith("utf") else "-"
        *lines, last = _wrapped(self.out, title, width - _GAP) or [""]
        for line in lines:
            self.out.print(Text(line), soft_wrap=True)
        lead = f"{last} " if last else ""
        self.out.print(Text.assemble(lead, (bar * max(0, width - cell_len(lead)), "dim")), soft_wrap=True)


def _console(stream: TextIO, plain_width: int) -> Console:
    """A console that is a terminal exactly when its stream is one, whatever the environment tries to force.

    `plain_width` is its width in columns if the stream is not a terminal.
    """
    terminal = is_interactive(stream)
    colour = "auto" if terminal and not os.environ.get("NO_COLOR") else None
    width = None if terminal else plain_width
    return Console(
        file=stream, force_terminal=terminal, force_jupyter=False, color_system=colour, width=width, markup=False
    )


def encodable(console: Console, text: str) -> str:
    """Safe text that the console's stream can encode; a character outside its encoding becomes an escape."""
    return safe(text).encode(console.encoding, "backslashreplace").decode(console.encoding)


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print safe text, wrapped between words at the width of the console."""
    for line in _wrapped(console, text, console.width):
        console.print(Text(line, style), soft_wrap=True)


def print_json(text: str) -> None:
    """Print JSON to stdout unchanged, for another program; in ASCII if stdout cannot encode one of its characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text)) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()


def _wrapped(console: Console, text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; a word longer than that (a path) is never cut.

    The continuation of a line is indented like its text, in a list item or a branch of a tree too.
    """
    width = max(width, _MIN_WIDTH)
    lines: list[str] = []
    for line in encodable(console, text).split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        lead = _LEAD.match(line)
        indent = " " * min(lead.end() if lead else 0, width - _MIN_WIDTH)
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return lines


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is an int or a float; True and False are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(rows: Sequence[Mapping[str, object]], console: Console) -> list[list[str]]:
    """The texts of each column, its head first."""
    return [[encodable(console, text) for text in (name, *(_cell(row.get(name)) for row in rows))] for name in rows[0]]


def _column_widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """The width of each column so that all of them take at most `room`; None if that is impossible.

    Heads break between words first, then cells are folded; the widest columns first.
    """
    room = max(room, 0)
    words = [max(map(cell_len, head.split()), default=0) for head, *_ in columns]
    cells = [max(map(_widest_line, cells)) for _, *cells in columns]
    whole_cells = [min(max(pair), room) for pair in zip(words, cells, strict=True)]
    folded_cells = [max(word, _least_width(column[1:])) for word, column in zip(words, columns, strict=True)]
    if sum(folded_cells) > room:
        return None
    widths = [min(max(map(_widest_line, column)), room) for column in columns]
    for least in (whole_cells, folded_cells):
        while sum(widths) > room and widths != least:
            widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
            widths[widest] -= 1
    return widths


def _least_width(cells: Sequence[str]) -> int:
    """The width down to which the cells of a column can be folded."""
    longest_word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    return max(min(max(map(_widest_line, cells)), _LEAST_COLUMN), min(longest_word, _LONGEST_WORD))


def _widest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if is_number(value) else str(value)
