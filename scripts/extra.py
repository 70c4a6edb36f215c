"""Print the requirements of one of the package's extras, a line each: `python scripts/extra.py docs`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def requirements(extra: str) -> list[str]:
    """What the extra asks for, as pyproject.toml has it."""
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if extra not in extras:
        raise SystemExit(f"{extra} is no extra of this package; there are {', '.join(extras)}.")
    return list(extras[extra])


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
