"""Marks are computed as they are defined, against the public divergence and plain loops over the vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import limbeck
from limbeck.evaluation import marking
from limbeck.evaluation.marking import compare_tokens, mark_answers, nearest_beta
from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import Head
from limbeck.rollouts.request import Completion
from limbeck.runs.marks import BETAS, TOP
from limbeck.teachers.local import LocalTeacher
from pairs import random_prompts, tiny_model

NUM_REAL = 777


def sides(num=23, dtype=torch.float32):
    """Hidden states and heads of unequal padding; the first tokens agree nearly, the last not at all."""
    generator = torch.Generator().manual_seed(0)
    student_NH = torch.randn(num, 8, generator=generator)
    weight_VH = torch.randn(800, 8, generator=generator)
    apart_N1 = torch.logspace(-4, 0.7, num)[:, None]
    teacher_NH = student_NH + apart_N1 * torch.randn(num, 8, generator=generator)
    heads = (Head(weight_VH.to(dtype), None, NUM_REAL), Head(weight_VH[:780].to(dtype), None, NUM_REAL, scale=1.1))
    ids_N = torch.randint(NUM_REAL, (num,), generator=generator)
    return (student_NH.to(dtype), heads[0], teacher_NH.to(dtype), heads[1], ids_N)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_divergences_are_those_of_the_public_function_on_full_logits(dtype):
    student_NH, student_head, teacher_NH, teacher_head, ids_N = sides(dtype=dtype)
    marks = compare_tokens(student_NH, student_head, teacher_NH, teacher_head, ids_N, (1.0, 2.5))
    assert marks["divergence"].dtype == torch.float32
    logits = student_head.logits(student_NH), teacher_head.logits(teacher_NH)
    for place, temperature in enumerate((1.0, 2.5)):
        for column, beta in enumerate(BETAS):
            exact_N = limbeck.divergence(*logits, beta, scale="unit", temperature=temperature).float()
            torch.testing.assert_close(marks["divergence"][:, place, column], exact_N, atol=1e-4, rtol=1e-5)
    assert marks["divergence"].min() >= 0
    assert marks["divergence"].max() > 5


def test_candidates_tails_entropies_and_ranks_are_what_a_loop_over_the_vocabulary_finds():
    *given, ids_N = sides()
    marks = compare_tokens(*given, ids_N, (1.0,))
    logq_NV, logp_NV = (head.logits(hidden_NH).log_softmax(-1) for hidden_NH, head in (given[:2], given[2:]))
    first = 0
    for row, token in enumerate(ids_N.tolist()):
        logq_V, logp_V = logq_NV[row], logp_NV[row]
        union = {*logq_V.topk(TOP).indices.tolist(), *logp_V.topk(TOP).indices.tolist()}
        last = first + int(marks["num_candidates"][row])
        found = marks["candidate_ids"][first:last].tolist()
        assert sorted(found) == sorted(union)
        assert found == sorted(found, key=lambda token_id: -logp_V[token_id])
        for name, side_V in (("student", logq_V), ("teacher", logp_V)):
            torch.testing.assert_close(
                marks[f"candidate_{name}"][first:last].float(), side_V[found], atol=1e-3, rtol=1e-3
            )
            rest = [token_id for token_id in range(NUM_REAL) if token_id not in union]
            torch.testing.assert_close(marks[f"{name}_tail"][row], side_V[rest].exp().sum())
            torch.testing.assert_close(marks[f"{name}_entropy"][row], -(side_V.exp() * side_V).sum())
            torch.testing.assert_close(marks[f"{name}_logp"][row], side_V[token])
        assert int(marks["teacher_rank"][row]) == int((logp_V > logp_V[token]).sum())
        first = last
    assert first == len(marks["candidate_ids"])


def test_logits_exist_for_a_chunk_of_tokens_at_a_time_and_the_result_does_not_depend_on_it(monkeypatch):
    given = sides()
    whole = compare_tokens(*given, (1.0, 2.0))
    rows = []
    logits = Head.logits
    monkeypatch.setattr(Head, "logits", lambda head, hidden_NH: rows.append(len(hidden_NH)) or logits(head, hidden_NH))
    monkeypatch.setattr(marking, "CHUNK_ELEMENTS", 5 * NUM_REAL)
    chunked = compare_tokens(*given, (1.0, 2.0))
    assert max(rows) == 5
    for name, values in whole.items():
        torch.testing.assert_close(chunked[name], values, atol=1e-5, rtol=1e-5)


def test_each_answer_has_its_own_marks_whatever_shares_its_batch():
    student, teacher = tiny_model(), tiny_model(seed=1)
    prompts = random_prompts(5, seed=3)
    generator = torch.Generator().manual_seed(1)
    answers = [
        Completion(tuple(torch.randint(300, (length,), generator=generator).tolist()), (), length == 4)
        for length in (3, 9, 1, 4, 7)
    ]
    together = mark_answers(student, LocalTeacher(teacher), prompts, answers, temperature=2.0, max_tokens=64, pad_id=0)
    for prompt, answer, marked in zip(prompts, answers, together, strict=True):
        (alone,) = mark_answers(student, LocalTeacher(teacher), [prompt], [answer], temperature=2.0, pad_id=0)
        assert tuple(marked.token_ids) == answer.ids
        assert (marked.key, marked.cut_off) == (f"{prompt.content_hash}/0", answer.cut_off)
        for name, value in vars(alone).items():
            if isinstance(value, np.ndarray) and name != "candidate_ids":
                np.testing.assert_allclose(getattr(marked, name), value, atol=2e-3)
        ids_BT = torch.tensor([[*prompt.ids, *answer.ids]])
        logp_NV = teacher.module(input_ids=ids_BT).logits[0, len(prompt.ids) - 1 : -1].log_softmax(-1)
        np.testing.assert_allclose(
            marked.teacher_logp, logp_NV.gather(1, torch.tensor(answer.ids)[:, None])[:, 0].detach(), atol=1e-4
        )


def test_the_beta_that_is_shown_is_the_nearest_to_what_is_minimised():
    assert nearest_beta(Objective(beta=0.9)) == 1.0
    assert nearest_beta(Objective(beta=0.3)) == 0.25
    assert nearest_beta(Objective(kind="soft_targets", temperature=2.0)) == 0.0
    assert nearest_beta(Objective(kind="kl_mix", forward_weight=0.8)) == 0.25
