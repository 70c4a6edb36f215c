"""What an answer is must not depend on how it was written: slots, neighbours, order, padding, cache or none."""

from __future__ import annotations

import pytest
import torch

from builders import tiny_llama, tiny_tokenizer
from limbeck.data.batch import collate
from limbeck.errors import Diverged
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import GREEDY, Purpose, Sampling, sample_tokens, stream_key, uniform
from pairs import decoder_of, language_model, random_prompts, tiny_model

WAYS = ("lean", "slots", "generate")
STOP = tuple(range(40, 60))  # a token in fifteen, so that answers end at many lengths


def engine_of(model, num_slots=8, way="lean"):
    return Engine(model, stop_ids=STOP, pad_id=0, num_slots=num_slots, decoder=decoder_of(model, way))


def requests_of(prompts, longest=24, step=0):
    return [
        GenerationRequest(
            prompt.ids, stream_key(1, Purpose.TRAINING, step, prompt.content_hash, prompt.occurrence, 0), longest
        )
        for prompt in prompts
    ]


def written_without_cache(model, request, sampling):
    """The reference: one row alone, a full forward pass for every token."""
    ids, logprobs = list(request.prompt_ids), []
    for position in range(request.max_new_tokens):
        with torch.no_grad():
            logits_V = model.module(torch.tensor([ids])).logits[0, -1, : model.head.num_real].float()
        drawn = sample_tokens(
            logits_V[None], torch.tensor([uniform(request.key, position)], dtype=torch.float64), sampling
        )
        ids.append(int(drawn))
        logprobs.append(logits_V.log_softmax(0)[ids[-1]].item())
        if ids[-1] in STOP:
            break
    return tuple(ids[len(request.prompt_ids) :]), logprobs


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY, Sampling(0.7, 0.9, 20)])
@pytest.mark.parametrize("way", WAYS)
def test_answers_equal_those_of_one_row_alone_without_cache(sampling, way):
    model = tiny_model()
    requests = requests_of(random_prompts(9))
    answers = engine_of(model, num_slots=4, way=way).generate(requests, sampling)
    for request, answer in zip(requests, answers, strict=True):
        ids, logprobs = written_without_cache(model, request, sampling)
        assert answer.ids == ids
        assert answer.logprobs == pytest.approx(logprobs, abs=2e-5)
    assert len({len(answer.ids) for answer in answers}) > 1  # some stop by themselves, so slots were refilled


@pytest.mark.report("EP-06")
@pytest.mark.parametrize("num_slots", [1, 2, 3, 7, 40])
def test_answers_are_token_equal_for_any_slot_count_and_order(num_slots):
    model = tiny_model(max_positions=256)
    prompts = random_prompts(8, shortest=3, longest=200)
    reference = engine_of(model, num_slots=8).generate(requests_of(prompts), Sampling())
    order = torch.randperm(8, generator=torch.Generator().manual_seed(num_slots)).tolist()
    shuffled = engine_of(model, num_slots).generate(requests_of([prompts[row] for row in order]), Sampling())
    for place, row in enumerate(order):
        assert shuffled[place].ids == reference[row].ids


@pytest.mark.report("EP-06")
def test_the_tokenizers_padding_side_is_neither_used_nor_changed():
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = "right"
    model = language_model(tiny_llama(tokenizer, scale=4.0), tokenizer)
    prompts = random_prompts(8)
    one = engine_of(model, 1).generate(requests_of(prompts), GREEDY)
    eight = engine_of(model, 8).generate(requests_of(prompts), GREEDY)
    assert [answer.ids for answer in one] == [answer.ids for answer in eight]
    assert tokenizer.padding_side == "right"


def test_log_probabilities_equal_those_of_the_training_pass():
    model = tiny_model()
    prompts = random_prompts(12)
    answers = engine_of(model, 5).generate(requests_of(prompts), Sampling())
    batch = collate(
        [prompt.ids for prompt in prompts], [answer.ids for answer in answers], pad_id=0, device=model.device
    )
    logits_NV = model.head.logits(model.completion_hidden(batch))
    trained_N = logits_NV.log_softmax(-1).gather(1, batch.targets_N[:, None])[:, 0]
    written_N = torch.tensor([logprob for answer in answers for logprob in answer.logprobs])
    assert (trained_N - written_N).abs().max() < 2e-4


def test_every_stop_token_ends_an_answer_and_belongs_to_it():
    answers = engine_of(tiny_model()).generate(requests_of(random_prompts(40), longest=30), Sampling())
    seen = {answer.ids[-1] for answer in answers if not answer.cut_off}
    assert seen < set(STOP)
    assert len(seen) > 5
    for answer in answers:
        assert not set(answer.ids[:-1]) & set(STOP)
        assert answer.cut_off == (answer.ids[-1] not in STOP)
        assert len(answer.ids) == 30 or not answer.cut_off


def test_each_request_has_its_own_limit():
    requests = [
        GenerationRequest(prompt.ids, stream_key(0, Purpose.TRAINING, 0, "0", row, 0), 1 + row)
        for row, prompt in enumerate(random_prompts(6))
    ]
    for way in WAYS:
        model = tiny_model()
        answers = Engine(model, stop_ids=(), pad_id=0, num_slots=4, decoder=decoder_of(model, way)).generate(
            requests, Sampling()
        )
        assert [len(answer.ids) for answer in answers] == [1, 2, 3, 4, 5, 6]
        assert all(answer.cut_off for answer in answers)


@pytest.mark.parametrize("way", WAYS)
def test_defaults_of_the_models_generation_config_do_not_leak(way):
    model = tiny_model()
    requests = requests_of(random_prompts(6))
    clean = engine_of(model, way=way).generate(requests, Sampling())
    own = model.module.generation_config
    own.repetition_penalty, own.suppress_tokens, own.temperature = 5.0, list(range(100)), 0.2
    own.no_repeat_ngram_size, own.max_new_tokens, own.eos_token_id, own.top_k = 1, 3, 77, 1
    assert engine_of(model, way=way).generate(requests, Sampling()) == clean
    assert model.module.generation_config is own


def test_padded_rows_of_the_head_are_never_drawn():
    tokenizer = tiny_tokenizer()
    module = tiny_llama(tokenizer, vocab_size=384)
    with torch.no_grad():
        module.get_output_embeddings().weight[300:] *= 50  # untrained rows may hold anything
    model = language_model(module, tokenizer, num_real=300)
    for way in WAYS:
        answers = engine_of(model, way=way).generate(requests_of(random_prompts(6)), Sampling())
        assert max(token for answer in answers for token in answer.ids) < 300


def test_the_stream_of_tokens_is_the_answer():
    model = tiny_model()
    requests = requests_of(random_prompts(5))
    events = list(engine_of(model, 2).stream(requests, Sampling()))
    answers = engine_of(model, 2).generate(requests, Sampling())
    for row, answer in enumerate(answers):
        own = [event for event in events if event.request == row]
        assert tuple(event.token for event in own) == answer.ids
        assert [event.end is None for event in own] == [True] * (len(own) - 1) + [False]


def test_weights_may_change_between_calls():
    model = tiny_model()
    engine = engine_of(model)
    requests = requests_of(random_prompts(5))
    before = engine.generate(requests, Sampling())
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    after = engine.generate(requests, Sampling())
    assert after != before
    assert after == engine_of(model).generate(requests, Sampling())


@pytest.mark.report("TH-01")
def test_logits_that_are_not_numbers_stop_the_writing():
    model = tiny_model()
    with torch.no_grad():
        next(model.module.model.layers[0].parameters())[0, 0] = torch.inf
    with pytest.raises(Diverged, match="not finite"):
        engine_of(model).generate(requests_of(random_prompts(3)), Sampling())


def test_no_requests_no_answers():
    assert engine_of(tiny_model()).generate([], Sampling()) == []
