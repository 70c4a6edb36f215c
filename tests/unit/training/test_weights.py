"""float32 masters beside a bfloat16 module, and weights in one piece."""

from __future__ import annotations

import pytest
import torch

from builders import tiny_llama, tiny_tokenizer
from limbeck.models.arena import joined, move_together
from limbeck.routes.on_policy import step
from limbeck.teachers.local import LocalTeacher, load_teacher_bf16_if_close
from limbeck.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from limbeck.training.weights import TrainedWeights
from pairs import random_prompts, recipe_of, state_of, tiny_model


@pytest.mark.parametrize("tied", [True, False])
def test_moving_weights_together_changes_no_value_and_no_tie(tied):
    module = tiny_llama(tiny_tokenizer(), tie_embeddings=tied)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    move_together(module)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.data_ptr() % 64 == 0
    assert (module.get_output_embeddings().weight is module.get_input_embeddings().weight) == tied
    attention = module.model.layers[0].self_attn
    weights = [attention.q_proj.weight.detach(), attention.k_proj.weight.detach(), attention.v_proj.weight.detach()]
    together = joined(weights)
    assert together.data_ptr() == weights[0].data_ptr()
    assert torch.equal(together, torch.cat(weights))
    assert torch.equal(joined([weights[0], weights[2]]), torch.cat([weights[0], weights[2]]))


def test_masters_keep_what_bfloat16_would_lose():
    model = tiny_model()
    weights = TrainedWeights(model.module, mixed=True)
    assert model.dtype == torch.bfloat16
    name, master = next(iter(weights.named.items()))
    assert master.dtype == torch.float32
    before = master.detach().clone()
    for _ in range(100):
        with torch.no_grad():
            master.add_(1e-6)
        weights.publish()
    assert (master - before - 1e-4).abs().max() < 3e-6
    working = dict(model.module.named_parameters())[name]
    assert torch.equal(working, master.bfloat16())
    weights.widen()
    assert model.dtype == torch.float32
    assert torch.equal(dict(model.module.named_parameters())[name], master)


def test_gradients_of_micro_batches_are_summed_in_float32():
    exact, rounded = tiny_model(scale=1.0), tiny_model(scale=1.0)
    weights = TrainedWeights(rounded.module, mixed=True)
    ids = torch.arange(3, 67).unsqueeze(0)
    for model in (exact, rounded):
        for part in ids.split(4, dim=1):
            model.module(part).logits.float().logsumexp(-1).sum().backward()
    for name, parameter in exact.module.named_parameters():
        master = weights.named[name]
        assert master.grad.dtype == torch.float32
        assert dict(rounded.module.named_parameters())[name].grad is None
        # what is left is the rounding of the passes themselves
        assert (master.grad - parameter.grad).norm() < 0.06 * parameter.grad.norm()


def test_a_mixed_step_is_close_to_a_float32_step():
    records, students = [], []
    for precision in ("float32", "bf16-mixed"):
        recipe = recipe_of(precision=precision, learning_rate=1e-3, max_practice_tokens=8, warmup_steps=0)
        state = state_of(tiny_model(scale=1.0), recipe)
        records.append(step(state, LocalTeacher(tiny_model(seed=1, scale=1.0)), random_prompts(8), recipe))
        students.append(state)
    full, mixed = records
    assert mixed.loss == pytest.approx(full.loss, rel=0.05)
    assert mixed.grad_norm == pytest.approx(full.grad_norm, rel=0.1)
    for name, weight in students[0].weights.named.items():
        assert (students[1].weights.named[name] - weight).abs().max() < 2.1e-3  # one step of Adam is at most the rate


def test_a_mixed_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path):
    recipe = recipe_of(precision="bf16-mixed", learning_rate=1e-3, max_practice_tokens=8, warmup_steps=0)
    teacher, prompts = LocalTeacher(tiny_model(seed=1)), random_prompts(8)

    def run(num_steps, state):
        for _ in range(num_steps):
            step(state, teacher, prompts, recipe)
            state.step += 1
        return state

    through = run(4, state_of(tiny_model(), recipe))
    save_checkpoint(tmp_path, run(2, state_of(tiny_model(), recipe)))
    resumed = state_of(tiny_model(), recipe)
    load_checkpoint(latest_checkpoint(tmp_path), resumed)
    run(2, resumed)
    for name, master in through.weights.named.items():
        assert torch.equal(master, resumed.weights.named[name])


def test_a_teacher_is_rounded_only_where_that_hardly_matters():
    student, prompts = tiny_model(), random_prompts(8)
    engine = state_of(student, recipe_of()).engine
    dtypes = []

    def load(seed):
        def of(dtype):
            dtypes.append(dtype)
            return tiny_model(seed=seed, dtype=dtype)

        return of

    teacher, found = load_teacher_bf16_if_close(load(1), student, engine, prompts)
    assert teacher.dtype == torch.bfloat16
    assert "reads in bfloat16" in found
    # the student itself as its teacher: next to nothing to learn, so rounding would be all there is
    teacher, found = load_teacher_bf16_if_close(load(0), student, engine, prompts)
    assert teacher.dtype == torch.float32
    assert "not in bfloat16" in found
    assert dtypes == [torch.float32, torch.float32, torch.float32]
