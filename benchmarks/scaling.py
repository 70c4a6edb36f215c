"""Does a step's cost grow at most linearly? Seconds and memory as prompts, answer length and vocabulary grow.

    python benchmarks/scaling.py [--series prompts,length,vocabulary] [--precision float32] [--steps 3] [--save]

    prompts      8, 16, 32, 64 prompts a step with exactly 64 new tokens, the real pair
    length       8 prompts with exactly 32, 64, 128, 256 new tokens, the real pair
    vocabulary   8 prompts with exactly 32 new tokens, two-layer models with 12,288, 49,152 and 196,608 ids

Every point is a process of its own (limbeck_side.py), so that its peak memory is its own. A cost grows at most linearly
if no point takes more time for each unit (a token; for the vocabulary, an id and token) than the one before, but for
noise (10 %). Memory is the whole process's peak; what it grows by for each unit is beside it: a buffer of
tokens x vocabulary would add 192 KiB a token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import Shape, Table, about_here, figure, finish, models_cache
from sides import Side

PROMPTS = (8, 16, 32, 64)
LENGTHS = (32, 64, 128, 256)
VOCABULARIES = (12_288, 49_152, 196_608)
NOISE = 1.1
CHAT_TEMPLATE = (
    "{% for message in messages %}<start> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<start>{% endif %}"
)


def plant_pair(folder: Path, num_ids: int) -> dict[str, str]:
    """Save a random two-layer pair whose tokenizer has a word for each of `num_ids` ids, and prompts of such words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    special = ["<unknown>", "<start>", "<end>"]
    words = {word: number for number, word in enumerate([*special, *(f"w{n}" for n in range(num_ids - len(special)))])}
    core = Tokenizer(models.WordLevel(words, unk_token=special[0]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unknown>", bos_token="<start>", eos_token="<end>", pad_token="<unknown>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    for seed, name in enumerate(("student", "teacher")):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=num_ids,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=3,
            max_position_embeddings=512,
            tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config)
        model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for name, first in (("prompts", 0), ("held_out", 500)):
        texts = (" ".join(f"w{7 * place + number}" for place in range(24)) for number in range(first, first + 64))
        lines = [json.dumps({"prompt": [{"role": "user", "content": text}]}) + "\n" for text in texts]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return pair_paths(folder / "student", folder / "teacher", folder / "prompts.jsonl", folder / "held_out.jsonl")


def pair_paths(student: Path, teacher: Path, prompts: Path, held_out: Path) -> dict[str, str]:
    return {"student": str(student), "teacher": str(teacher), "prompts": str(prompts), "held_out": str(held_out)}


def real_pair() -> dict[str, str]:
    cache = models_cache()
    prompts = cache / "prompts"
    return pair_paths(cache / "student", cache / "teacher", prompts / "on_policy.jsonl", prompts / "held_out.jsonl")


def measure(shape: Shape, pair: dict[str, str], precision: str, steps: int) -> dict[str, Any]:
    """Median seconds of a step and its phases, and the peak, in a process of its own; one step warms up."""
    with tempfile.TemporaryDirectory() as folder:
        spec = {
            **pair,
            "precision": precision,
            "shape": asdict(shape),
            "workspace": folder,
            "beta": 1.0,
            "learning_rate": 1e-6,
            "max_grad_norm": 1.0,
            "seed": 0,
            "device": "cpu",
            "gradient_path": None,
        }
        with Side(shape.name, Path(sys.executable), "limbeck_side.py", spec, Path(folder) / "log") as side:
            said = [side.ask(round=number) for number in range(steps + 1)][1:]
    return {
        "step_s": statistics.median(step["step_s"] for step in said),
        "phase_s": {phase: statistics.median(step["seconds"][phase] for step in said) for phase in said[0]["seconds"]},
        "num_tokens": said[0]["num_tokens"],
        "peak_bytes": max(step["peak_bytes"] for step in said),
    }


def measure_series(name: str, precision: str, steps: int) -> list[tuple[int, dict[str, Any]]]:
    points: list[tuple[int, dict[str, Any]]] = []
    if name == "vocabulary":
        for size in VOCABULARIES:
            with tempfile.TemporaryDirectory() as folder:
                pair = plant_pair(Path(folder), size)
                points.append((size, measure(Shape(f"{size} ids", 8, 32, exact=True), pair, precision, steps)))
        return points
    for size in PROMPTS if name == "prompts" else LENGTHS:
        num_prompts, new_tokens = (size, 64) if name == "prompts" else (8, size)
        shape = Shape(f"{num_prompts}x{new_tokens}", num_prompts, new_tokens, exact=True)
        print(shape.name, file=sys.stderr, flush=True)
        points.append((size, measure(shape, real_pair(), precision, steps)))
    return points


def unit_costs(name: str, points: list[tuple[int, dict[str, Any]]]) -> list[float]:
    """Microseconds for each unit of a series: a token, or an id and token."""
    return [
        1e6 * point["step_s"] / (point["num_tokens"] * (size if name == "vocabulary" else 1)) for size, point in points
    ]


def is_linear(costs: list[float]) -> bool:
    """Whether no point pays more for a unit than the one before, but for noise."""
    return all(after <= NOISE * before for before, after in pairwise(costs))


def table_of(name: str, points: list[tuple[int, dict[str, Any]]]) -> Table:
    unit = "id and token" if name == "vocabulary" else "token"
    costs = unit_costs(name, points)
    rows = []
    before: tuple[int, float] | None = None
    for (size, point), cost in zip(points, costs, strict=True):
        units = size if name == "vocabulary" else point["num_tokens"]
        growth = "" if before is None else figure((point["peak_bytes"] - before[1]) / 2**10 / (units - before[0]))
        before = (units, point["peak_bytes"])
        phases = (figure(1e6 * seconds / point["num_tokens"]) for seconds in point["phase_s"].values())
        peak = figure(point["peak_bytes"] / 2**30)
        rows.append((f"{size:,}", figure(point["step_s"]), figure(cost), *phases, peak, growth))
    phases = (f"{phase} µs/token" for phase in points[0][1]["phase_s"])
    last = "KiB more per id" if name == "vocabulary" else "KiB more per token"
    columns = (name, "s/step", f"µs per {unit}", *phases, "peak GiB", last)
    verdict = "at most linear" if is_linear(costs) else "more than linear"
    return Table(f"{name}: {verdict}", columns, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", default="prompts,length,vocabulary")
    parser.add_argument("--precision", default="float32", help="the recipe's precision")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="keep the figures as the baseline")
    options = parser.parse_args()
    found = {name: measure_series(name, options.precision, options.steps) for name in options.series.split(",")}
    results = {name: {str(size): point for size, point in points} for name, points in found.items()}
    tables = [table_of(name, points) for name, points in found.items()]
    finish("scaling", tables, results, about_here(), save=options.save)


if __name__ == "__main__":
    main()
