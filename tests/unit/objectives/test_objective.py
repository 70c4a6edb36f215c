from __future__ import annotations

import math

import pytest

from limbeck.errors import UsageError
from limbeck.objectives.objective import Objective


@pytest.mark.parametrize("beta", [-0.1, 1.1, math.nan, math.inf])
def test_beta_outside_its_range_is_refused(beta: float) -> None:
    with pytest.raises(UsageError, match=r"beta is .*from 0 \(forward KL\) to 1") as caught:
        Objective(beta=beta)
    assert caught.value.code == "objective.beta"


@pytest.mark.parametrize("beta", [1e-300, 1e-12, 1 - 1e-12])
def test_beta_a_hair_from_an_end_is_taken_for_a_slip(beta: float) -> None:
    with pytest.raises(UsageError, match="Use exactly 0 or 1") as caught:
        Objective(beta=beta)
    assert caught.value.code == "objective.beta-near-end"


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_temperature_has_to_be_positive_and_finite(temperature: float) -> None:
    with pytest.raises(UsageError, match="temperature is"):
        Objective(temperature=temperature)


@pytest.mark.parametrize("weight", [-0.5, 2.0, math.nan])
def test_forward_weight_is_a_share(weight: float) -> None:
    with pytest.raises(UsageError, match="forward_weight is"):
        Objective(kind="kl_mix", forward_weight=weight)


def test_unknown_kind_and_scale_name_what_is_allowed() -> None:
    with pytest.raises(UsageError, match="divergence, kl_mix, soft_targets"):
        Objective(kind="jsd")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="gkd, unit"):
        Objective(scale="raw")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"kind": "divergence", "forward_weight": 0.3}, "forward_weight"),
        ({"kind": "kl_mix", "beta": 0.3}, "beta"),
        ({"kind": "kl_mix", "scale": "gkd"}, "scale"),
        ({"kind": "soft_targets", "beta": 0.0}, "beta"),
        ({"kind": "soft_targets", "forward_weight": 1.0}, "forward_weight"),
    ],
)
def test_a_setting_that_the_kind_does_not_use_is_refused(settings: dict[str, object], unused: str) -> None:
    with pytest.raises(UsageError, match=f"does not use {unused}"):
        Objective(**settings)  # type: ignore[arg-type]


@pytest.mark.report("LM-01")
def test_the_description_names_the_end_and_its_formula() -> None:
    assert (
        Objective(beta=0).describe() == "forward KL(teacher‖student), beta 0, scale unit, temperature 1, nats per token"
    )
    assert Objective().describe() == "reverse KL(student‖teacher), beta 1, scale unit, temperature 1, nats per token"
    between = Objective(beta=0.25, scale="gkd", temperature=2).describe()
    assert "beta·KL(teacher‖m) + (1-beta)·KL(student‖m) with m = beta·teacher + (1-beta)·student" in between
    assert between.endswith("beta 0.25, scale gkd, temperature 2, nats per token")
    assert "/ (beta(1-beta))" in Objective(beta=0.25).describe()
    assert (
        "0.25·KL(teacher‖student) + 0.75·KL(student‖teacher)"
        in Objective(kind="kl_mix", forward_weight=0.25).describe()
    )
    assert "T²·KL(teacher‖student) with temperature T = 3" in Objective(kind="soft_targets", temperature=3).describe()
