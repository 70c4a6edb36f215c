"""The demo: a tiny pair of models that ships with the package (`FOLDER / "student"`, `FOLDER / "teacher"`)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent
"""The folder of both models."""
