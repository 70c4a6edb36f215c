"""The one allow-list for names of runs and files, and the one rule that keeps a path inside the workspace."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Collection
from pathlib import Path

from limbeck.errors import UsageError

__all__ = ["check_name", "inside", "is_name", "new_run_name"]

# No dot or hyphen first (hidden files, options of a command), no dot last (Windows drops it), no device of Windows.
_NAME = re.compile(
    r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[a-z0-9_]([a-z0-9._-]{0,98}[a-z0-9_-])?", re.IGNORECASE | re.ASCII
)
_ADJECTIVES = """
    amber brave brief bright calm candid clear clever cosy deft eager fair fleet fond fresh gentle glad grand happy
    honest jolly keen kind lively loyal lucid mellow mild neat nimble noble patient proud quick quiet ready silent
    smooth solid steady sunny swift tidy vivid warm wise witty
""".split()
_ANIMALS = """
    badger beaver bison crane curlew deer dove falcon ferret finch gannet goose hare heron ibis jackdaw kestrel lark
    lynx marten mole moth newt ocelot oriole osprey otter owl plover puffin quail raven robin salmon seal shrew
    sparrow stoat stork swan tapir teal tern trout vole weasel wren
""".split()


def is_name(text: str) -> bool:
    """Whether `text` may name a run, a data set or a file."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, *, what: str = "run") -> str:
    """Give `text` back if it may name a `what`; otherwise raise UsageError `names.not-allowed`."""
    if is_name(text):
        return text
    raise UsageError(
        "names.not-allowed",
        given=f"{text[:120]!a} is given as the name of {'an' if what[0] in 'aeiou' else 'a'} {what}.",
        needed="A name becomes a file name on every system, so it has 1 to 100 of the characters A-Z a-z 0-9 . _ - "
        "and neither starts with a dot or a hyphen, nor ends with a dot, nor is a device of Windows (con, nul, com1).",
        fix="Choose another name, for example support-2.",
    )


def inside(workspace: Path, path: Path | str) -> Path:
    """The real place of `path` (relative to `workspace`, or absolute), which must lie in `workspace`.

    Symbolic links are followed before the question is asked, so a link that leads out is refused. The answer holds at
    this moment: who may write in the workspace can change a link later. Raises UsageError `names.outside`.
    """
    text = str(path)
    root = os.path.realpath(workspace)
    # A backslash or a control character is no part of a name anywhere in Limbeck, and means a folder on Windows.
    strange = "\\" in text or any(ord(character) < 32 or ord(character) == 127 for character in text)
    if not strange:
        real = os.path.realpath(os.path.join(root, text))  # noqa: PTH118 (an absolute path must replace the root)
        if os.path.commonpath([root, real]) == root:
            return Path(real)
    raise UsageError(
        "names.outside",
        given=f"The path {text[:200]!a} leads out of the workspace {root}.",
        needed="Runs and their files stay inside the workspace, so that nobody else's text can choose a file to open.",
        fix="Use a path below the workspace, or start Limbeck with the workspace that holds the file.",
    )


def new_run_name(existing: Collection[str]) -> str:
    """A name like calm-otter-17 that is not in `existing` (compared without case, as some file systems do).

    Drawn by the system and not by the seed of a run, or two runs of one seed would get the same name.
    """
    draw = random.SystemRandom()
    taken = {name.casefold() for name in existing}
    while True:
        name = f"{draw.choice(_ADJECTIVES)}-{draw.choice(_ANIMALS)}-{draw.randrange(10, 100)}"
        if name not in taken:
            return name
