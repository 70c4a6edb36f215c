"""Private names of dependencies, each behind one function, with the versions in which it was seen to work.

A name that a newer version renamed raises `Renamed` here, so that it is reported by name and never guessed around.
"""

from __future__ import annotations

__all__ = ["Renamed"]


class Renamed(Exception):
    """An installed library has no attribute of a name that Limbeck knew; `str` says which."""
