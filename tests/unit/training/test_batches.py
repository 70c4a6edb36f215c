"""Which answers share a micro-batch, and which prompts a step gets."""

from __future__ import annotations

import pytest
import torch

from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, stream_key
from limbeck.training.batches import PromptOrder, micro_batches
from pairs import prompt_of, random_prompts

CPU = torch.device("cpu")


def rows_of(lengths, max_tokens, **options):
    """The rows of each micro-batch, for prompts of 2 tokens and answers that fill up to `lengths`."""
    prompts = [prompt_of([5, 6 + row]) for row in range(len(lengths))]
    answers = [Completion((7,) * (length - 2), (0.0,) * (length - 2), True) for length in lengths]
    return micro_batches(prompts, answers, max_tokens=max_tokens, pad_id=9, device=CPU, **options)


@pytest.mark.parametrize(
    ("max_tokens", "rows"),
    [
        (1000, [(1, 3, 0, 4, 2)]),
        (20, [(1, 3), (0, 4, 2)]),  # 2 x 10 tokens fit exactly, 3 x 6 follow
        (19, [(1,), (3, 0), (4, 2)]),  # 2 x 10 are one too many, 3 x 9 far too many, 3 x 6 would fit
        (18, [(1,), (3, 0), (4, 2)]),
        (17, [(1,), (3,), (0, 4), (2,)]),
        (5, [(1,), (3,), (0,), (4,), (2,)]),  # longer than a batch may be: one each
    ],
)
def test_a_micro_batch_holds_as_many_padded_rows_as_fit_the_longest_first(max_tokens, rows):
    assert [batch.rows for batch in rows_of([6, 10, 3, 9, 6], max_tokens)] == rows


def test_a_micro_batch_is_the_padded_text_of_its_rows():
    first, second = rows_of([4, 3, 6], 8)
    assert first.rows == (2,)
    assert second.rows == (0, 1)
    assert first.tokens.ids_BT.tolist() == [[5, 8, 7, 7, 7, 7]]
    assert second.tokens.ids_BT.tolist() == [[5, 6, 7, 7], [5, 7, 7, 9]]
    assert first.tokens.context is None
    assert second.tokens.context is None


def test_rows_share_what_they_begin_with_only_where_that_is_asked_for():
    start = list(range(10, 210))
    prompts = [prompt_of([*start, 5]), prompt_of([*start, 6])]
    answers = [Completion((7,), (0.0,), True)] * 2
    options = {"max_tokens": 1000, "pad_id": 0, "device": CPU}
    (whole,) = micro_batches(prompts, answers, **options)
    (shared,) = micro_batches(prompts, answers, **options, share=True)
    assert whole.tokens.context is None
    assert whole.tokens.ids_BT.shape == (2, 202)
    assert shared.tokens.context is not None
    assert shared.tokens.ids_BT.tolist() == [[5, 7], [6, 7]]


def sources(prompts):
    return [prompt.source for prompt in prompts]


def test_the_order_of_an_epoch_is_that_of_its_keys():
    """Derived with the key of each prompt: seed, the purpose of ordering, the epoch in the place of the step."""
    prompts = random_prompts(9)

    def epoch(number, seed):
        keys = {
            stream_key(seed, Purpose.ORDER, number, prompt.content_hash, prompt.occurrence, 0): prompt.source
            for prompt in prompts
        }
        return [keys[key] for key in sorted(keys)]

    for seed in (0, 3):
        expected = [source for number in range(4) for source in epoch(number, seed)]
        order = PromptOrder(prompts, seed)
        found = [source for step in range(9) for source in sources(order.of_step(step, 4))]
        assert found == expected
        assert sources(order.of_step(0, 20)) == expected[:20]  # more than two epochs in one step
        assert sources(order.of_step(4, 4)) == expected[16:20]  # and back again
    assert epoch(0, 0) != epoch(1, 0) != epoch(0, 3) != epoch(0, 0)


def test_prompts_of_the_same_text_stand_at_places_of_their_own():
    twins = [prompt_of([5, 9], occurrence=number, source=f"rows.jsonl:{number}") for number in range(6)]
    assert sources(PromptOrder(twins, 0).of_step(0, 6)) != sources(twins)
    assert sorted(sources(PromptOrder(twins, 0).of_step(0, 6))) == sources(twins)


def test_an_epoch_is_ordered_once(monkeypatch):
    asked = []
    place = PromptOrder._place
    monkeypatch.setattr(
        PromptOrder, "_place", lambda self, epoch, prompt: asked.append(epoch) or place(self, epoch, prompt)
    )
    order = PromptOrder(random_prompts(8), 0)
    for step in range(4):
        order.of_step(step, 4)
    assert asked == [0] * 8 + [1] * 8
