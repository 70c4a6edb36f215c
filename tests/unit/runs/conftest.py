from __future__ import annotations

import pytest

from limbeck.runs import lock


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is refused has asked often enough in a hundredth of the time: nobody only looks here."""
    monkeypatch.setattr(lock, "RETRY_S", lock.RETRY_S / 100)
