"""What somebody probably meant by a key that is no setting."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Hint", "hint"]

_CLOSE_ENOUGH = 0.6
_CROSS_ENTROPY = """
    alpha lmbda lambda kd_alpha kd_weight seq_kd sft_alpha sft_weight ce_alpha ce_weight ce_loss_weight ce_coef
    cross_entropy cross_entropy_weight hard_label_weight hard_loss_weight hard_weight nll_weight lm_loss_weight
"""
_NO_CROSS_ENTROPY = dict.fromkeys(
    _CROSS_ENTROPY.split(),
    "There is no cross-entropy term on-policy, nor a mix with given answers: the labels would be the student's own "
    "words, and rewarding it for repeating itself makes it collapse.",
)
_NOT_OFFERED = {
    **dict.fromkeys(
        (
            "max_teacher_tokens",
            "answers",
            "epochs",
            "num_epochs",
            "num_train_epochs",
            "teacher_answers",
            "system_prompt",
        ),
        "This belongs to another route, and this version trains on-policy only.",
    ),
    **dict.fromkeys(
        ("lora", "lora_r", "lora_rank", "lora_alpha", "peft", "use_peft", "qlora", "adapter"),
        "This version trains all weights of the student; adapters are not in it.",
    ),
    **dict.fromkeys(
        ("load_in_4bit", "load_in_8bit", "quantization", "bnb_config", "gradient_checkpointing", "torch_compile"),
        "This version has no such switch.",
    ),
    **dict.fromkeys(
        ("optim", "optimizer", "lr_scheduler", "lr_scheduler_type", "scheduler", "adam_beta1", "adam_beta2"),
        "The optimizer is AdamW with a constant rate between warmup_steps and decay_share.",
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "per_device_train_batch_size", "train_batch_size", "micro_batch_size"),
        "A step is prompts_per_step × answers_per_prompt answers; micro_batch_tokens says how many go through at once.",
    ),
    **dict.fromkeys(
        ("trust_remote_code", "use_auth_token", "hf_token", "token", "api_key"),
        "Code from a model's repository is never run, and a recipe holds no keys.",
    ),
}
# What other tools call the same thing.
_SYNONYMS = {
    "lr": "learning_rate",
    "max_lr": "learning_rate",
    "num_steps": "steps",
    "max_steps": "steps",
    "num_training_steps": "steps",
    "iterations": "steps",
    "warmup": "warmup_steps",
    "num_warmup_steps": "warmup_steps",
    "warmup_ratio": "warmup_steps",
    "batch_size": "prompts_per_step",
    "groups_per_batch": "prompts_per_step",
    "group_size": "answers_per_prompt",
    "num_generations": "answers_per_prompt",
    "samples_per_prompt": "answers_per_prompt",
    "num_samples": "answers_per_prompt",
    "rollout_n": "answers_per_prompt",
    "max_new_tokens": "max_practice_tokens",
    "max_completion_length": "max_practice_tokens",
    "max_tokens": "max_practice_tokens",
    "max_response_length": "max_practice_tokens",
    "max_length": "max_prompt_tokens",
    "max_seq_length": "max_prompt_tokens",
    "max_prompt_length": "max_prompt_tokens",
    "model": "student",
    "student_model": "student",
    "model_name": "student",
    "model_name_or_path": "student",
    "base_model": "student",
    "teacher_model": "teacher",
    "teacher_model_name_or_path": "teacher",
    "data": "prompts",
    "dataset": "prompts",
    "dataset_name": "prompts",
    "train_file": "prompts",
    "data_path": "prompts",
    "eval_file": "held_out",
    "test_size": "held_out",
    "val_size": "held_out",
    "validation_split": "held_out",
    "loss": "objective",
    "loss_type": "objective",
    "kl_type": "objective",
    "kd_loss_type": "objective",
    "divergence": "objective",
    "jsd_beta": "beta",
    "gkd_beta": "beta",
    "mix_weight": "forward_weight",
    "kl_weight": "forward_weight",
    "kd_temperature": "temperature",
    "loss_temperature": "temperature",
    "max_norm": "max_grad_norm",
    "clip": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "gradient_clipping": "max_grad_norm",
    "dtype": "precision",
    "torch_dtype": "precision",
    "bf16": "precision",
    "fp16": "precision",
    "mixed_precision": "precision",
    "chat_template": "template",
    "chat_template_kwargs": "template_options",
    "chat_template_args": "template_options",
    "enable_thinking": "template_options.enable_thinking",
    "eval_steps": "evaluate_every",
    "eval_every": "evaluate_every",
    "run_name": "name",
    "output_dir": "workspace",
    "log_path": "workspace",
    "random_seed": "seed",
    "prompt_growth": "practice_growth",
}


@dataclass(frozen=True)
class Hint:
    """Why a key is no setting, what to do, and the settings that may be meant, likeliest first."""

    code: str
    why: str
    fix: str
    meant: tuple[str, ...] = ()


def hint(path: Sequence[str], known: Sequence[str]) -> Hint:
    """What to say of the unknown key `path`, given all `known` settings by their dotted names."""
    parts = [part.strip().replace("-", "_").replace(" ", "_").casefold() for part in path]
    dotted, last = ".".join(parts), parts[-1]
    for part in (parts[0], last):
        if part in _NO_CROSS_ENTROPY:
            fix = f"Remove {'.'.join(path)}; which divergence is used is said by objective and beta."
            return Hint("recipe.cross-entropy", _NO_CROSS_ENTROPY[part], fix)
        if part in _NOT_OFFERED:
            return Hint("recipe.not-offered", _NOT_OFFERED[part], f"Remove {'.'.join(path)}.")
    if dotted in known:
        return _meant("The key is spelled otherwise.", (dotted,))
    elsewhere = tuple(name for name in known if name.rsplit(".", 1)[-1] == last)
    if elsewhere:
        level = "at the top level" if "." not in elsewhere[0] else f"under {elsewhere[0].split('.', maxsplit=1)[0]}"
        return _meant(f"The key stands in the wrong place; it belongs {level}.", elsewhere)
    if last in _SYNONYMS:
        return _meant("Limbeck has another word for it.", (_SYNONYMS[last],))
    close = difflib.get_close_matches(dotted, known, n=2, cutoff=_CLOSE_ENOUGH)
    by_last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    close += [by_last[name] for name in difflib.get_close_matches(last, by_last, n=2, cutoff=_CLOSE_ENOUGH)]
    if close:
        return _meant("No such setting exists.", tuple(dict.fromkeys(close))[:2])
    fix = "Remove it; `limbeck recipe explain` lists the settings."
    return Hint("recipe.key-unknown", "No such setting exists, nor one with a similar name.", fix)


def _meant(why: str, meant: tuple[str, ...]) -> Hint:
    return Hint("recipe.key-unknown", why, f"Did you mean {' or '.join(meant)}?", meant)
