"""Reading once what several answers begin with changes neither what is read nor what is learnt."""

from __future__ import annotations

import pytest
import torch
import transformers

from builders import tiny_tokenizer
from limbeck.data.batch import collate, worthwhile_start
from limbeck.objectives.fused import fused_divergence
from limbeck.objectives.objective import Objective
from limbeck.objectives.reduce import token_weights
from pairs import in_float64, language_model, random_prompts, tiny_model

START = tuple(range(7, 47))
CPU = torch.device("cpu")


def texts(*, start=START, times=1):
    prompts = [start + prompt.ids for prompt in random_prompts(4, longest=12) for _ in range(times)]
    answers = [prompt.ids for prompt in random_prompts(len(prompts), longest=9, seed=1)]
    return prompts, answers


def gradients(model, teacher, batch):
    model.module.zero_grad()
    weights_N = token_weights(batch.num_tokens, batch.num_tokens, dtype=torch.float64, device=CPU)
    with torch.no_grad():
        teacher_NH = teacher.completion_hidden(batch)
    loss, _ = fused_divergence(
        model.completion_hidden(batch), model.head, teacher_NH, teacher.head, weights_N, Objective(beta=0.5)
    )
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in model.module.named_parameters()}


# a start in common, the same prompt several times, and both: contexts within contexts
@pytest.mark.parametrize(("start", "times"), [(START, 1), ((), 6), (START, 3)])
def test_loss_and_gradient_are_those_of_whole_rows(start, times):
    student = tiny_model(dtype=torch.float64, num_layers=3)
    teacher = tiny_model(seed=1, dtype=torch.float64)
    prompts, answers = texts(start=start, times=times)
    whole = collate(prompts, answers, pad_id=0, device=CPU)
    shared = collate(prompts, answers, pad_id=0, device=CPU, share=True)
    assert whole.context is None
    assert shared.context is not None
    assert shared.ids_BT.numel() < whole.ids_BT.numel()
    assert torch.equal(whole.targets_N, shared.targets_N)
    (loss, expected), (loss_shared, got) = (gradients(student, teacher, batch) for batch in (whole, shared))
    assert loss_shared == pytest.approx(loss, rel=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-10, atol=1e-12)


def test_a_prompt_of_one_token_and_an_empty_answer_fit_in():
    student = tiny_model(dtype=torch.float64)
    prompts = [(5,)] * 70 + [(5, 6, 7)] * 40
    answers = [(8, 9)] * 109 + [()]
    whole, shared = (collate(prompts, answers, pad_id=0, device=CPU, share=share) for share in (False, True))
    torch.testing.assert_close(
        student.completion_hidden(shared), student.completion_hidden(whole), rtol=1e-10, atol=1e-12
    )


def test_little_in_common_is_not_shared():
    prompts, answers = texts(start=(3,))
    assert collate(prompts, answers, pad_id=0, device=CPU, share=True).context is None


def test_a_start_in_common_leaves_each_prompt_a_token():
    long = tuple(range(100))
    assert worthwhile_start([long, long, (*long, 4)]) == 99
    assert worthwhile_start([[*long, 1], [*long, 2, 3]]) == 100
    assert worthwhile_start([long, (9, *long)]) == 0
    assert worthwhile_start([(1,), long]) == 0


def test_a_sliding_window_reaches_into_the_context():
    config = transformers.MistralConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=12,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = in_float64(transformers.AutoModelForCausalLM.from_config(config))
    model = language_model(module, tiny_tokenizer())
    prompts, answers = texts()
    whole, shared = (collate(prompts, answers, pad_id=0, device=CPU, share=share) for share in (False, True))
    assert shared.context is not None
    torch.testing.assert_close(model.completion_hidden(shared), model.completion_hidden(whole), rtol=1e-10, atol=1e-12)
