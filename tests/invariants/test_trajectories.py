"""Ten steps of every route, as they were recorded: bit for bit on the same kind of machine, in float64 on every one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from record_trajectories import (  # noqa: E402
    GOLDEN,
    ROUTES,
    exact,
    first_difference,
    kind_of_machine,
    replayed,
    trajectory,
)

STORED = json.loads(GOLDEN.read_text(encoding="utf-8"))
# Rounding in float64 is 1e-16 relative, and other kernels differ by some 1e-13 after ten steps; what is meant by a
# change of numerics is 1e-6 and more.
TOLERANCE = 1e-9


def numbers(found):
    return {name: [float.fromhex(value) for value in values] for name, values in found.items()}


def test_every_route_is_recorded():
    assert STORED["routes"].keys() == STORED["replays"].keys() == ROUTES.keys()
    for found in STORED["routes"].values():
        assert len(found["steps"]) == 10


@pytest.mark.parametrize("route", [route for route in ROUTES if "bf16" not in route and "lora" not in route])
def test_the_replay_computes_what_the_run_did(route):
    """Float32 rounds a loss to some 1e-7, and a step made of such gradients moves the next loss by no more.

    bf16 rounds to 1e-3, and a replay with adapters starts from others.
    """
    steps = [float.fromhex(step["loss"]) for step in STORED["routes"][route]["steps"]]
    assert numbers(STORED["replays"][route])["loss"] == pytest.approx(steps, rel=1e-5)


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_is_as_recorded_bit_for_bit(tmp_path, route):
    with exact():
        if (kind := kind_of_machine()) != STORED["machine"]:
            pytest.skip(f"recorded on {STORED['machine']}, and this is {kind}")
        found = json.loads(json.dumps(trajectory(ROUTES[route], tmp_path)))
    assert first_difference(STORED["routes"][route], found) == ""


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_is_as_recorded_in_float64(tmp_path, route):
    with exact():
        found = replayed(ROUTES[route], STORED["routes"][route], tmp_path)
    stored = numbers(STORED["replays"][route])
    assert numbers(found) == {name: pytest.approx(values, rel=TOLERANCE, abs=0.0) for name, values in stored.items()}


@pytest.mark.parametrize(
    "planted",
    [
        {"beta": 0.5 + 1e-6},
        {"warmup_steps": 4},
        {"decay_share": 0.5},
        {"max_grad_norm": 0.5 * (1 + 1e-6)},
        {"weight_decay": 0.1 * (1 + 1e-3)},
        {"learning_rate": 1e-2 * (1 + 1e-6)},
    ],
    ids=str,
)
def test_a_planted_change_shows_in_float64(tmp_path, planted):
    route = "on-policy, beta 0.5"
    with exact():
        found = replayed({**ROUTES[route], **planted}, STORED["routes"][route], tmp_path)
    stored = numbers(STORED["replays"][route])
    assert numbers(found) != {name: pytest.approx(values, rel=TOLERANCE, abs=0.0) for name, values in stored.items()}
