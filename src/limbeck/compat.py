"""Private names of dependencies, each behind one function, with the versions in which it was seen to work.

A name that a newer version renamed raises `Renamed` here, so that it is reported by name and never guessed around.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Renamed", "choose_attention", "gradient_hooks", "keeps_validation_plain", "put_gradient_hooks"]


class Renamed(Exception):
    """An installed library has no attribute of a name that Limbeck knew; `str` says which."""


def keeps_validation_plain(initialise: Callable[..., None]) -> Callable[..., None]:
    """Marks an `__init__` that pydantic's `model_validate` need not call, as its own is marked (pydantic 2.11 to 2.14).

    Without the mark an error that it raises would be wrapped a second time.
    """
    vars(initialise)["__pydantic_base_init__"] = True
    return initialise


def gradient_hooks(weight: Any) -> Any:
    """What is called when the gradient of a parameter is finished; None where nothing is (torch 2.8 to 2.13)."""
    return weight._post_accumulate_grad_hooks


def put_gradient_hooks(weight: Any, hooks: Any) -> None:
    """Puts back what `gradient_hooks` gave."""
    weight._post_accumulate_grad_hooks = hooks


def choose_attention(module: Any) -> None:
    """Sets the attention that transformers chooses for a model that it loads (transformers 5.24)."""
    module.set_attn_implementation("sdpa" if module._supports_sdpa else "eager")
