"""What must not change a step on given text: how it is cut, how it is padded. And what its tokens weigh.

Everything here runs in float64 on models of a few thousand weights.
"""

from __future__ import annotations

import pytest
import torch

from limbeck.objectives.divergence import Objective, objective_per_token
from limbeck.rollouts.request import Completion
from limbeck.routes import off_policy, on_policy, supervised
from limbeck.teachers.local import LocalTeacher
from limbeck.training.batches import AnswerSet
from pairs import prompt_of, random_prompts, recipe_of, state_of, tiny_model

LENGTHS = (1, 12, 5, 12, 2, 9, 7, 12)
SETTINGS = {"steps": 10, "warmup_steps": 0, "decay_share": 0.0, "max_grad_norm": 1e9, "learning_rate": 1e-3}


def recipe(**changes):
    return recipe_of(route="off-policy", **{**SETTINGS, **changes})


def text_of(lengths=LENGTHS, *, weight=1.0, seed=3):
    generator = torch.Generator().manual_seed(seed)
    answers = [
        Completion(tuple(torch.randint(3, 300, (length,), generator=generator).tolist()), (), False)
        for length in lengths
    ]
    return AnswerSet(random_prompts(len(lengths), seed=seed), answers, weight)


def caught(take_step):
    """The gradient that one step would apply, and its record."""
    student = tiny_model(dtype=torch.float64)
    state = state_of(student, recipe())
    found = {}
    own_step = state.optimizer.step

    def catching_step():
        found["gradient"] = torch.cat([parameter.grad.flatten() for parameter in student.module.parameters()])
        own_step()

    state.optimizer.step = catching_step
    record = take_step(state)
    return found["gradient"], record


def teacher():
    return LocalTeacher(tiny_model(seed=1, dtype=torch.float64))


def supervised_step(text, **changes):
    own = changes.pop("own", supervised.NO_ANSWERS)
    return caught(lambda state: supervised.step(state, text, recipe(**changes), own_answers=own))


def soft_step(text, **changes):
    own = changes.pop("own", supervised.NO_ANSWERS)
    objective = Objective("soft_targets", temperature=2.0)
    return caught(lambda state: off_policy.step(state, teacher(), text, objective, recipe(**changes), own_answers=own))


@pytest.mark.report("LM-04")
@pytest.mark.parametrize("take", [supervised_step, soft_step])
def test_the_gradient_does_not_depend_on_the_cut_into_micro_batches(take):
    whole, whole_record = take(text_of(), micro_batch_tokens=10_000)
    assert whole.norm() > 1e-3
    for micro_batch_tokens in (90, 40, 1):
        cut, record = take(text_of(), micro_batch_tokens=micro_batch_tokens)
        # the architecture's norms and softmax work in float32
        assert (cut - whole).norm() <= 1e-12 * whole.norm()
        assert record.loss == pytest.approx(whole_record.loss, rel=1e-12)


def test_the_loss_is_the_mean_over_the_tokens_of_the_step():
    prompts, answers, _ = text_of((5, 60))
    _, record = supervised_step(AnswerSet(prompts, answers))
    student, values = tiny_model(dtype=torch.float64), []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([[*prompt.ids, *answer.ids]])
        logp_TV = student.module(ids).logits[0].log_softmax(-1)
        start = len(prompt.ids)
        values += [-logp_TV[start - 1 + place, token].item() for place, token in enumerate(answer.ids)]
    assert record.loss == pytest.approx(sum(values) / 65, rel=1e-12)
    assert record.num_completion_tokens == 65


def test_soft_targets_off_policy_are_those_of_the_dense_form():
    prompts, answers, _ = text_of((4, 7))
    _, record = soft_step(AnswerSet(prompts, answers))
    student, master, values = tiny_model(dtype=torch.float64), teacher().model, []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([[*prompt.ids, *answer.ids]])
        rows = slice(len(prompt.ids) - 1, len(prompt.ids) + len(answer.ids) - 1)
        sides = [model.module(ids).logits[0, rows] for model in (student, master)]
        values += objective_per_token(Objective("soft_targets", temperature=2.0), *sides).tolist()
    assert record.loss == pytest.approx(sum(values) / 11, rel=1e-12)


@pytest.mark.parametrize("take", [supervised_step, soft_step])
@pytest.mark.parametrize("weight", [0.0, 0.5, 3.0])
def test_own_answers_add_their_own_gradient_by_weight_over_all_tokens_of_the_step(take, weight):
    text, own = text_of((5, 9)), text_of((3, 8), seed=8)
    alone, alone_record = take(text)
    own_alone, own_record = supervised_step(own)
    both, record = take(text, own=AnswerSet(own.prompts, own.completions, weight))
    expected = (14 * alone + weight * 11 * own_alone) / 25
    assert (both - expected).norm() <= 1e-12 * expected.norm()
    assert record.loss == pytest.approx(alone_record.loss, rel=1e-12)
    assert record.own_answers_loss == pytest.approx(own_record.loss, rel=1e-12)


@pytest.mark.report("LM-07")
def test_what_the_student_wrote_has_no_cross_entropy_even_beside_own_answers():
    """A teacher that agrees everywhere leaves the own answers' gradient alone, whatever the student wrote."""
    settings = recipe_of(prompts_per_step=4, max_practice_tokens=12, **SETTINGS)
    own = text_of((3, 8), seed=8)
    twin = LocalTeacher(tiny_model(dtype=torch.float64))
    both, record = caught(lambda state: on_policy.step(state, twin, random_prompts(4), settings, own_answers=own))
    own_alone, _ = supervised_step(own)
    expected = 11 * own_alone / (11 + record.num_completion_tokens)
    assert record.loss == 0
    assert (both - expected).norm() <= 1e-12 * expected.norm()


def test_text_that_the_teacher_wrote_is_read_like_practice_and_not_counted_as_such():
    settings = recipe_of(prompts_per_step=4, max_practice_tokens=6, **SETTINGS)
    given = text_of((20, 30))
    _, record = caught(
        lambda state: on_policy.step(state, teacher(), random_prompts(4), settings, teacher_answers=given)
    )
    assert record.num_answers == 6
    assert record.max_length <= 6
    assert record.engine_gap < 1e-6


def test_a_warm_up_has_the_forward_kl_of_the_recipes_temperature():
    objective = on_policy.warmup_objective(recipe_of(temperature=2.0))
    assert (objective.kind, objective.beta, objective.temperature) == ("divergence", 0.0, 2.0)


def test_the_prompt_and_padding_have_no_gradient():
    """A text of one token depends on the hidden state of the last prompt position alone."""
    student = tiny_model(dtype=torch.float64)
    state = state_of(student, recipe())
    text = AnswerSet([prompt_of([5, 9, 17]), prompt_of([4] * 9)], [Completion((8,), (), False)] * 2)
    seen = []
    student.module.model.norm.register_full_backward_hook(lambda module, grads, outputs: seen.append(outputs[0]))
    supervised.step(state, text, recipe())
    moved = [grad.abs().sum(-1) > 0 for grad in seen]
    assert sum(int(each.sum()) for each in moved) == 2
