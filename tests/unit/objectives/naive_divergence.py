"""The objectives as their definitions say, for tests: float64, autograd, no care for cancellation.

Axes: N positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.objectives.objective import Objective


def naive(objective: Objective, student_NV: Tensor, teacher_NV: Tensor) -> Tensor:
    lq_NV = torch.log_softmax(student_NV.double() / objective.temperature, -1)
    lp_NV = torch.log_softmax(teacher_NV.double() / objective.temperature, -1)
    p_NV, q_NV, b = lp_NV.exp(), lq_NV.exp(), objective.beta
    forward_N, reverse_N = (p_NV * (lp_NV - lq_NV)).sum(-1), (q_NV * (lq_NV - lp_NV)).sum(-1)
    if objective.kind == "soft_targets":
        return objective.temperature**2 * forward_N
    if objective.kind == "kl_mix":
        return objective.forward_weight * forward_N + (1 - objective.forward_weight) * reverse_N
    if b in (0, 1):
        return forward_N if b == 0 else reverse_N
    lm_NV = torch.log(b * p_NV + (1 - b) * q_NV)
    value_N = (b * p_NV * (lp_NV - lm_NV) + (1 - b) * q_NV * (lq_NV - lm_NV)).sum(-1)
    return value_N if objective.scale == "gkd" else value_N / (b * (1 - b))


BETAS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)

EVERY_OBJECTIVE = [
    *(Objective(beta=b, scale=s, temperature=t) for b in BETAS for s in ("gkd", "unit") for t in (1.0, 2.0, 3.0)),
    *(Objective(kind="kl_mix", forward_weight=w, temperature=t) for w in (0.0, 0.3, 1.0) for t in (1.0, 2.0)),
    *(Objective(kind="soft_targets", temperature=t) for t in (0.5, 1.0, 2.0, 3.0)),
]


def name_of(objective: Objective) -> str:
    setting = {"divergence": f"{objective.beta:g}-{objective.scale}", "kl_mix": f"{objective.forward_weight:g}"}
    return f"{objective.kind}-{setting.get(objective.kind, '')}-T{objective.temperature:g}"
