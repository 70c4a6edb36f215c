"""Arguments and options that several commands have, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["Json", "MaxTokens", "Origin", "Overrides", "RecipeFile", "RunName", "Workspace"]

RecipeFile = Annotated[Path, Parameter(help="Recipe: the YAML file of the run.")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        help="Override a setting: key=value. Can be repeated. Takes precedence over the file and the environment.",
        negative=(),
        show_default=False,
    ),
]
Json = Annotated[
    bool, Parameter(name="--json", help="Print one JSON object per line.", negative=(), show_default=False)
]
Origin = Annotated[bool, Parameter(help="Show where each value comes from.", negative=(), show_default=False)]
RunName = Annotated[str, Parameter(help="Run: its name, or the path of its folder.")]
Workspace = Annotated[Path, Parameter(help="Folder that contains runs/.")]
MaxTokens = Annotated[int, Parameter(help="Maximum length of an answer, in tokens.")]
