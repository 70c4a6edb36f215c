"""A teacher that can count teaches a student that cannot: the whole route, from prompts to what the student then says.

Ids 3 to 27 count upwards and 27 is followed by the stop token, which is also the padding id. A signal that is off by
one position would teach the student to repeat or to skip, and a mask that hides the stop token would leave it running.
"""

from __future__ import annotations

import pytest
import torch

from builders import tiny_llama
from limbeck.data.batch import collate
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import GREEDY
from limbeck.teachers.local import LocalTeacher
from pairs import language_model, prompt_of, recipe_of, state_of, train

NUM_IDS, FIRST, LAST, STOP = 28, 3, 27, 2
RECIPE = recipe_of(
    steps=80, prompts_per_step=24, max_practice_tokens=8, learning_rate=5e-3, warmup_steps=10, decay_share=0.3,
)  # fmt: skip


def counting_model(seed):
    module = tiny_llama(vocab_size=NUM_IDS, hidden_size=32, num_layers=2, intermediate_size=64, seed=seed)
    return language_model(module, num_real=NUM_IDS)


def count_from(start, num):
    """`num` tokens after `start`, the stop token after the last number."""
    tokens = [*range(start + 1, LAST + 1), STOP]
    return tokens[:num]


@pytest.fixture(scope="module")
def teacher():
    model = counting_model(seed=1)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=5e-3)
    starts = list(range(FIRST, LAST + 1))
    batch = collate(
        [[start] for start in starts], [count_from(start, 9) for start in starts], pad_id=STOP, device=model.device
    )
    for _ in range(250):
        logits_NV = model.head.logits(model.completion_hidden(batch))
        loss = torch.nn.functional.cross_entropy(logits_NV, batch.targets_N)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    return LocalTeacher(model)


@pytest.mark.report("LM-06", "EP-01")
def test_the_student_learns_to_count_and_to_stop(teacher):
    student = counting_model(seed=5)
    state = state_of(student, RECIPE, stop_ids=(STOP,), num_slots=24)
    state.engine.pad_id = STOP
    prompts = [prompt_of([start], source=f"rows.jsonl:{start}") for start in range(FIRST, LAST + 1)]
    records = list(train(state, teacher, prompts, RECIPE))
    assert records[0].agreement < 0.3
    assert records[-1].agreement > 0.95
    assert records[-1].loss < 0.1 * records[0].loss
    answers = state.engine.generate([GenerationRequest(prompt.ids, 0, 64) for prompt in prompts[-6:]], GREEDY)
    for prompt, answer in zip(prompts[-6:], answers, strict=True):
        assert list(answer.ids) == count_from(prompt.ids[0], 64)
        assert not answer.cut_off
