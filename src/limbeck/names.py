"""The one allow-list for names of runs, data sets and files, and the one rule that keeps a path inside the workspace.

A name is what a person or a web request may choose; it becomes one folder or file name on any system. A path from
outside goes through `inside` before it is opened.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Collection
from pathlib import Path

from limbeck.errors import UsageError

__all__ = ["check_name", "inside", "is_name", "new_run_name"]

MAX_NAME_LENGTH = 100
_ALLOWED = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
# Windows opens a device for these, whatever their extension and case.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})

_ADJECTIVES = """
    amber ample bold brave brief bright calm candid clear clever cosy crisp deft eager early easy even fair fine
    fleet fond frank fresh gentle glad grand green happy hardy honest humble jolly keen kind light lively loyal
    lucid mellow merry mild modest neat nimble noble patient plain polite proud quick quiet rapid ready sage
    silent silver smooth sober solid steady still sturdy subtle sunny swift tidy vivid warm wise witty
"""
_ANIMALS = """
    badger beaver bison bream crane curlew deer dipper dove dunlin egret falcon ferret finch gannet goose grebe
    hare heron ibis jackdaw kestrel lapwing lark linnet lynx marten merlin mole moth newt ocelot oriole osprey
    otter owl petrel pike plover puffin quail raven robin rook salmon seal shrew siskin snipe sparrow stoat stork
    swan swift tapir teal tench tern toad trout vole weasel wigeon wren
"""
_NUM_DRAWS = 1000


def is_name(text: str) -> bool:
    """Whether `text` may name a run, a data set or a file.

    Letters, digits, dot, underscore and hyphen of ASCII, at most 100; no dot or hyphen first (hidden files, options of
    a command), no dot last (Windows drops it), no device name of Windows.
    """
    return (
        _ALLOWED.fullmatch(text) is not None
        and text[0] not in ".-"
        and text[-1] != "."
        and text.split(".", 1)[0].casefold() not in _DEVICES
    )


def check_name(text: str, *, what: str = "run") -> str:
    """Give `text` back if it may name a `what`; otherwise raise UsageError `names.not-allowed`."""
    if is_name(text):
        return text
    shown = ascii(text if len(text) <= MAX_NAME_LENGTH else text[:MAX_NAME_LENGTH] + "...")
    raise UsageError(
        "names.not-allowed",
        given=f"{shown} is given as the name of a {what}.",
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


def new_run_name(existing: Collection[str], rng: random.Random | None = None) -> str:
    """A name like calm-otter-17 that is not in `existing` (compared without case, as some file systems do).

    `rng` is only for tests: the seed of a run must not choose its name, or two runs of one seed would get the same.
    """
    draw = rng if rng is not None else random.SystemRandom()
    taken = {name.casefold() for name in existing}
    for _ in range(_NUM_DRAWS):
        adjective, animal = draw.choice(_ADJECTIVES.split()), draw.choice(_ANIMALS.split())
        name = f"{adjective}-{animal}-{draw.randrange(10, 100)}"
        if name not in taken:
            return name
    raise UsageError(
        "names.exhausted",
        given=f"{len(taken)} runs exist, and {_NUM_DRAWS} drawn names were all taken.",
        needed="Every run has a name of its own.",
        fix="Name the run yourself, for example --set name=support-2.",
    )
