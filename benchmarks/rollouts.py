"""The rollout engine against transformers' `generate`: useful tokens a second, in turn in one process.

    python benchmarks/rollouts.py [--cases 1x64,8x64,32x64,natural] [--formats float32,bf16] [--rounds 3] [--save]

A case PROMPTSxTOKENS is the ten-layer student with exactly so many tokens for each prompt, all prompts at once;
`natural` is the 135M model, 64 prompts, at most 128 tokens, where tokens after an answer's stop token are useless and
not counted. Both draw at temperature 1 from all tokens. `generate` gets one batch, padded on the left, with its usual
cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import Shape, Table, about_here, figure, finish, models_cache, shape_of
from transformers import GenerationConfig

from limbeck.data.prompt import Prompt
from limbeck.machine import tune_process, use_machine
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import Purpose, Sampling, stream_key
from limbeck.training.generation import choose_method, engine_for
from limbeck.training.material import Material, prepare_material

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
NATURAL_PROMPTS = 64

# Writes answers to the prompts of a round; returns how many useful tokens they have.
Writer = Callable[[int], int]


def case_of(text: str) -> Shape:
    shape = shape_of(text)
    return shape if shape.exact else replace(shape, num_prompts=NATURAL_PROMPTS)


def prompts_of(material: Material, case: Shape, number: int) -> list[Prompt]:
    prompts = material.train.prompts
    return [prompts[(number * case.num_prompts + place) % len(prompts)] for place in range(case.num_prompts)]


def engine_writer(model: LanguageModel, material: Material, case: Shape) -> Writer:
    """Limbeck's engine with a slot for each prompt, set up as a run does it."""
    max_length = material.longest_prompt + case.new_tokens
    writing = choose_method(model, max_length=max_length, pad_id=material.dialogue.pad_id)
    stop_ids = () if case.exact else material.dialogue.stop.ids
    dialogue = replace(material.dialogue, stop=replace(material.dialogue.stop, ids=stop_ids))
    engine = engine_for(model, dialogue, writing.decoder, num_slots=case.num_prompts)

    def write(number: int) -> int:
        requests = [
            GenerationRequest(
                prompt.ids,
                stream_key(0, Purpose.TRAINING, number, prompt.content_hash, prompt.occurrence, 0),
                case.new_tokens,
            )
            for prompt in prompts_of(material, case, number)
        ]
        return sum(len(answer.ids) for answer in engine.generate(requests, Sampling()))

    return write


def generate_writer(model: LanguageModel, material: Material, case: Shape) -> Writer:
    """transformers' `generate`, one batch."""
    module: Any = model.module
    stop = torch.tensor(sorted(material.dialogue.stop.ids))
    config = GenerationConfig(
        max_new_tokens=case.new_tokens,
        min_new_tokens=case.new_tokens if case.exact else None,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=stop.tolist(),
        pad_token_id=material.dialogue.pad_id,
    )

    def write(number: int) -> int:
        prompts = [prompt.ids for prompt in prompts_of(material, case, number)]
        width = max(map(len, prompts))
        ids_BT = torch.tensor([(material.dialogue.pad_id,) * (width - len(prompt)) + prompt for prompt in prompts])
        mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.no_grad():
            written_BT = module.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=config)
        stopped_BT = torch.isin(written_BT[:, width:], stop).int()
        # a token is useful if no stop token stands before it
        return int((stopped_BT.cumsum(1) - stopped_BT == 0).sum())

    return write


def measure(writers: dict[str, Writer], rounds: int) -> dict[str, list[float]]:
    """Useful tokens a second of each writer in each round, in turn; one round before them warms up."""
    found: dict[str, list[float]] = {name: [] for name in writers}
    for number in range(rounds + 1):
        for name, write in writers.items():
            started = time.perf_counter()
            num_tokens = write(number)
            if number:
                found[name].append(num_tokens / (time.perf_counter() - started))
    return found


def table_of(case: Shape, speeds: dict[str, list[float]]) -> Table:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    against = [name for name in medians if name.startswith("generate")]
    rows = tuple(
        (
            name,
            figure(median),
            f"{figure(min(speeds[name]))}-{figure(max(speeds[name]))}",
            *(figure(median / medians[other]) for other in against),
        )
        for name, median in medians.items()
    )
    what = f"exactly {case.new_tokens}" if case.exact else f"at most {case.new_tokens}"
    model = "the 135M model" if case.student == "teacher" else "the ten-layer student"
    columns = ("writer", "useful tokens/s", "min-max", *(f"x {name}" for name in against))
    return Table(f"{case.name}: {model}, {case.num_prompts} prompts, {what} tokens", columns, rows)


def load(case: Shape, names: Sequence[str], cache: Path) -> dict[str, LanguageModel]:
    ref = parse_ref(str(cache / case.student), workspace=cache)
    options = {"trainable": False, "device": torch.device("cpu")}
    return {name: load_model(ref, dtype=DTYPES[name], **options) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1x64,8x64,32x64,natural")
    parser.add_argument("--formats", default="float32,bf16", help="number formats of the weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="keep the figures as the baseline")
    options = parser.parse_args()
    tune_process()
    use_machine("cpu")
    cache = models_cache()
    tables, results = [], {}
    for text in options.cases.split(","):
        case = case_of(text)
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            recipe = Recipe(
                student=str(cache / case.student),
                teacher=str(cache / "teacher"),
                prompts=str(cache / "prompts" / "on_policy.jsonl"),
                held_out=str(cache / "prompts" / "held_out.jsonl"),
                workspace=folder,
            )
            material = prepare_material(recipe)
        writers: dict[str, Writer] = {}
        for name, model in load(case, options.formats.split(","), cache).items():
            model = model.with_vocabulary(material.vocabulary.num_shared)
            writers[f"generate {name}"] = generate_writer(model, material, case)
            writers[f"limbeck {name}"] = engine_writer(model, material, case)
        speeds = measure(writers, options.rounds)
        tables.append(table_of(case, speeds))
        results[case.name] = speeds
    finish("rollouts", tables, results, about_here(), save=options.save)


if __name__ == "__main__":
    main()
