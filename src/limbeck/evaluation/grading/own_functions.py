"""Graders that were given as functions, with names that a recipe can store: in_memory:NAME."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

__all__ = ["MODULE", "function_named", "held_functions", "name_of"]

MODULE = "in_memory"

Grader = Callable[..., Any]

_HELD: ContextVar[Mapping[str, Grader]] = ContextVar("_HELD", default=MappingProxyType({}))


def name_of(function: Grader) -> str:
    """module:function if every process can import it from there, else in_memory:NAME."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", type(function).__name__)
    if module and module != "__main__" and name.isidentifier():
        try:
            if getattr(importlib.import_module(module), name) is function:
                return f"{module}:{name}"
        except (ImportError, AttributeError):
            pass
    plain = "".join(character if character.isidentifier() or character.isdecimal() else "_" for character in name)
    return f"{MODULE}:{plain.strip('_') or 'grader'}"


@contextmanager
def held_functions(functions: Mapping[str, Grader]) -> Generator[None]:
    """Makes these functions available by their names within the block."""
    before = _HELD.set({**_HELD.get(), **functions})
    try:
        yield
    finally:
        _HELD.reset(before)


def function_named(name: str) -> Grader | None:
    """The available function of this name, or None."""
    return _HELD.get().get(name)
