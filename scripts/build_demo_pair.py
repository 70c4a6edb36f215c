"""Builds the demo's pair from nothing: a tokenizer, a teacher, and a smaller student that was trained too briefly.

    python scripts/build_demo_pair.py --out DIR

Both models learn the demo's task by plain supervised training on its right answers. The teacher trains to the end. The
student is taken out early, as soon as it gets about a third of a validation set right; then its training goes on to
the end, to show what its size can reach. Held-out prompts are only measured, at the end, on the folders as written.

Shape suffixes: B sequences, T positions, N answer tokens of the batch, V vocabulary, H hidden.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from limbeck.console import Printer
from limbeck.embedded.task import Example, examples, grade
from limbeck.errors import ModelError

__all__ = ["STUDENT", "TEACHER", "Plan", "Shape", "build_pair", "build_tokenizer", "new_model"]

# Their ids are their places here: a BPE trainer numbers special tokens first.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT_ID, END_OF_TURN_ID = 0, 2
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What may become one token, left to right: a JSON key with its punctuation; two digits; a capitalised word without
# the space before it, so that a name is the same token in the message and in the answer; any other word with it.
PIECES = r"""\{"\p{L}+":"|",?"\p{L}+":"?|,"\p{L}+":"?|\p{N}{1,2}|\p{Lu}\p{L}*| ?\p{Ll}\p{L}*| ?[^\s\p{L}\p{N}]+|\s+"""
MAX_VOCABULARY = 1024
MAX_ANSWER_TOKENS = 40
MAX_POSITIONS = 512

TOKENIZER_SEED, TEACHER_SEED, STUDENT_SEED, TRAIN_SEED, VALIDATION_SEED, HELD_OUT_SEED = 11, 0, 0, 1, 5, 2


@dataclass(frozen=True)
class Shape:
    """The size of a Llama-type model."""

    layers: int
    width: int
    heads: int
    inner: int


TEACHER = Shape(layers=4, width=192, heads=3, inner=512)
STUDENT = Shape(layers=3, width=144, heads=3, inner=384)


@dataclass(frozen=True)
class Plan:
    """How long the two models learn, and when the student is taken out."""

    num_examples: int = 40_000
    teacher_steps: int = 400
    student_steps: int = 400
    batch: int = 32
    learning_rate: float = 3e-3
    warmup_steps: int = 30
    # The student is taken out at the first check at or above `take_at`; a build whose figures miss the windows fails.
    check_from: int = 200
    check_every: int = 3
    num_validation: int = 300
    take_at: float = 0.29
    student_window: tuple[float, float] = (0.20, 0.40)
    teacher_at_least: float = 0.95
    num_held_out: int = 300


QUICK = Plan(
    num_examples=200,
    teacher_steps=4,
    student_steps=4,
    batch=8,
    warmup_steps=2,
    check_from=2,
    check_every=1,
    num_validation=4,
    take_at=0.0,
    student_window=(0.0, 1.0),
    teacher_at_least=0.0,
    num_held_out=8,
)


@dataclass(frozen=True)
class Sample:
    """An example as token ids: the rendered prompt, and the answer with its stop token."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer for the task's texts, with the ChatML template."""
    bpe = Tokenizer(models.BPE())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), bytes_of])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"user\n{each.message}\nassistant\n{each.answer}" for each in examples(TOKENIZER_SEED, 4000)]
    # Every pair of digits becomes a token, also those that are rare in dates and amounts.
    every_pair = " ".join(f"{number:02d}" for number in range(100))
    bpe.train_from_iterator([*texts, *([every_pair] * 500)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=SPECIAL_TOKENS[END_OF_TURN_ID],
        pad_token=SPECIAL_TOKENS[END_OF_TEXT_ID],
        chat_template=CHATML,
        model_max_length=MAX_POSITIONS,
    )


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """An untrained model with tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_OF_TURN_ID,
        pad_token_id=END_OF_TEXT_ID,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=END_OF_TURN_ID, pad_token_id=END_OF_TEXT_ID)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, example: Example) -> Sample:
    """The example as the model sees it."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": example.message}], tokenize=False, add_generation_prompt=True
    )
    answer_ids = tokenizer.encode(example.answer, add_special_tokens=False)
    return Sample(
        prompt_ids=tuple(tokenizer.encode(str(text), add_special_tokens=False)),
        answer_ids=(*answer_ids, END_OF_TURN_ID),
    )


def learn(
    model: LlamaForCausalLM, samples: Sequence[Sample], plan: Plan, num_steps: int, seed: int
) -> Iterator[tuple[int, float]]:
    """Supervised training on the answer tokens; yields after each step: steps done and the mean loss in nats."""
    optimizers = _optimizers(model, plan.learning_rate)
    batches = _batches(samples, plan.batch, random.Random(seed))
    model.train()
    for step in range(num_steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / num_steps))
        factor = min(1.0, (step + 1) / plan.warmup_steps) * (0.05 + 0.95 * cosine)
        loss = _answer_loss(model, next(batches))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate * factor
            optimizer.step()
        yield step + 1, float(loss.detach())


def _optimizers(model: LlamaForCausalLM, learning_rate: float) -> tuple[torch.optim.Optimizer, ...]:
    """Muon on the matrices inside the layers, AdamW on embeddings and norms.

    Copying out of the message is learnt in about half the steps that AdamW alone needs.
    """
    matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and "embed" not in name]
    taken = {id(each) for each in matrices}
    others = [each for each in model.parameters() if id(each) not in taken]
    return (
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _batches(samples: Sequence[Sample], size: int, rng: random.Random) -> Iterator[list[Sample]]:
    while True:
        order = rng.sample(range(len(samples)), len(samples))
        for start in range(0, len(order) - size + 1, size):
            yield [samples[index] for index in order[start : start + size]]


def _answer_loss(model: LlamaForCausalLM, batch: Sequence[Sample]) -> Tensor:
    """Mean cross-entropy in nats over the answer tokens of the batch, stop tokens included.

    Rows are padded on the right, where no answer token can see the padding, so no attention mask is needed.
    """
    width = max(len(sample.prompt_ids) + len(sample.answer_ids) for sample in batch)
    ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
    positions: list[int] = []
    targets: list[int] = []
    for row, sample in enumerate(batch):
        ids = sample.prompt_ids + sample.answer_ids
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        first = row * width + len(sample.prompt_ids) - 1
        positions.extend(range(first, first + len(sample.answer_ids)))
        targets.extend(sample.answer_ids)
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BTH.flatten(0, 1)[torch.tensor(positions)])
    return functional.cross_entropy(logits_NV.float(), torch.tensor(targets))


@torch.no_grad()
def num_right(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, chosen: Sequence[Example]) -> int:
    """How many of the examples the model answers exactly right, taking the likeliest token each time."""
    was_training = model.training
    model.eval()
    right = 0
    for start in range(0, len(chosen), 100):
        part = chosen[start : start + 100]
        prompts = [encode(tokenizer, example).prompt_ids for example in part]
        width = max(map(len, prompts))
        ids_BT = torch.tensor([(*[END_OF_TEXT_ID] * (width - len(ids)), *ids) for ids in prompts])
        real_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
        out_BT = model.generate(
            input_ids=ids_BT, attention_mask=real_BT, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False
        )
        texts = tokenizer.batch_decode(out_BT[:, width:], skip_special_tokens=True)
        right += sum(grade(text, example.answer) for text, example in zip(texts, part, strict=True))
    model.train(was_training)
    return right


def write_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The model folder as transformers reads it, weights in bfloat16."""
    written = copy.deepcopy(model)
    # Called on the class, as the method of transformers models is typed without its arguments.
    torch.nn.Module.to(written, torch.bfloat16)
    written.save_pretrained(folder)
    # The template goes into tokenizer_config.json, so that a folder is complete with its five files.
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    for path in folder.iterdir():
        path.chmod(0o644)


def measure_folder(folder: Path, tokenizer: PreTrainedTokenizerFast, plan: Plan) -> int:
    """Exact answers of the model as written, on held-out prompts."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return num_right(model, tokenizer, examples(HELD_OUT_SEED, plan.num_held_out, split="held-out"))


def build_pair(out: Path, plan: Plan, say: Callable[[str], None]) -> dict[str, int | float]:
    """Builds and writes `out/teacher` and `out/student`, and returns the figures.

    Raises ModelError when a figure misses the plan's window: the demo's story would not hold with such a pair.
    """
    tokenizer = build_tokenizer()
    samples = [encode(tokenizer, each) for each in examples(TRAIN_SEED, plan.num_examples)]
    say(f"tokenizer: {len(tokenizer)} tokens; {len(samples)} training examples")

    teacher = new_model(TEACHER, tokenizer, TEACHER_SEED)
    for step, loss_nats in learn(teacher, samples, plan, plan.teacher_steps, TEACHER_SEED):
        if step % 50 == 0:
            say(f"teacher step {step}: loss {loss_nats:.4f} nats per token")
    write_model(teacher, tokenizer, out / "teacher")

    student = new_model(STUDENT, tokenizer, STUDENT_SEED)
    taken_at = _train_student(student, tokenizer, samples, plan, out / "student", say)
    figures: dict[str, int | float] = {
        "num_held_out": plan.num_held_out,
        "teacher_right": measure_folder(out / "teacher", tokenizer, plan),
        "student_right": measure_folder(out / "student", tokenizer, plan),
        "student_trained_long_right": num_right(
            student, tokenizer, examples(HELD_OUT_SEED, plan.num_held_out, split="held-out")
        ),
        "teacher_parameters": teacher.num_parameters(),
        "student_parameters": student.num_parameters(),
        "teacher_steps": plan.teacher_steps,
        "student_taken_at_step": taken_at,
        "student_long_steps": plan.student_steps,
    }
    _refuse_outside(figures, plan)
    return figures


def _train_student(
    student: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    samples: Sequence[Sample],
    plan: Plan,
    folder: Path,
    say: Callable[[str], None],
) -> int:
    """Trains to the end, writing the student when it first reaches `plan.take_at`; returns that step."""
    validation = examples(VALIDATION_SEED, plan.num_validation)
    taken_at = 0
    for step, loss_nats in learn(student, samples, plan, plan.student_steps, STUDENT_SEED):
        if step % 50 == 0:
            say(f"student step {step}: loss {loss_nats:.4f} nats per token")
        if taken_at or step < plan.check_from or step % plan.check_every:
            continue
        right = num_right(student, tokenizer, validation)
        say(f"student step {step}: {right} of {len(validation)} validation prompts exactly right")
        if right >= plan.take_at * len(validation):
            write_model(student, tokenizer, folder)
            taken_at = step
    if not taken_at:
        raise ModelError(
            "demo.student-too-weak",
            given=f"After {plan.student_steps} steps the student is still below {plan.take_at:.0%} exact.",
            needed="The demo needs a student that copies well enough to learn from its own answers.",
            fix="Build with more student steps or another seed.",
        )
    return taken_at


def _refuse_outside(figures: dict[str, int | float], plan: Plan) -> None:
    teacher = figures["teacher_right"] / figures["num_held_out"]
    student = figures["student_right"] / figures["num_held_out"]
    lowest, highest = plan.student_window
    if teacher < plan.teacher_at_least or not lowest <= student <= highest:
        raise ModelError(
            "demo.figures-outside",
            given=f"The teacher is {teacher:.1%} and the student {student:.1%} exact on held-out prompts.",
            needed=f"The demo needs a teacher of at least {plan.teacher_at_least:.0%} and a student between "
            f"{lowest:.0%} and {highest:.0%}, so that there is a gap and a way to close it.",
            fix="Change the seeds or the step at which the student is taken, and build again.",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the demo's pair.")
    parser.add_argument("--out", type=Path, required=True, help="folder for teacher/, student/ and figures.json")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try the script; the pair is useless")
    arguments = parser.parse_args()
    started = time.monotonic()
    transformers_logging.disable_progress_bar()
    printer = Printer()
    figures = build_pair(arguments.out, QUICK if arguments.quick else Plan(), printer.progress)
    figures["build_s"] = round(time.monotonic() - started, 1)
    (arguments.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    for name, value in figures.items():
        printer.say(f"{name}: {value}")


if __name__ == "__main__":
    main()
