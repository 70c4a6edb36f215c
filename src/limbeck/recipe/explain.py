"""The explanation of each setting, and the most similar setting to an unknown key."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from limbeck.recipe import messages
from limbeck.recipe.messages import BrokenRule
from limbeck.recipe.parts import Settings
from limbeck.recipe.recipe import Recipe
from limbeck.recipe.types import OBJECTIVES_OF

__all__ = ["Explanation", "explain", "field_of", "json_schema", "needs_of", "setting_names", "unknown_key"]

# The settings that have parts, each with the class of its parts.
_PARTS: dict[str, type[Settings]] = {
    name: kind
    for name, field in Recipe.model_fields.items()
    for kind in (field.annotation, *get_args(field.annotation))
    if isinstance(kind, type) and issubclass(kind, Settings)
}
# Keys of other tools, each refused with its own reason.
_CROSS_ENTROPY = "alpha lmbda lambda kd_alpha seq_kd sft_alpha ce_alpha ce_weight hard_label_weight nll_weight".split()
_EPOCHS = ("epochs", "num_epochs", "num_train_epochs")
_SECRETS = ("api_key", "apikey", "key", "secret", "password", "token", "openai_api_key")
_LORA_MODULES = ("target_modules", "modules_to_save", "lora_modules")


@dataclass(frozen=True)
class Explanation:
    """One setting: its meaning, who uses it, which values it takes, how to choose one, its default and the reason."""

    meaning: str
    routes: tuple[str, ...]
    objective: str | None
    needs: str
    how_to_choose: str
    default_and_why: str


def explain(name: str) -> Explanation:
    """The explanation of the setting with this dotted name.

    Raises:
        RecipeError: there is none; the message has the most similar name.
    """
    path = tuple(name.split("."))
    field = field_of(path)
    if field is None:
        broken = unknown_key(path)
        raise messages.setting_unknown(name=name[:100], reason=broken.needed, fix=broken.fix).with_code(broken.code)
    texts = re.split(r"\n(?:Choose|Why): ", str(field.description))
    meaning, how_to_choose, why = (" ".join(text.split()) for text in texts)
    if field.default_factory is None:  # the text of a computed default is in `why`
        default = "No default" if field.is_required() else "null" if field.default is None else field.default
        why = f"{default}: {why}"
    objective = " or ".join(OBJECTIVES_OF.get(name, ())) or None
    return Explanation(meaning, Recipe.routes_of(path[0]), objective, needs_of(path), how_to_choose, why)


@functools.cache
def setting_names() -> tuple[str, ...]:
    """The dotted names of all settings, in the order of a recipe."""
    names: list[str] = []
    for name in Recipe.model_fields:
        inner = _PARTS[name].model_fields if name in _PARTS else ()
        names += [name, *(f"{name}.{part}" for part in inner)]
    return tuple(names)


def field_of(path: tuple[str, ...]) -> FieldInfo | None:
    """The field at `path`, None if there is no such setting; an option of the chat template has the field around it."""
    if len(path) == 2 and path[0] in _PARTS:
        return _PARTS[path[0]].model_fields.get(path[1])
    if len(path) == 1 or (len(path) == 2 and path[0].endswith("_options")):
        return Recipe.model_fields.get(path[0])
    return None


def needs_of(path: tuple[str, ...]) -> str:
    """The values that the setting at `path` takes, in words."""
    field = field_of(path)
    assert field is not None
    words = [each for each in field.metadata if isinstance(each, str)]
    return words[0] if words else " or ".join(get_args(field.annotation))


def json_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors; each property carries its explanation."""
    schema = Recipe.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Limbeck recipe"}


def unknown_key(path: tuple[str, ...]) -> BrokenRule:
    """Why a key that is not a setting is refused, and what to use instead."""
    parts = [part.strip().replace("-", "_").replace(" ", "_").casefold() for part in path]
    ends = {parts[0], parts[-1]}
    if not ends.isdisjoint(_CROSS_ENTROPY):
        return messages.cross_entropy_weight()
    if not ends.isdisjoint(_EPOCHS):
        return messages.epochs_not_offered()
    if "qlora" in ends:
        return messages.quantisation_not_offered()
    if parts[-1] in _SECRETS:
        return messages.secret_in_recipe()
    if parts[-1] in _LORA_MODULES:
        return messages.lora_modules()
    nearest = _nearest(parts)
    if nearest is None:
        return messages.key_like_no_other()
    if len(parts) > 1 and "." not in nearest:
        return messages.key_unknown_inside(nearest=nearest)
    return messages.key_unknown(nearest=nearest)


def _nearest(parts: list[str]) -> str | None:
    """The setting most similar to a key, by its whole dotted name and by its last part."""
    known = {name.rsplit(".", 1)[-1]: name for name in reversed(setting_names())}
    known |= {name: name for name in setting_names()}
    spellings = (".".join(parts), parts[-1])
    near = [spelling for spelling in spellings if spelling in known]
    near += [close for spelling in spellings for close in difflib.get_close_matches(spelling, known, n=1)]
    return known[near[0]] if near else None
