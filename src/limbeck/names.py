"""The allow-list for names of runs and files, and the check that a path is inside the workspace."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Collection
from pathlib import Path

from limbeck.errors import Text, UsageError, error

__all__ = ["check_name", "inside", "is_name", "new_run_name"]

# No leading dot or hyphen (hidden files, command-line options), no trailing dot (Windows drops it), no Windows device.
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


# Messages are here and not in `messages`, because every module with a name to check imports this one.


@error(UsageError, "names.not-allowed")
def _not_allowed(*, name: str, what: str) -> Text:
    return Text(
        given="The {what} name {name} is not valid.",
        needed="A name becomes a file name on every system: 1 to 100 of the characters A-Z a-z 0-9 . _ - without a dot "
        "or hyphen at the start, a dot at the end, or the name of a Windows device (con, nul, com1).",
        fix="Choose another name, for example support-2.",
    )


@error(UsageError, "names.outside")
def _outside(*, path: str, workspace: str) -> Text:
    return Text(
        given="The path {path} is outside the workspace {workspace}.",
        needed="Runs and their files must be inside the workspace, so that no recipe can open other files.",
        fix="Use a path inside the workspace, or set the workspace to the folder that contains the file.",
    )


def is_name(text: str) -> bool:
    """Whether `text` can be the name of a run, a data set or a file."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, *, what: str = "run") -> str:
    """Return `text` if it can be the name of a `what`; otherwise raise UsageError `names.not-allowed`."""
    if is_name(text):
        return text
    raise _not_allowed(name=ascii(text[:120]), what=what)


def inside(workspace: Path, path: Path | str) -> Path:
    """The real path of `path` (relative to `workspace`, or absolute), which must be inside `workspace`.

    Symbolic links are resolved first, so a link that leads outside is refused. This holds at the time of the call:
    anyone who can write in the workspace can change a link later. Raises UsageError `names.outside`.
    """
    text = str(path)
    root = os.path.realpath(workspace)
    # Names in Limbeck contain no backslash, which separates folders on Windows, and no control character.
    strange = "\\" in text or any(ord(character) < 32 or ord(character) == 127 for character in text)
    if not strange:
        real = os.path.realpath(os.path.join(root, text))  # noqa: PTH118 (an absolute path must replace the root)
        if os.path.commonpath([root, real]) == root:
            return Path(real)
    raise _outside(path=ascii(text[:200]), workspace=root)


def new_run_name(existing: Collection[str]) -> str:
    """A name like calm-otter-17 that is not in `existing`; case is ignored, as some file systems ignore it.

    It is random and does not follow from a run's seed, or two runs of the same seed would get the same name.
    """
    draw = random.SystemRandom()
    taken = {name.casefold() for name in existing}
    while True:
        name = f"{draw.choice(_ADJECTIVES)}-{draw.choice(_ANIMALS)}-{draw.randrange(10, 100)}"
        if name not in taken:
            return name
