"""Shares, differences and sizes as texts, the same in a terminal and on a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from limbeck.reporting.messages import terminal

__all__ = ["FEW", "count_text", "points_range", "share_range", "size_text"]

FEW = 10  # a share of fewer prompts is shown as a count
GIB = 2**30
MIB = 2**20


def share_range(interval: Mapping[str, Any]) -> str:
    """A share with its 95% interval in percent, "43% (36 to 50)"; a count if it is a share of a few, "3 of 7"."""
    counted = count_text(interval["estimate"], interval["n"])
    if counted is not None:
        return counted
    return f"{interval['estimate']:.0%} ({100 * interval['low']:.0f} to {100 * interval['high']:.0f})"


def count_text(share: float | str, num: int) -> str | None:
    """A share of fewer than `FEW` as a count; None if there are more, or if it is not a number."""
    if num >= FEW or isinstance(share, str) or not math.isfinite(share):
        return None
    return terminal.count(num=f"{share * num:.3g}", of=num)


def points_range(interval: Mapping[str, Any]) -> str:
    """A difference with its 95% interval in points: "+31 (+24 to +38)"."""
    middle, low, high = (round(100 * interval[name]) for name in ("estimate", "low", "high"))
    return f"{middle:+d} ({low:+d} to {high:+d})"


def size_text(num_bytes: int) -> str:
    """Bytes as a text: "6.2 GiB"; below a tenth of that in MiB: "58 MiB"."""
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / MIB:.2g} MiB"
