"""The real pair of models, for every slow test that needs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "scripts"))

import real_models


@pytest.fixture(scope="session")
def cache():
    """The folder that `make models` fills."""
    folder = real_models.default_cache()
    for name in ("student", "teacher"):
        if not (folder / name).is_dir():
            pytest.fail(f"{folder} holds no models: run `make models` first")
    return folder
