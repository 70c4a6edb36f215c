"""How the documentation site is built: `make docs-site`. The pages themselves are plain Markdown."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "limbeck" / "__init__.py"
_VERSION = re.search(r'^__version__ = "(.+)"$', PACKAGE.read_text(encoding="utf-8"), re.MULTILINE)
assert _VERSION is not None

project = "Limbeck"
author = "The Limbeck authors"
project_copyright = "The Limbeck authors, Apache-2.0"
version = release = _VERSION[1]

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True
suppress_warnings: list[str] = []

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# The pages show YAML fragments, console sessions and model text, which no highlighter has to understand.
highlight_language = "text"

# Only the commands of a console block are copied, not its prompt or output.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"Limbeck {release}"
html_static_path = ["_static"]
html_css_files = ["limbeck.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
