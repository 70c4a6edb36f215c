"""The certificate passes on a right pair and fails for each fault that it claims to find."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from limbeck.models.language_model import LanguageModel
from limbeck.objectives.divergence import Objective
from limbeck.planning import certificate
from limbeck.planning.certificate import certify
from limbeck.rollouts.engine import Engine
from pairs import random_prompts, tiny_model


def findings(objective=None, teacher=None, student=None):
    student = student or tiny_model()
    engine = Engine(student, stop_ids=(2,), pad_id=0, num_slots=4)
    objective = objective or Objective()
    return {
        finding.name: finding
        for finding in certify(
            student, teacher or tiny_model(seed=1), engine, random_prompts(6), objective, chunk_tokens=64
        )
    }


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_right_pair_passes(beta):
    found = findings(Objective(beta=beta))
    assert all(finding.passed for finding in found.values()), found
    assert set(found) == {"self", "fused", "teacher", "shift", "engine"}
    assert found["self"].value == 0


def test_nothing_is_left_on_the_student():
    student = tiny_model()
    before = [parameter.clone() for parameter in student.module.parameters()]
    findings(student=student)
    for parameter, old in zip(student.module.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None


def test_a_teacher_that_is_never_used_is_found(monkeypatch):
    real = certificate.fused_with_statistics

    def without_teacher(student_NH, student_head, teacher_NH, teacher_head, *rest, **more):
        return real(student_NH, student_head, student_NH.detach(), replace(student_head), *rest, **more)

    monkeypatch.setattr(certificate, "fused_with_statistics", without_teacher)
    found = findings()
    assert not found["teacher"].passed
    assert not found["fused"].passed


def test_positions_off_by_one_are_found(monkeypatch):
    real = LanguageModel.completion_hidden

    def moved(self, batch):
        return real(self, replace(batch, predict_N=batch.predict_N + 1))

    monkeypatch.setattr(LanguageModel, "completion_hidden", moved)
    assert not findings()["engine"].passed


def test_a_teacher_that_is_the_student_is_no_failure():
    assert all(finding.passed for finding in findings(teacher=tiny_model(seed=0)).values())
