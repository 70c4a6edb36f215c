"""`limbeck chat`: a conversation on a terminal, or one turn per line from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from io import TextIOWrapper

from limbeck.console import is_interactive, safe

__all__ = ["chat_loop"]


def chat_loop(reply: Callable[[str], Iterable[str]]) -> None:
    """Read turns until an empty line or the end of input, and print the pieces of each reply as they arrive."""
    interactive = is_interactive(sys.stdout) and sys.stdin.isatty()
    if isinstance(sys.stdin, TextIOWrapper):  # input is UTF-8 in every locale
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    while True:
        text = _next_turn(interactive)
        if not text:
            return
        for piece in reply(text):
            # a sequence that is split over two pieces is harmless: ESC itself is removed
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(safe(piece).encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()


def _next_turn(interactive: bool) -> str:
    if not interactive:
        return sys.stdin.readline().strip()
    try:
        return input("> ").strip()
    except EOFError:
        return ""
