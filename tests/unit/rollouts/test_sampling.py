from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limbeck.errors import RecipeError
from limbeck.rollouts.sampling import (
    GREEDY,
    Purpose,
    Sampling,
    _keep_nucleus,
    draw_tokens,
    sample_tokens,
    stream_key,
    uniform,
)

COUNTERS = (7, Purpose.TRAINING, 3, "ab" * 32, 0, 0)


def test_each_counter_changes_the_key():
    keys = {stream_key(*COUNTERS)}
    for place, other in enumerate((8, Purpose.EVALUATION, 4, "cd" * 32, 1, 1)):
        keys.add(stream_key(*COUNTERS[:place], other, *COUNTERS[place + 1 :]))
    assert len(keys) == 7


def test_each_purpose_has_numbers_of_its_own():
    keys = {stream_key(7, purpose, 3, "ab" * 32, 0, 0) for purpose in Purpose}
    assert len(keys) == len(Purpose) == 5
    # part of what a run is: another number would give every stored run other answers when it goes on
    assert [int(purpose) for purpose in Purpose] == [0, 1, 2, 3, 4]


def test_the_hash_is_splitmix64():
    """Its first five numbers from the seed 1234567, as published with the reference implementation's ports."""
    published = (
        *(6457827717110365317, 3203168211198807973, 9817491932198370423),
        *(4593380528125082431, 16408922859458223821),
    )
    assert [uniform(1234567, position) for position in range(5)] == [(number >> 11) / 2**53 for number in published]


def splitmix64(state):
    """One output of SplitMix64 for a state that was advanced already, in numpy's 64-bit arithmetic."""
    with np.errstate(over="ignore"):
        mixed = np.uint64(state)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1, -1])
def test_the_key_takes_in_one_counter_after_the_other(seed):
    content = "0123456789abcdef" + "f" * 48
    key, step = np.uint64(0), np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for counter in (seed % 2**64, 2, 11, 0x0123456789ABCDEF, 5, 6):
            key = splitmix64(key + np.uint64(counter) + step)
    assert stream_key(seed, Purpose.TEACHER, 11, content, 5, 6) == int(key)


@given(st.integers(0, 2**63), st.integers(0, 10**6))
def test_uniforms_lie_in_the_unit_interval_and_repeat(key, position):
    value = uniform(key, position)
    assert 0 <= value < 1
    assert value == uniform(key, position)


def test_uniforms_are_even():
    values = torch.tensor(
        [uniform(stream_key(*COUNTERS[:5], sample), position) for sample in range(200) for position in range(50)]
    )
    counts = torch.histc(values.double(), bins=20, min=0, max=1)
    # 10,000 draws, 500 expected a bin: chi-square with 19 degrees of freedom is above 52 once in 20,000 times
    assert ((counts - 500) ** 2 / 500).sum() < 52
    assert abs(torch.corrcoef(torch.stack([values[:-1], values[1:]]))[0, 1]) < 0.05


def test_inverse_cdf_takes_the_interval_that_holds_the_uniform():
    logits_SV = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).log().repeat(5, 1)
    uniforms_S = torch.tensor([0.0, 0.499999, 0.500001, 0.749999, 0.999999999], dtype=torch.float64)
    # the id with probability 0 has an empty interval
    assert sample_tokens(logits_SV, uniforms_S, Sampling()).tolist() == [0, 0, 2, 2, 3]


def test_the_largest_uniform_never_leaves_the_vocabulary():
    logits_SV = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    logits_SV[:, 700:] = -torch.inf
    ids_S = sample_tokens(logits_SV, torch.full((64,), 1 - 2**-53, dtype=torch.float64), Sampling())
    assert ids_S.max() < 700


def test_frequencies_follow_the_tempered_distribution():
    logits_V = torch.tensor([2.0, 1.0, 0.0, -1.0])
    draws = 20_000
    uniforms_S = torch.tensor(
        [uniform(stream_key(*COUNTERS[:5], sample), 0) for sample in range(draws)], dtype=torch.float64
    )
    counts = Counter(sample_tokens(logits_V.expand(draws, 4), uniforms_S, Sampling(temperature=2.0)).tolist())
    expected = (logits_V / 2).softmax(0)
    for token in range(4):
        # five standard deviations
        assert abs(counts[token] / draws - expected[token]) < 5 * (expected[token] / draws) ** 0.5


def test_top_k_and_top_p_keep_the_likeliest():
    logits_SV = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log().expand(1000, 4)
    uniforms_S = torch.linspace(0, 0.999, 1000, dtype=torch.float64)
    kept_by_k = sample_tokens(logits_SV, uniforms_S, Sampling(top_k=2))
    # 0.4 + 0.3 reaches 0.65, and the token that crosses the line belongs to the nucleus
    kept_by_p = sample_tokens(logits_SV, uniforms_S, Sampling(top_p=0.65))
    assert set(kept_by_k.tolist()) == set(kept_by_p.tolist()) == {1, 3}
    assert (kept_by_k == 1).double().mean() == pytest.approx(4 / 7, abs=0.002)
    tiny_p = sample_tokens(logits_SV, uniforms_S, Sampling(top_p=0.01))
    assert set(tiny_p.tolist()) == {1}


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.5, 1), (0.5 + 1e-9, 2), (0.75, 2), (0.75 + 1e-9, 3), (0.875, 3), (0.875 + 1e-9, 4)]
)
def test_a_nucleus_that_reaches_top_p_exactly_is_full(top_p, kept):
    weights_SV = torch.tensor([[0.25, 1.0, 0.5, 0.25], [0.5, 0.25, 0.25, 1.0]], dtype=torch.float64)
    order = [[1, 2, 0, 3], [3, 0, 1, 2]]  # of two equal weights, the first comes first
    expected_SV = torch.zeros_like(weights_SV)
    for row, ids in enumerate(order):
        expected_SV[row, ids[:kept]] = weights_SV[row, ids[:kept]]
    assert torch.equal(_keep_nucleus(weights_SV, top_p), expected_SV)


def test_equal_tokens_at_the_edge_of_top_k_are_all_kept():
    logits_SV = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]]).expand(1000, 5)
    uniforms_S = torch.linspace(0, 0.999, 1000, dtype=torch.float64)
    assert set(sample_tokens(logits_SV, uniforms_S, Sampling(top_k=2)).tolist()) == {1, 2, 3}
    assert set(sample_tokens(logits_SV, uniforms_S, Sampling(top_k=4)).tolist()) == {0, 1, 2, 3}
    assert set(sample_tokens(logits_SV, uniforms_S, Sampling(top_k=1)).tolist()) == {1}
    for every in (0, 5, 9):
        assert set(sample_tokens(logits_SV, uniforms_S, Sampling(top_k=every)).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.report("GS-02")
def test_temperature_zero_takes_the_likeliest():
    logits_SV = torch.randn(32, 50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sample_tokens(logits_SV, torch.zeros(32, dtype=torch.float64), GREEDY), logits_SV.argmax(1))


@pytest.mark.report("GS-02")
@pytest.mark.parametrize("temperature", [1e-9, 1e-300, 5e-324])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_a_tiny_temperature_takes_the_likeliest_and_never_overflows(temperature, more):
    logits_SV = 100 * torch.randn(32, 50, generator=torch.Generator().manual_seed(1))
    uniforms_S = torch.linspace(0, 1 - 2**-53, 32, dtype=torch.float64)
    ids_S, logprobs_S = draw_tokens(logits_SV, uniforms_S, Sampling(temperature, **more))
    assert torch.equal(ids_S, logits_SV.argmax(1))
    assert torch.isfinite(logprobs_S).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(RecipeError, match="sampling"):
        Sampling(**wrong)


@pytest.mark.parametrize("num_vocabulary", [1, 7, 255, 256, 257, 5000])
def test_the_two_stages_draw_what_one_long_sum_draws(num_vocabulary):
    generator = torch.Generator().manual_seed(num_vocabulary)
    logits_SV = 4 * torch.randn(400, num_vocabulary, generator=generator)
    logits_SV[:, ::3] = -torch.inf if num_vocabulary > 3 else logits_SV[:, ::3]
    uniforms_S = torch.rand(400, dtype=torch.float64, generator=generator)
    ids_S, logprobs_S = draw_tokens(logits_SV, uniforms_S, Sampling())
    assert torch.equal(ids_S, sample_tokens(logits_SV, uniforms_S, Sampling()))
    own_S = logits_SV.double().log_softmax(-1).gather(1, ids_S[:, None])[:, 0]
    assert (logprobs_S - own_S).abs().max() < 1e-5
    for sampling in (GREEDY, Sampling(0.7), Sampling(top_p=0.9), Sampling(top_k=2)):
        ids_S, logprobs_S = draw_tokens(logits_SV, uniforms_S, sampling)
        assert torch.equal(ids_S, sample_tokens(logits_SV, uniforms_S, sampling))
        own_S = logits_SV.double().log_softmax(-1).gather(1, ids_S[:, None])[:, 0]
        assert (logprobs_S - own_S).abs().max() < 1e-5


def test_logits_that_are_not_numbers_say_so():
    logits_SV = torch.zeros(3, 600)
    logits_SV[0, 5], logits_SV[1, 5] = torch.nan, torch.inf
    _, logprobs_S = draw_tokens(logits_SV, torch.tensor([0.1, 0.9, 0.999999], dtype=torch.float64), Sampling())
    assert torch.isfinite(logprobs_S).tolist() == [False, False, True]
