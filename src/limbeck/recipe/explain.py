"""What a setting means, and what somebody probably meant by a key that is none."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from limbeck.errors import RecipeError
from limbeck.recipe.parts import Settings
from limbeck.recipe.recipe import Recipe
from limbeck.recipe.rules import NO_CROSS_ENTROPY, OBJECTIVES_OF

__all__ = ["Explanation", "explain", "field_of", "json_schema", "needs_of", "setting_names", "unknown_key"]

# The settings that have parts, each with the class of its parts.
_PARTS: dict[str, type[Settings]] = {
    name: kind
    for name, field in Recipe.model_fields.items()
    for kind in (field.annotation, *get_args(field.annotation))
    if isinstance(kind, type) and issubclass(kind, Settings)
}
_REMOVE = "Remove it; `limbeck recipe explain` lists the settings."
# Keys that other tools have, and that are refused here with a reason of their own.
_CROSS_ENTROPY = "alpha lmbda lambda kd_alpha seq_kd sft_alpha ce_alpha ce_weight hard_label_weight nll_weight".split()
_NOT_OFFERED = ("epochs", "num_epochs", "num_train_epochs", "qlora")
_SECRETS = ("api_key", "apikey", "key", "secret", "password", "token", "openai_api_key")
_LORA_MODULES = ("target_modules", "modules_to_save", "lora_modules")


@dataclass(frozen=True)
class Explanation:
    """One setting: its meaning, who uses it, which values it takes, how to choose, its default and why that."""

    meaning: str
    routes: tuple[str, ...]
    objective: str | None
    needs: str
    how_to_choose: str
    default_and_why: str


def explain(name: str) -> Explanation:
    """What the setting with this dotted name means. Raises RecipeError with the nearest name if there is none."""
    path = tuple(name.split("."))
    field = field_of(path)
    if field is None:
        code, needed, fix = unknown_key(path)
        raise RecipeError(code, given=f"{name[:100]!r} is asked for.", needed=needed, fix=fix)
    texts = re.split(r"\n(?:Choose|Why): ", str(field.description))
    meaning, how_to_choose, why = (" ".join(text.split()) for text in texts)
    if field.default_factory is None:  # a default that is computed says itself in `why`
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
    """Which values the setting at `path` takes, in words."""
    field = field_of(path)
    assert field is not None
    words = [each for each in field.metadata if isinstance(each, str)]
    return words[0] if words else " or ".join(get_args(field.annotation))


def json_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors; each property carries its explanation."""
    schema = Recipe.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Limbeck recipe"}


def unknown_key(path: tuple[str, ...]) -> tuple[str, str, str]:
    """What to say of a key that is no setting: a code, why it is refused, and what to do."""
    parts = [part.strip().replace("-", "_").replace(" ", "_").casefold() for part in path]
    if not {parts[0], parts[-1]}.isdisjoint(_CROSS_ENTROPY):
        fix = "Remove it; own_answers has a weight for answers that people wrote."
        return "recipe.cross-entropy", NO_CROSS_ENTROPY, fix
    if not {parts[0], parts[-1]}.isdisjoint(_NOT_OFFERED):
        return "recipe.not-offered", "This version counts steps, not epochs, and quantises nothing.", _REMOVE
    if parts[-1] in _SECRETS:
        why = "A recipe lies in files and logs. A key comes from the environment and goes to approved addresses alone."
        return "recipe.key-in-recipe", why, "Remove it; see docs/how-to/hosted-teacher.md, and call this key back."
    if parts[-1] in _LORA_MODULES:
        why = "LoRA trains all linear layers of the body. Embedding and output head stay as they are: the objective "
        why += "reads the head as it is, and a table that both share would be torn in two by a merge."
        return "recipe.lora-modules", why, _REMOVE
    meant = _nearest(parts)
    if meant is None:
        return "recipe.key-unknown", "No such setting exists, nor one with a similar name.", _REMOVE
    where = " at the top level" if len(parts) > 1 and "." not in meant else ""
    return "recipe.key-unknown", "No such setting exists here.", f"Did you mean {meant}{where}?"


def _nearest(parts: list[str]) -> str | None:
    """The setting most like a key, by its whole dotted name and by its last part."""
    known = {name.rsplit(".", 1)[-1]: name for name in reversed(setting_names())}
    known |= {name: name for name in setting_names()}
    spellings = (".".join(parts), parts[-1])
    near = [spelling for spelling in spellings if spelling in known]
    near += [close for spelling in spellings for close in difflib.get_close_matches(spelling, known, n=1)]
    return known[near[0]] if near else None
