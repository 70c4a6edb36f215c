"""What must not change a step: how it is cut, how it is padded, who else is in it. And what must.

Everything here runs in float64 on models of a few thousand weights, so that equal means equal.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from builders import tiny_llama, tiny_tokenizer
from limbeck.data.batch import collate
from limbeck.errors import Diverged
from limbeck.models.load import checkpoint_activations
from limbeck.objectives.divergence import objective_per_token
from limbeck.objectives.fused import fused_divergence, fused_with_statistics
from limbeck.recipe.parts import PracticeGrowth
from limbeck.rollouts.request import Completion
from limbeck.routes import off_policy
from limbeck.routes.on_policy import objective_of, practice_limit_at, practice_requests, step
from limbeck.teachers.local import LocalTeacher
from limbeck.teachers.signal import Dense
from limbeck.training.batches import AnswerSet, PromptOrder, micro_batches
from pairs import in_float64, language_model, prompt_of, random_prompts, recipe_of, state_of, tiny_model, train

RECIPE = recipe_of(
    steps=10,
    prompts_per_step=8,
    max_practice_tokens=12,
    learning_rate=1e-3,
    warmup_steps=0,
    decay_share=0.0,
    max_grad_norm=1e9,
)


def with_recipe(**settings):
    return RECIPE.model_copy(update=settings)


def student_of(seed=0, dtype=torch.float64, **options):
    return tiny_model(seed=seed, dtype=dtype, **options)


def teacher_of(seed=1, dtype=torch.float64, **options):
    return LocalTeacher(tiny_model(seed=seed, dtype=dtype, **options))


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.module.parameters()])


def gradient_of_step(recipe, *, prompts=None, teacher=None, student=None, stop_ids=(2,)):
    """The gradient that one step would apply, and its record."""
    student = student or student_of()
    state = state_of(student, recipe, stop_ids=stop_ids)
    caught = {}
    own_step = state.optimizer.step

    def catching_step():
        caught["gradient"] = torch.cat([parameter.grad.flatten() for parameter in student.module.parameters()])
        own_step()

    state.optimizer.step = catching_step
    record = step(state, teacher or teacher_of(), prompts or random_prompts(8), recipe)
    return caught["gradient"], record


@pytest.mark.report("LM-04")
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_gradient_does_not_depend_on_the_cut_into_micro_batches(beta):
    whole, whole_record = gradient_of_step(with_recipe(beta=beta, micro_batch_tokens=10_000))
    for micro_batch_tokens in (90, 40, 1):
        cut, record = gradient_of_step(with_recipe(beta=beta, micro_batch_tokens=micro_batch_tokens))
        assert torch.linalg.vector_norm(cut - whole) <= 1e-12 * torch.linalg.vector_norm(whole)
        assert record.loss == pytest.approx(whole_record.loss, rel=1e-12)
    assert torch.linalg.vector_norm(whole) > 1e-3


def _keep(sizes, tensor):
    sizes.append(tensor.numel())
    return tensor


def test_activations_computed_again_give_the_same_gradient_from_less_memory():
    def kept(student):
        sizes = []
        ids_BT = torch.arange(60).view(2, 30)
        keep = partial(_keep, sizes)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            student.hidden(ids_BT, torch.arange(30).expand(2, 30), torch.ones_like(ids_BT))
        return sum(sizes)

    whole, record = gradient_of_step(RECIPE)
    student = student_of(num_layers=3)
    before = kept(student)
    checkpoint_activations(student)
    assert kept(student) < before / 3
    student = student_of()
    checkpoint_activations(student)
    again, again_record = gradient_of_step(RECIPE, student=student)
    assert torch.equal(whole, again)
    assert again_record.loss == record.loss


def test_the_cuts_of_that_test_are_different_ones():
    prompts = random_prompts(8)
    answers = [Completion(tuple(range(3, 3 + length)), (0.0,) * length, True) for length in (1, 12, 5, 12, 2, 9, 7, 12)]
    shapes = []
    for max_tokens in (10_000, 90, 40, 1):
        batches = micro_batches(prompts, answers, max_tokens=max_tokens, pad_id=0, device=torch.device("cpu"))
        shapes.append([len(batch.rows) for batch in batches])
        assert sorted(row for batch in batches for row in batch.rows) == list(range(8))
        assert all(batch.tokens.ids_BT.numel() <= max_tokens or len(batch.rows) == 1 for batch in batches)
    assert shapes[0] == [8]
    assert shapes[-1] == [1] * 8
    assert len({tuple(shape) for shape in shapes}) == 4


@pytest.mark.report("LM-04")
def test_the_loss_is_the_token_weighted_mean_of_the_rows_alone():
    """Answers of 5 and 60 tokens, and a third of 200 beside them: padding never counts."""
    student, teacher = student_of(max_positions=512), teacher_of(max_positions=512)
    prompts = random_prompts(3)

    def measured(rows, lengths):
        generator = torch.Generator().manual_seed(5)
        every = [torch.randint(3, 300, (length,), generator=generator).tolist() for length in (5, 60, 200)]
        batch = collate(
            [prompts[row].ids for row in rows], [every[row] for row in rows], pad_id=0, device=student.device
        )
        signal = teacher.score(batch)
        student.module.zero_grad()
        weights_N = torch.full((batch.num_tokens,), 1 / sum(lengths), dtype=torch.float64)
        loss, reading = fused_with_statistics(
            student.completion_hidden(batch),
            student.head,
            signal.hidden_NH,
            signal.head,
            weights_N,
            objective_of(RECIPE),
            token_ids_N=batch.targets_N,
        )
        loss.backward()
        return loss.item(), torch.cat([parameter.grad.flatten() for parameter in student.module.parameters()]), reading

    both, gradient, _ = measured([0, 1], [5, 60])
    five, gradient_five, _ = measured([0], [5])
    sixty, gradient_sixty, _ = measured([1], [60])
    assert both == pytest.approx((5 * five + 60 * sixty) / 65, abs=1e-12)
    weighted = (5 * gradient_five + 60 * gradient_sixty) / 65
    # the architecture's norms pass gradients in float32, and those round differently at another scale
    assert torch.linalg.vector_norm(gradient - weighted) <= 1e-12 * torch.linalg.vector_norm(gradient)
    _, _, reading = measured([0, 1, 2], [5, 60, 200])
    assert reading.divergence_N[:65].mean().item() == pytest.approx(both, abs=1e-12)


@pytest.mark.report("LM-09")
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("impossible", [0, 50])
def test_rows_of_unequal_length_give_the_finite_loss_and_gradient_of_the_rows_alone(beta, impossible):
    """Prompts of 3 and 40 tokens, answers of 2 and 30, in one pass and in two; the teacher rules some tokens out."""
    prompts = [prompt_of(range(3, 6)), prompt_of(range(10, 50), source="rows.jsonl:2")]
    answers = [Completion((7, 2), (), False), Completion((*range(60, 89), 2), (), False)]
    bias_V = torch.zeros(300, dtype=torch.float64)
    bias_V[300 - impossible :] = -torch.inf

    def gradient_of(rows, micro_batch_tokens):
        student, teacher = student_of(), teacher_of().model
        teacher = LocalTeacher(replace(teacher, head=replace(teacher.head, bias_V=bias_V)))
        recipe = with_recipe(beta=beta, micro_batch_tokens=micro_batch_tokens)
        state, caught = state_of(student, recipe), []
        state.optimizer.step = lambda: caught.extend(each.grad.flatten() for each in student.module.parameters())
        text = AnswerSet([prompts[row] for row in rows], [answers[row] for row in rows])
        record = off_policy.step(state, teacher, text, objective_of(recipe), recipe)
        return torch.cat(caught), record

    together, record = gradient_of([0, 1], 10_000)
    in_two, record_in_two = gradient_of([0, 1], 1)
    (two, of_two), (thirty, of_thirty) = gradient_of([0], 10_000), gradient_of([1], 10_000)
    assert torch.isfinite(together).all()
    assert 0 < record.loss < 1e4
    assert torch.linalg.vector_norm(in_two - together) <= 1e-12 * torch.linalg.vector_norm(together)
    alone = (2 * two + 30 * thirty) / 32
    assert torch.linalg.vector_norm(alone - together) <= 1e-12 * torch.linalg.vector_norm(together)
    # the architecture's norms round to float32
    assert record.loss == pytest.approx((2 * of_two.loss + 30 * of_thirty.loss) / 32, rel=1e-12)
    assert record_in_two.loss == pytest.approx(record.loss, rel=1e-12)
    assert record.grad_norm == pytest.approx(record_in_two.grad_norm, rel=1e-12)


@pytest.mark.report("EP-01")
@pytest.mark.parametrize("pad_id", [0, 2, 7])
def test_the_pad_id_does_not_matter_even_if_it_is_the_stop_token(pad_id):
    student, teacher = student_of(), teacher_of()
    prompts = [prompt_of([5, 2, 9, 2]), prompt_of([4] * 17), prompt_of([2, 2])]
    answers = [[7, 2], [11, 12, 13, 2], [2]]
    hidden = []
    for fill in (pad_id, 3):
        batch = collate([prompt.ids for prompt in prompts], answers, pad_id=fill, device=student.device)
        hidden.append((student.completion_hidden(batch), teacher.score(batch).hidden_NH))
        # one predicted stop token for each answer, none of the padding, and turn ends in the prompt stay visible
        assert (batch.targets_N == 2).sum() == 3
        assert batch.num_tokens == 7
        assert batch.mask_BT.sum(1).tolist() == [6, 21, 3]
    torch.testing.assert_close(hidden[0], hidden[1], rtol=0, atol=0)


def test_padding_on_the_left_gives_the_same_hidden_states():
    student = student_of()
    prompts, answers = random_prompts(4), [[7, 2], [11, 12, 13, 2], [2], [9] * 10]
    batch = collate([prompt.ids for prompt in prompts], answers, pad_id=0, device=student.device)
    width = batch.ids_BT.shape[1]
    left = []
    for prompt, answer in zip(prompts, answers, strict=True):
        length = len(prompt.ids) + len(answer)
        ids = torch.tensor([[0] * (width - length) + [*prompt.ids, *answer]])
        positions = (torch.arange(width) - (width - length)).clamp(min=0)[None]
        key_T = torch.arange(width)
        visible_TT = (key_T[None] <= key_T[:, None]) & (key_T[None] >= width - length) | torch.eye(
            width, dtype=torch.bool
        )
        mask = torch.zeros(1, 1, width, width, dtype=torch.float64).masked_fill(~visible_TT, -1e30)
        hidden_TH = student.hidden(ids, positions, mask)[0]
        left.append(hidden_TH[width - len(answer) - 1 : width - 1])
    torch.testing.assert_close(torch.cat(left), student.completion_hidden(batch), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_a_student_that_is_its_own_teacher_has_no_loss_and_no_gradient(beta):
    gradient, record = gradient_of_step(
        with_recipe(beta=beta, micro_batch_tokens=60), student=student_of(3), teacher=teacher_of(3)
    )
    assert record.loss == 0
    assert gradient.abs().max() == 0
    assert record.agreement == 1
    assert record.student_logprob == record.teacher_logprob


@pytest.mark.report("LM-06")
def test_a_teacher_moved_by_one_position_is_noticed():
    class Moved(LocalTeacher):
        def score(self, batch):
            signal = super().score(batch)
            return Dense(signal.hidden_NH.roll(1, dims=0), signal.head)

    _, record = gradient_of_step(RECIPE, student=student_of(3), teacher=Moved(teacher_of(3).model))
    assert record.loss > 0.1


@pytest.mark.report("LM-06")
def test_scores_are_those_of_a_direct_forward_pass_up_to_the_stop_token():
    teacher = teacher_of()
    prompt, answer = [5, 9, 17, 4], [8, 33, 2]
    batch = collate([prompt, [6]], [answer, [2]], pad_id=0, device=torch.device("cpu"))
    signal = teacher.score(batch)
    scores_N = signal.head.logits(signal.hidden_NH).log_softmax(-1).gather(1, batch.targets_N[:, None])[:, 0]
    logits_TV = teacher.model.module(torch.tensor([prompt + answer])).logits[0]
    direct = [logits_TV[len(prompt) - 1 + place].log_softmax(-1)[token].item() for place, token in enumerate(answer)]
    assert scores_N[:3].tolist() == pytest.approx(direct, abs=1e-10)


def test_another_teacher_gives_another_gradient():
    one, _ = gradient_of_step(RECIPE, teacher=teacher_of(1))
    other, _ = gradient_of_step(RECIPE, teacher=teacher_of(2))
    assert torch.linalg.vector_norm(one - other) > 0.1 * torch.linalg.vector_norm(one)


@pytest.mark.report("EP-01")
def test_the_position_that_predicts_the_stop_token_has_a_gradient():
    student, teacher = student_of(), teacher_of()
    batch = collate([[5, 9, 17]], [[8, 2]], pad_id=2, device=student.device)
    hidden_NH = student.completion_hidden(batch).detach().requires_grad_()
    signal = teacher.score(batch)
    weights_N = torch.full((2,), 0.5, dtype=torch.float64)
    loss, _ = fused_divergence(hidden_NH, student.head, signal.hidden_NH, signal.head, weights_N, objective_of(RECIPE))
    loss.backward()
    assert (hidden_NH.grad.norm(dim=1) > 1e-3).all()


@pytest.mark.report("LM-03")
@pytest.mark.parametrize("prompts_per_step", [1, 4])
def test_scored_tokens_are_the_written_ones_and_the_prompt_is_none_of_them(prompts_per_step):
    prompts = random_prompts(4)[:prompts_per_step]
    seen = []

    class Watching(LocalTeacher):
        def score(self, batch):
            seen.append(batch)
            return super().score(batch)

    _, record = gradient_of_step(
        with_recipe(prompts_per_step=prompts_per_step), prompts=prompts, teacher=Watching(teacher_of().model)
    )
    assert sum(batch.num_tokens for batch in seen) == record.num_completion_tokens
    for batch in seen:
        lengths_B = batch.mask_BT.sum(1)
        scored_B = torch.bincount(batch.row_N, minlength=len(lengths_B))
        prompt_lengths = sorted(len(prompt.ids) for prompt in prompts)
        assert sorted((lengths_B - scored_B).tolist()) == prompt_lengths
        # position by position: the first predicting position of each row is the prompt's last token
        first_B = torch.tensor([batch.predict_N[batch.row_N == row][0] for row in range(len(lengths_B))])
        assert torch.equal(first_B % batch.ids_BT.shape[1] + 1, lengths_B - scored_B)


@pytest.mark.report("LM-03")
def test_what_the_teacher_says_of_the_prompt_changes_nothing():
    """Noise in the teacher's hidden states at prompt positions never reaches the student."""
    clean, _ = gradient_of_step(RECIPE)
    noisy_model = teacher_of().model
    plain_hidden = type(noisy_model).hidden

    def noisy_hidden(self, ids_BT, positions_BT, mask, *, cache=None):
        hidden_BTH = plain_hidden(self, ids_BT, positions_BT, mask, cache=cache)
        if self is not noisy_model or cache is not None:
            return hidden_BTH
        rows = torch.arange(len(ids_BT))
        hidden_BTH[rows, 0] = 1e3  # every prompt here has at least three tokens, so position 0 predicts prompt
        return hidden_BTH

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(noisy_model), "hidden", noisy_hidden)
        noisy, _ = gradient_of_step(RECIPE, teacher=LocalTeacher(noisy_model))
    assert torch.equal(clean, noisy)


def test_nothing_but_the_students_weights_is_trained():
    student, teacher = student_of(), teacher_of()
    teacher_before, student_before = weights_of(teacher.model), weights_of(student)
    state = state_of(student, RECIPE)
    step(state, teacher, random_prompts(8), RECIPE)
    assert torch.equal(weights_of(teacher.model), teacher_before)
    assert not torch.equal(weights_of(student), student_before)
    assert all(parameter.grad is None for parameter in teacher.model.module.parameters())


def test_two_runs_of_one_recipe_are_bit_identical_and_another_seed_is_not():
    def trained(seed):
        student = student_of(dtype=torch.float32)
        state = state_of(student, RECIPE)
        recipe = with_recipe(seed=seed, steps=3)
        losses = [record.loss for record in train(state, teacher_of(dtype=torch.float32), random_prompts(20), recipe)]
        return weights_of(student), losses

    first, losses = trained(0)
    again, losses_again = trained(0)
    other, _ = trained(1)
    assert torch.equal(first, again)
    assert losses == losses_again
    assert not torch.equal(first, other)


def test_the_number_of_slots_changes_nothing():
    def trained(num_slots):
        student = student_of(dtype=torch.float32)
        state = state_of(student, RECIPE, num_slots=num_slots)
        list(train(state, teacher_of(dtype=torch.float32), random_prompts(20), with_recipe(steps=3)))
        return weights_of(student)

    torch.testing.assert_close(trained(8), trained(3), rtol=0, atol=2e-6)


@pytest.mark.report("TH-03")
def test_a_student_that_stops_at_once_is_scored_on_its_stop_token():
    student = student_of()
    with torch.no_grad():
        # the head sees a constant direction and turns it into a very likely stop token
        student.module.model.norm.weight.fill_(0.0)
    head = nn.Linear(16, 300, bias=True, dtype=torch.float64)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[2] = 15.0  # 1 - 299 e^-15 = 0.9999
    student = replace(student, head=replace(student.head, weight_VH=head.weight, bias_V=head.bias))
    student.module.lm_head = head
    state = state_of(student, RECIPE)
    for record in train(state, teacher_of(), random_prompts(20), with_recipe(steps=20)):
        assert record.num_completion_tokens >= record.num_answers
        assert torch.isfinite(torch.tensor([record.loss, record.grad_norm])).all()
        if record.step == 1:
            assert record.empty_share == 1.0
            assert record.mean_length == 1.0
    assert torch.isfinite(weights_of(student)).all()


@pytest.mark.report("TH-01")
def test_a_broken_teacher_stops_the_step_before_the_weights_change():
    teacher, student = teacher_of(), student_of()
    with torch.no_grad():
        teacher.model.module.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    before = weights_of(student)
    state = state_of(student, RECIPE)
    with pytest.raises(Diverged, match=r"step 1 .*rows\.jsonl:1") as caught:
        step(state, teacher, random_prompts(8), RECIPE)
    assert caught.value.exit_code == 4
    assert torch.equal(weights_of(student), before)
    assert all(parameter.grad is None for parameter in student.module.parameters())


@pytest.mark.report("TH-01")
def test_a_gradient_that_is_not_finite_stops_the_step_before_the_weights_change():
    student = student_of()
    student.module.model.layers[0].input_layernorm.weight.register_hook(lambda gradient: gradient * torch.inf)
    before = weights_of(student)
    with pytest.raises(Diverged, match="gradient norm of step 1"):
        step(state_of(student, RECIPE), teacher_of(), random_prompts(8), RECIPE)
    assert torch.equal(weights_of(student), before)


@pytest.mark.report("VT-01")
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows", [(320, 384), (384, 320)])
def test_heads_padded_to_different_widths_train_on_the_shared_vocabulary(beta, rows):
    tokenizer = tiny_tokenizer()
    student = language_model(in_float64(tiny_llama(tokenizer, vocab_size=rows[0], scale=4.0)), tokenizer, num_real=300)
    teacher = language_model(
        in_float64(tiny_llama(tokenizer, vocab_size=rows[1], scale=4.0, seed=1)), tokenizer, num_real=300
    )
    recipe = with_recipe(beta=beta, prompts_per_step=4, steps=3, scale="gkd")
    state = state_of(student, recipe)
    records = list(train(state, LocalTeacher(teacher), random_prompts(4), recipe))
    assert len(records) == 3
    # by hand: cut, renormalise, sum over the shared ids
    batch = collate([[5, 9]], [[8, 2]], pad_id=0, device=student.device)
    p = teacher.module(batch.ids_BT).logits[0, 1:3, :300].softmax(-1)
    q = student.module(batch.ids_BT).logits[0, 1:3, :300].softmax(-1)
    m = beta * p + (1 - beta) * q
    by_hand = {
        0.0: (p * (p / q).log()).sum(-1),
        0.5: 0.5 * (p * (p / m).log()).sum(-1) + 0.5 * (q * (q / m).log()).sum(-1),
        1.0: (q * (q / p).log()).sum(-1),
    }[beta]
    signal = LocalTeacher(teacher).score(batch)
    ours = objective_per_token(
        objective_of(recipe),
        student.head.logits(student.completion_hidden(batch)),
        signal.head.logits(signal.hidden_NH),
    )
    torch.testing.assert_close(ours, by_hand, rtol=1e-9, atol=1e-12)


@pytest.mark.report("CR-06", "TH-02")
def test_every_prompt_comes_once_per_epoch_in_an_order_of_its_own():
    prompts = random_prompts(10)
    order = PromptOrder(prompts, seed=0)
    seen = [order.of_step(number, 4) for number in range(5)]
    flat = [prompt.source for chosen in seen for prompt in chosen]
    assert sorted(flat[:10]) == sorted(flat[10:]) == sorted(prompt.source for prompt in prompts)
    assert flat[:10] != flat[10:]
    assert PromptOrder(prompts, seed=0).of_step(3, 4) == seen[3]
    assert PromptOrder(list(reversed(prompts)), seed=0).of_step(3, 4) == seen[3]  # rows may move within the file
    assert len(order.of_step(0, 25)) == 25


def test_the_practice_limit_grows_as_the_recipe_says():
    recipe = with_recipe(steps=100, max_practice_tokens=200, practice_growth=PracticeGrowth(start=0.25, until=0.5))
    assert [practice_limit_at(number, recipe) for number in (0, 25, 50, 99)] == [50, 125, 200, 200]
    assert practice_limit_at(0, with_recipe(max_practice_tokens=200)) == 200


@pytest.mark.report("GS-03")
def test_answers_to_the_same_prompt_are_different_answers():
    """Several answers per prompt, a row that stands twice in the file, a prompt that comes twice in one step."""
    once, twin = prompt_of([5, 9]), prompt_of([5, 9], occurrence=1)
    requests = practice_requests([prompt for prompt in (once, twin, once) for _ in range(4)], 0, RECIPE)
    assert len(requests) == 12
    assert len({request.key for request in requests}) == 12
    _, record = gradient_of_step(with_recipe(answers_per_prompt=4), prompts=random_prompts(2))
    assert record.num_answers == 8


def test_the_record_is_the_steps_own_count():
    _, record = gradient_of_step(RECIPE, stop_ids=())
    assert record.num_completion_tokens == 8 * 12
    assert record.cut_off_share == 1.0
    assert record.mean_length == record.max_length == record.practice_limit == 12
    assert record.engine_gap < 1e-6
    assert len(record.worst_tokens) == 5
    divergences = [worst.divergence for worst in record.worst_tokens]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[0] >= record.loss


@pytest.mark.report("LM-07")
def test_the_students_own_sample_is_never_made_likelier_for_its_own_sake():
    """With a teacher that agrees everywhere, any cross-entropy on the sample would leave a gradient; there is none."""
    gradient, _ = gradient_of_step(RECIPE, student=student_of(3), teacher=teacher_of(3))
    assert gradient.abs().max() == 0


def test_the_teacher_never_writes(monkeypatch):
    teacher = teacher_of()
    monkeypatch.setattr(type(teacher.model.module), "generate", _refuse)
    gradient_of_step(RECIPE, teacher=teacher)


def _refuse(*args, **kwargs):
    raise AssertionError("generate was called")


def test_a_copy_of_the_models_is_not_needed():
    """The student that writes is the module that trains: same storage, no copy to go stale."""
    state = state_of(student_of(), RECIPE)
    assert state.engine.model.module is state.student.module
    assert copy.copy(state).student is state.student
