from __future__ import annotations

import pytest
from transformers import GPT2Config, Qwen2Config

from limbeck.errors import Refusal
from limbeck.machine import probe_machine
from limbeck.planning.memory import plan_memory, refuse_if_too_large, size_of
from pairs import recipe_of

QWEN_3B = Qwen2Config(
    vocab_size=151_936, hidden_size=2048, intermediate_size=11_008, num_hidden_layers=36, num_attention_heads=16,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
QWEN_HALF_B = Qwen2Config(
    vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip


def plan_of(longest_prompt=100, **settings):
    return plan_memory(
        size_of(QWEN_HALF_B),
        size_of(QWEN_3B),
        recipe_of(**settings),
        probe_machine("cpu"),
        longest_prompt=longest_prompt,
    )


def test_a_3b_teacher_in_bf16_takes_about_6_gb():
    plan = plan_of(teacher_dtype="bfloat16")
    assert plan.components["teacher weights"] == pytest.approx(6.17e9, rel=0.01)  # 3.086 B parameters, 2 bytes each
    assert plan_of(teacher_dtype="float32").components["teacher weights"] == 2 * plan.components["teacher weights"]


def test_the_student_takes_four_times_its_weights():
    components = plan_of().components
    assert components["student weights"] == components["student gradients"] == pytest.approx(4 * 494e6, rel=0.01)
    assert components["optimizer (AdamW)"] == 2 * components["student weights"]


def test_with_adapters_only_they_have_gradients_and_moments():
    plan, full = plan_of(lora={"rank": 16}).components, plan_of().components
    # per layer 2 x (896 + 896) for q and o, 2 x (896 + 128) for k and v, 3 x (896 + 4864) for the MLP
    num_adapter = 16 * 24 * (2 * (896 + 896) + 2 * (896 + 128) + 3 * (896 + 4864))
    assert plan["student gradients"] == 4 * num_adapter
    assert plan["optimizer (AdamW)"] == 8 * num_adapter
    assert plan["student weights"] == full["student weights"] + 4 * num_adapter
    assert plan["gradient of the head"] == 0


def test_the_cache_is_counted_by_hand():
    plan = plan_of(longest_prompt=100, slots=10, max_practice_tokens=28)
    # keys and values, 10 slots of 128 positions, 24 layers, 2 heads of 64, 4 bytes
    assert plan.components["key/value cache"] == 2 * 10 * 128 * 24 * 2 * 64 * 4


def test_the_teacher_has_no_gradient_and_the_load_phase_no_optimizer():
    plan = plan_of()
    assert not any("teacher" in name and "gradient" in name for name in plan.components)
    assert "optimizer (AdamW)" not in plan.phases["load"]
    assert plan.peak_bytes == max(plan.phase_bytes(phase) for phase in plan.phases)


def test_a_pair_that_cannot_fit_is_refused_with_the_largest_part_and_a_way_out():
    plan = plan_of(teacher_dtype="float32", micro_batch_tokens=256, max_prompt_tokens=128, max_practice_tokens=128)
    too_large = type(plan)(plan.components, plan.phases, free_bytes=8 * 2**30)
    with pytest.raises(Refusal, match=r"teacher weights take 11\.5 GiB.*teacher_dtype: bfloat16") as caught:
        refuse_if_too_large(too_large)
    assert caught.value.exit_code == 3
    refuse_if_too_large(type(plan)(plan.components, plan.phases, free_bytes=10**12))


def test_configurations_with_other_names_are_understood():
    size = size_of(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=32))
    assert (size.hidden_size, size.num_layers, size.intermediate_size, size.key_value_size) == (64, 2, 256, 64)
    # embeddings 100·64 + 32·64, and 2 layers of 12·64² + 13·64, and the last norm
    assert size.num_parameters == 132 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64


def test_the_refusal_calls_phase_and_component_by_their_names_and_proposes_one_change():
    plan = plan_of(
        longest_prompt=16, slots=4000, micro_batch_tokens=128, max_practice_tokens=16, chunk_tokens=1, lora={}
    )
    assert plan.peak_phase == "write"
    with pytest.raises(Refusal, match=r"The generation phase needs about .* sampling take .* Lower slots\.") as caught:
        refuse_if_too_large(type(plan)(plan.components, plan.phases, free_bytes=2**30))
    assert caught.value.parameters["free_gib"] == 1.0
