"""The printer: nothing that a model writes reaches a terminal as a command, and results stay apart from progress."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import threading
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from limbeck.console import Printer, safe
from limbeck.errors import RecipeError

HOSTILE = {
    "OSC 0 title, BEL": ("a\x1b]0;owned\x07b", "ab"),
    "OSC 2 title, ST": ("a\x1b]2;owned\x1b\\b", "ab"),
    "OSC 52 clipboard": ("a\x1b]52;c;cm0gLXJmIH4=\x07b", "ab"),
    "OSC 8 link": ("\x1b]8;;https://evil.test\x1b\\good.test\x1b]8;;\x1b\\", "good.test"),
    "OSC 8 link, C1": ("\x9d8;;https://evil.test\x9cgood.test\x9d8;;\x9c", "good.test"),
    "OSC without an end": ("a\x1b]0;never ends", "a0;never ends"),
    "CSI colour": ("a\x1b[31mred\x1b[0m", "ared"),
    "CSI clear and home": ("\x1b[2J\x1b[Ha", "a"),
    "CSI, C1": ("a\x9b31mred", "ared"),
    "CSI report, 8-bit parameters": ("\x1b[?1049h\x1b[>4;2m\x1b[6na", "a"),
    "CSI cut short": ("a\x1b[31", "a31"),
    "DCS": ("a\x1bPq#0;2;0;0;0\x1b\\b", "ab"),
    "APC": ("a\x1b_Gf=24;AAAA\x1b\\b", "ab"),
    "PM and SOS": ("a\x1b^x\x1b\\\x1bXy\x1b\\b", "ab"),
    "reset": ("a\x1bcb", "ab"),
    "charset": ("a\x1b(0b", "ab"),
    "two halves meet": ("a\x1b\x1b[31m[31mb\x1b", "a[31mb"),
    "nested": ("\x1b]0;\x1b]52;c;x\x07y\x07z", "0;yz"),
    "backspaces": ("safe\x08\x08\x08\x08evil", "safeevil"),
    "carriage return": ("safe\revil\r\nnext", "safeevil\nnext"),
    "bell, form feed, NUL, DEL": ("a\x07\x0c\x0b\0\x7fb", "ab"),
    "shift out": ("a\x0e\x0fb", "ab"),
    "every other C1": ("a\x85\x84\x8d\x8e\x8f\x9ab", "ab"),
    "right-to-left override": ("user\u202etxt.exe", "user\\u202etxt.exe"),
    "isolates": ("\u2066a\u2069\u2067\u2068", "\\u2066a\\u2069\\u2067\\u2068"),
    "marks": ("a\u200eb\u200fc\u061c", "a\\u200eb\\u200fc\\u061c"),
    "zero-width": ("a\u200bb\u2060c\ufeffd\u200de", "a\\u200bb\\u2060c\\ufeffd\\u200de"),
    "tags": ("a\U000e0041\U000e007fb", "a\\U000e0041\\U000e007fb"),
    "line separator": ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
    "soft hyphen and fillers": ("a\u00ad\u3164\u115f\uffa0b", "a\\u00ad\\u3164\\u115f\\uffa0b"),
    "hidden in selectors": ("a\ufe01\U000e0101\ufe0fb", "a\\ufe01\\U000e0101\\ufe0fb"),
    "lone surrogate": ("a\ud83db", "a\\ud83db"),
}  # fmt: skip
HARMLESS = [
    "tab\tand\nnewline", "Grüße, 你好, ¿qué?", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "क्\u200dष",
    "\U0001f469\u200d\U0001f4bb", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f3\ufe0f\u200d\U0001f308", "[bold]x[/bold]",
    "e\u0301", "∑ ‖ →", "\u0600\u0661",
]  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_controls_are_dropped_and_invisible_characters_shown(case: str) -> None:
    text, expected = HOSTILE[case]
    assert safe(text) == expected


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_of_many_scripts_is_untouched(text: str) -> None:
    assert safe(text) == text


@settings(deadline=None)
@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x9d\x07\\[];0m\u202e\u200d\ufe0f"))))
def test_nothing_unseen_is_left_and_cleaning_twice_changes_nothing(text: str) -> None:
    cleaned = safe(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", cleaned)
    assert safe(cleaned) == cleaned
    cleaned.encode()


def test_every_format_character_of_unicode_is_escaped_or_is_visible_by_itself() -> None:
    # These have a glyph of their own although Unicode calls them format characters: signs before numbers.
    visible = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp", "Cs") and code not in visible | {9, 10}:
            assert chr(code) not in safe(f"a{chr(code)}b"), f"U+{code:04X}"


def test_long_hostile_text_takes_time_in_proportion() -> None:
    for piece in ("\x1b]", "\x1b[0", "\x1bP", "\u202e", "\x9d", "\u200d"):
        assert "\x1b" not in safe(piece * 200_000)


class Terminal:
    """A pseudo-terminal: `stream` is written to, `read` gives all that a terminal would have received."""

    def __init__(self, columns: int = 80, encoding: str = "utf-8") -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream = open(slave, "w", encoding=encoding)  # noqa: SIM115, PTH123 (closed in `read`)
        self._received = bytearray()
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def _drain(self) -> None:
        while True:
            try:
                received = os.read(self._master, 65536)
            except OSError:  # what Linux answers when the other end is closed
                return
            self._received += received

    def read(self) -> str:
        self.stream.close()
        self._reader.join(timeout=10)
        os.close(self._master)
        return self._received.decode(errors="replace")


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def error_with(text: str) -> RecipeError:
    return RecipeError("recipe.key-unknown", given=f"given {text}", needed=f"needed {text}", fix=f"do {text}")


def speak(printer: Printer, text: str) -> None:
    printer.say(text)
    printer.progress(text)
    printer.warn(text)
    printer.fail(error_with(text))
    printer.table([{"name": text, text or "empty": 1}])
    printer.rule(text.replace("\n", " "))


OWN_STYLES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("case", HOSTILE)
def test_no_hostile_sequence_reaches_a_terminal(case: str) -> None:
    terminal = Terminal()
    printer = Printer(out=terminal.stream, err=terminal.stream)
    speak(printer, HOSTILE[case][0])
    received = OWN_STYLES.sub("", terminal.read())
    assert "\x1b" not in received
    assert "31m" not in received or "31m" in HOSTILE[case][1]
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", received)


@pytest.mark.usefixtures("plain_environment")
def test_a_terminal_gets_colour_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    Printer(out=terminal.stream, err=terminal.stream).fail(error_with("x"))
    assert "\x1b[1;31mError" in terminal.read()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    speak(Printer(out=terminal.stream, err=terminal.stream), "x")
    assert "\x1b" not in terminal.read()


@pytest.mark.usefixtures("plain_environment")
def test_a_pipe_gets_no_control_sequences_even_when_colour_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    out, err = io.StringIO(), io.StringIO()
    speak(Printer(out=out, err=err), "x")
    assert "\x1b" not in out.getvalue() + err.getvalue()


def test_markup_and_emoji_names_are_plain_text() -> None:
    out, err = io.StringIO(), io.StringIO()
    text = "[red]x[/red] [/] :smile: [link=https://evil.test]y[/link]"
    speak(Printer(out=out, err=err), text)
    for piece in text.split():  # say, a cell, its head and the rule
        assert out.getvalue().count(piece) == 4
    assert err.getvalue().count(text) == 5  # progress, warning and three parts of an error


def test_results_go_to_stdout_and_the_rest_to_stderr() -> None:
    script = (
        "from limbeck.console import Printer; from limbeck.errors import DataError; p = Printer()\n"
        "p.say('a result'); p.progress('at work'); p.warn('take care'); p.table([{'n': 1}])\n"
        "p.fail(DataError('data.x', given='G', needed='N', fix='F'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "a result\nn\n─\n1\n"
    assert done.stderr == "at work\nWarning  take care\nError  data.x\n  given   G\n  needed  N\n  fix     F\n"


@pytest.mark.usefixtures("plain_environment")
def test_errors_hang_under_their_labels_at_80_columns_and_paths_stay_whole() -> None:
    terminal = Terminal()
    path = "/data/" + "deep/" * 20 + "tickets.jsonl"
    Printer(out=terminal.stream, err=terminal.stream).fail(error_with(f"two\n  lines of {'words ' * 30}\n{path}"))
    lines = OWN_STYLES.sub("", terminal.read()).splitlines()
    assert lines[0] == "Error  recipe.key-unknown"
    assert lines[1] == "  given   given two"
    assert lines[2].startswith("            lines of words")
    assert lines[3].startswith("            words")
    assert [line.strip() for line in lines if "/data/" in line] == [path] * 3
    assert all(cell_len(line) <= 80 for line in lines if "/data/" not in line)


@pytest.mark.usefixtures("plain_environment")
def test_tables_fit_a_terminal_and_a_pipe_and_hide_nothing() -> None:
    rows: list[dict[str, object]] = [
        {"run": "calm-otter-17", "step": 200, "loss": 0.123456, "note": "x" * 90},
        {"run": "warm-newt-11", "step": None, "loss": float("nan"), "note": None},
    ]
    terminal = Terminal()
    Printer(out=terminal.stream, err=terminal.stream).table(rows)
    assert all(cell_len(line) <= 80 for line in OWN_STYLES.sub("", terminal.read()).splitlines())
    out = io.StringIO()
    Printer(out=out, err=out).table(rows)
    lines = out.getvalue().splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    assert lines[2].split()[:3] == ["calm-otter-17", "200", "0.1235"]
    assert "".join(lines).count("x") == 90
    assert lines[-1].split() == ["warm-newt-11", "-", "nan", "-"]
    assert lines[0].index("step") + len("step") == lines[2].index("200") + len("200"), "numbers stand right"
    Printer(out=out, err=out).table([])


def test_a_stream_that_cannot_encode_gets_escapes_and_no_crash() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    printer = Printer(out=stream, err=stream)
    speak(printer, "Grüße ‖ \U0001f600")
    stream.flush()
    assert b"Gr\\xfc\\xdfe \\u2016 \\U0001f600" in raw.getvalue()


def test_results_wrap_at_80_columns_in_a_pipe_and_what_is_for_programs_or_logs_stays_whole() -> None:
    out, err = io.StringIO(), io.StringIO()
    printer = Printer(out=out, err=err)
    text = "word " * 100 + "end"
    printer.say("- " + text)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("  word") for line in lines[1:]), "a list hangs under its dash"
    assert " ".join(line.strip() for line in lines) == "- " + text
    printer.say_whole(text)
    assert out.getvalue().splitlines()[-1] == text
    printer.warn(text)
    printer.fail(error_with(text))
    assert err.getvalue().splitlines()[0] == f"Warning  {text}"
    assert f"  given   given {text}\n" in err.getvalue()


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_heading_is_wrapped_and_not_shortened(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal(columns)
    title = "Held-out divergence in nats per token, with 95% intervals, " * 2 + "end"
    Printer(out=terminal.stream, err=terminal.stream).rule(title)
    lines = OWN_STYLES.sub("", terminal.read()).splitlines()
    assert " ".join(line.rstrip("─").strip() for line in lines) == title
    assert max(map(cell_len, lines)) == columns
    assert lines[-1].endswith("─")


def test_heads_break_between_words_and_integers_have_thousands_separators() -> None:
    out = io.StringIO()
    row: dict[str, object] = {
        "": "student", "95th percentile seconds": "1.5", "cost of 1,000 answers": "1,234.50 EUR", "note": "y" * 200,
        "tokens": 1234567,
    }  # fmt: skip
    Printer(out=out, err=out).table([row])
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "1,234,567" in out.getvalue()
    assert {"percentile", "seconds", "answers"} <= set(" ".join(lines[:4]).split())


@pytest.mark.usefixtures("plain_environment")
@pytest.mark.parametrize(
    "speaks", [lambda p: p.say(""), lambda p: p.say("\n\n"), lambda p: p.warn(""), lambda p: p.rule()]
)
def test_empty_text_is_no_problem(speaks: Callable[[Printer], None]) -> None:
    terminal = Terminal()
    speaks(Printer(out=terminal.stream, err=terminal.stream))
    assert "\n" in terminal.read()


@pytest.mark.usefixtures("plain_environment")
def test_the_narrowest_window_gets_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "5")
    terminal = Terminal()
    Printer(out=terminal.stream, err=terminal.stream).fail(error_with("x"))
    assert "given x" in terminal.read()


@pytest.mark.usefixtures("plain_environment")
def test_a_table_in_a_narrow_window_is_a_list_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"": f"model-{number}", "score, %": "47 (40 to 54)", "answered": "200/200", "failed": 3, "p90": None}
        for number in (1, 2)
    ]
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    Printer(out=terminal.stream, err=terminal.stream).table(rows)
    lines = OWN_STYLES.sub("", terminal.read()).splitlines()
    told = ["model-1", "score, %: 47 (40 to 54)", "answered: 200/200", "failed: 3", "p90: -"]
    assert [line.strip() for line in lines] == [*told, "model-2", *told[1:]]
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    Printer(out=terminal.stream, err=terminal.stream).table(rows)
    assert len(terminal.read().splitlines()) == 4
