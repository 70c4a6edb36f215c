"""TRL's side of vs_trl.py: its DistillationTrainer in its own training loop, one step at each word from the parent.

Runs in the peers' environment. The trainer is what TRL ships, driven by `trainer.train()`; a callback holds it at the
beginning of each step until the parent says go, and some of its methods are timed by wrapping them:

    writing   _generate_and_score_completions: rendering, generate, padding
    reading   _get_last_hidden_state of the teacher
    updating  the rest of the step: student forward, loss, backward, clipping, optimizer
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import datasets
import torch
import transformers
import trl
from link import Link, fingerprint, page_faults, status_bytes
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

MICRO_BATCH = 8

# matmul precision and weights; whether malloc keeps memory is in the environment (sides.py)
VARIANTS = {
    "trl-plain": ("highest", torch.float32),
    "trl-tuned": ("medium", torch.float32),
    "trl-tuned-high": ("high", torch.float32),
    "trl-bf16-all": ("medium", torch.bfloat16),
}


class Watch:
    """Seconds by name; `timed` wraps a function so that its time is added to a name that its arguments decide."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.seconds: Counter[str] = Counter()

    def now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, function: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            started = self.now()
            result = function(*args, **kwargs)
            self.seconds[name_of(*args)] += self.now() - started
            return result

        return wrapped


class OneStepAtATime(TrainerCallback):
    """Waits for the parent's word before each step and answers it after."""

    def __init__(self, link: Link, watch: Watch, gradient_path: str | None) -> None:
        self.link = link
        self.watch = watch
        self.gradient_path = gradient_path
        self.answers: list[list[int]] | None = None
        self.prompt_ids: list[list[int]] = []
        self.lengths: list[int] = []
        self.loss = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        message = self.link.wait()
        if message is None:
            raise SystemExit(0)
        self.answers = message.get("answers")
        self.round = message["round"]
        self.watch.seconds.clear()
        self.loss = 0.0
        self.faults = page_faults()
        self.started = self.watch.now()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.gradient_path is not None and self.round == 0:
            gradients = {
                name: weight.grad.float().contiguous()
                for name, weight in kwargs["model"].named_parameters()
                if weight.grad is not None
            }
            save_file(gradients, self.gradient_path)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step_s = self.watch.now() - self.started
        seconds = self.watch.seconds
        self.link.say(
            step_s=step_s,
            seconds={
                "writing": seconds["writing"],
                "reading": seconds["reading"],
                "updating": step_s - seconds["writing"] - seconds["reading"],
            },
            parts={
                "student forward": seconds["student"],
                "loss forward": seconds["loss"] - seconds["student"] - seconds["reading"],
                "backward, optimizer": step_s - seconds["writing"] - seconds["loss"],
            },
            loss=self.loss,
            num_tokens=sum(self.lengths),
            longest=max(self.lengths),
            prompts=fingerprint(self.prompt_ids),
            prompt_tokens=sum(map(len, self.prompt_ids)),
            faults=page_faults() - self.faults,
            peak_bytes=torch.cuda.max_memory_reserved() if self.watch.cuda else status_bytes("VmHWM"),
        )


def configuration(spec: dict[str, Any], folder: str) -> trl.DistillationConfig:
    shape = spec["shape"]
    micro_batch = min(MICRO_BATCH, shape["num_prompts"])
    if shape["num_prompts"] % micro_batch:
        raise ValueError(f"TRL is given {micro_batch} prompts at a time, which do not divide {shape['num_prompts']}")
    return trl.DistillationConfig(
        output_dir=folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=shape["num_prompts"] // micro_batch,
        max_steps=spec["rounds"],
        max_completion_length=shape["new_tokens"],
        generation_kwargs={"min_new_tokens": shape["new_tokens"]} if shape["exact"] else None,
        beta=spec["beta"],
        temperature=1.0,
        learning_rate=spec["learning_rate"],
        max_grad_norm=spec["max_grad_norm"],
        lr_scheduler_type="constant",
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        seed=spec["seed"],
        use_cpu=spec["device"] == "cpu",
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def watch_methods(trainer: trl.DistillationTrainer, steps: OneStepAtATime, watch: Watch) -> None:
    """Time the trainer's own methods, note what it was given, and let the parent's answers stand in for generate."""
    generate = trainer._generate_single_turn

    def generate_or_take(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        steps.prompt_ids = prompt_ids
        written = generate(prompt_ids, *args, **kwargs) if steps.answers is None else steps.answers
        steps.lengths = [len(ids) for ids in written]
        return written

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = timed_loss(*args, **kwargs)
        steps.loss += loss.item()
        return loss

    timed_loss = watch.timed(trainer.compute_loss, lambda *args: "loss")
    trainer._generate_single_turn = generate_or_take
    trainer.compute_loss = compute_loss
    trainer._generate_and_score_completions = watch.timed(
        trainer._generate_and_score_completions, lambda *args: "writing"
    )
    trainer._get_last_hidden_state = watch.timed(
        trainer._get_last_hidden_state,
        lambda model, *args: "reading" if model is trainer.teacher_model else "student",
    )


def main() -> None:
    link = Link()
    spec = json.loads(sys.argv[1])
    precision, dtype = VARIANTS[spec["variant"]]
    torch.set_float32_matmul_precision(precision)
    shape = spec["shape"]
    student, teacher = (
        AutoModelForCausalLM.from_pretrained(spec[name], dtype=dtype) for name in ("student", "teacher")
    )
    tokenizer = AutoTokenizer.from_pretrained(spec["student"], padding_side="left")
    lines = Path(spec["prompts"]).read_text(encoding="utf-8").splitlines()
    needed = range(spec["rounds"] * shape["num_prompts"])
    rows = [{"prompt": json.loads(lines[number % len(lines)])["prompt"]} for number in needed]
    watch = Watch(cuda=spec["device"] != "cpu")
    steps = OneStepAtATime(link, watch, spec["gradient_path"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.DistillationTrainer(
            model=student,
            teacher_model=teacher,
            args=configuration(spec, folder),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[steps],
        )
        watch_methods(trainer, steps, watch)
        versions = {module.__name__: module.__version__ for module in (trl, transformers, torch, accelerate, datasets)}
        link.say(versions=versions, threads=torch.get_num_threads())
        trainer.train()


if __name__ == "__main__":
    main()
