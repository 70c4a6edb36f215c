"""`limbeck chat`: a conversation on a terminal, or one turn per line from a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

from limbeck.chat import Conversation
from limbeck.console import is_interactive, safe
from limbeck.rollouts.sampling import Sampling

__all__ = ["talk"]


def talk(
    model: str,
    *,
    workspace: Path,
    system: str | None,
    temperature: float,
    max_tokens: int,
    seed: int,
) -> None:
    """Read turns until an empty line or the end of input; answers go to stdout as they are written."""
    conversation = Conversation(
        model,
        workspace=workspace,
        system=system,
        sampling=Sampling(temperature=temperature),
        max_tokens=max_tokens,
        seed=seed,
    )
    interactive = is_interactive(sys.stdout) and sys.stdin.isatty()
    while True:
        text = _next_turn(interactive)
        if not text:
            return
        for piece in conversation.reply(text):
            # a control sequence cannot be split over two pieces: ESC itself is removed
            sys.stdout.write(safe(piece))
            sys.stdout.flush()
        sys.stdout.write("\n")


def _next_turn(interactive: bool) -> str:
    if not interactive:
        return sys.stdin.readline().strip()
    try:
        return input("> ").strip()
    except EOFError:
        return ""
