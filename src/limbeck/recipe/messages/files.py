"""What is said about recipe files, their keys and their values."""

from __future__ import annotations

from pathlib import Path

from limbeck.errors import RecipeError, Text, error, note
from limbeck.recipe.messages.rules import RuleText, rule

__all__: list[str] = []

_LIST = "`limbeck recipe explain` lists all settings."
_YAML = "A recipe is a YAML file in UTF-8 with lines of the form key: value."


@rule("recipe.key-missing.required")
def setting_missing(*, key: str, needs: str) -> RuleText:
    return RuleText(needed="It requires {needs}.", fix="Add {key}.")


@note("recipe.missing")
def missing(*, key: str) -> str:
    return "{key} is missing."


@rule("recipe.value.invalid")
def value_invalid(*, key: str, needs: str) -> RuleText:
    return RuleText(needed="It requires {needs}.", fix="Run `limbeck recipe explain {key}` for details.")


@rule("recipe.value.switch-word")
def value_is_switch_word() -> RuleText:
    return RuleText(needed="YAML 1.2 reads this value as text.", fix="Use true or false, or quote the text.")


@rule("recipe.not-offered.epochs")
def epochs_not_offered() -> RuleText:
    return RuleText(needed="The length of a run is given in steps, not in epochs.", fix="Remove it and set steps.")


@rule("recipe.not-offered.quantised")
def quantisation_not_offered() -> RuleText:
    return RuleText(
        needed="This version does not train on quantised weights.",
        fix="Remove it. To train adapters on full-precision weights, set lora: {{}}.",
    )


@rule("recipe.key-in-recipe")
def secret_in_recipe() -> RuleText:
    return RuleText(
        needed="Recipes are copied into run folders and logs. API keys are read from environment variables and sent "
        "to approved endpoints only.",
        fix="Remove it and revoke this key, since it may have been copied.",
    )


@rule("recipe.lora-modules")
def lora_modules() -> RuleText:
    return RuleText(
        needed="LoRA trains all linear layers of the body. Embedding and output head are never adapted: the objective "
        "uses the head's own weights, and where both share one matrix a merge would change it only for one of them.",
        fix=f"Remove it. {_LIST}",
    )


@rule("recipe.key-unknown.nearest")
def key_unknown(*, nearest: str) -> RuleText:
    return RuleText(needed="There is no such setting.", fix="Did you mean {nearest}?")


@rule("recipe.key-unknown.top-level")
def key_unknown_inside(*, nearest: str) -> RuleText:
    return RuleText(needed="There is no such setting in this section.", fix="Did you mean {nearest} at the top level?")


@rule("recipe.key-unknown.other")
def key_like_no_other() -> RuleText:
    return RuleText(needed="There is no setting of this name or of a similar one.", fix=f"Remove it. {_LIST}")


@rule("recipe.key-duplicate")
def key_duplicate(*, first: str) -> RuleText:
    return RuleText(
        needed="It is set twice (first: {first}), and programs differ in which of the two they use.",
        fix="Remove one of the two.",
    )


@error(RecipeError, "recipe.explained")
def setting_unknown(*, name: str, reason: str, fix: str) -> Text:
    return Text(given="The setting {name!r} was requested.", needed="{reason}", fix="{fix}")


@error(RecipeError, "recipe.problems")
def several_problems(*, file: str, num: int, listing: str) -> Text:
    return Text(
        given="{file} has {num:problem|problems}.\n{listing}",
        needed="Every key must be a setting with a valid value. Nothing is ignored or guessed.",
        fix=f"Fix them and run the command again. {_LIST}",
    )


@error(RecipeError, "recipe.not-found.nearest")
def file_not_found(*, path: Path, nearest: Path) -> Text:
    return Text(given="{path} does not exist.", needed="A recipe file is required.", fix="Did you mean {nearest}?")


@error(RecipeError, "recipe.not-found.other")
def no_file_found(*, path: Path) -> Text:
    return Text(
        given="{path} does not exist.", needed="A recipe file is required.", fix="Specify the path of a recipe."
    )


@error(RecipeError, "recipe.unreadable.line")
def line_not_yaml(*, file: str, line: int, reason: str) -> Text:
    return Text(given="{file} line {line} is not valid YAML: {reason}.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.unreadable.yaml")
def file_not_yaml(*, file: str, reason: str) -> Text:
    return Text(given="{file} is not valid YAML: {reason}.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.unreadable.file")
def file_unreadable(*, path: Path, reason: str) -> Text:
    return Text(given="{path} cannot be read: {reason}.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.unreadable.top")
def file_without_settings(*, file: str) -> Text:
    return Text(given="{file} has no settings at its top level.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.override-form")
def override_without_value(*, text: str) -> Text:
    return Text(
        given="--set {text!r} has no key or no value.",
        needed="An override is a setting with its value.",
        fix="Use --set key=value.",
    )
