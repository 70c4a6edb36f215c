"""The whole recipe: the main settings of `schema.py`, and how training runs.

Below each field are its meaning, how to choose it and the reason for its default. A setting without effect is refused,
not ignored. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from limbeck.recipe import types
from limbeck.recipe.grader import GraderText
from limbeck.recipe.parts import Lora
from limbeck.recipe.schema import MainSettings

__all__ = ["Recipe"]


class Recipe(MainSettings):
    """The settings of one run."""

    lora: Annotated[Lora | None, "null, or rank and alpha"] = None
    """Train small adapters (LoRA) on all linear layers of the student's body, never on the embedding or the output
    head, and leave the student's own weights unchanged; {} turns it on, null trains all weights. The result is saved
    both ways: adapter/ in PEFT's format, model/ with the adapters merged into the weights.
    Choose: Turn it on if gradients and optimizer state of all weights do not fit into memory, or if you want one base
    model with many small adapters.
    Why: training all weights can learn more, and leaves nothing to merge.
    """

    learning_rate: types.PositiveShare = Field(
        default_factory=lambda settings: 1e-5 if settings.get("lora") is None else 1e-4
    )
    """The learning rate of AdamW.
    Choose: It is worth trying a third and three times of the default for 20 steps each. Halve it if the loss rises.
    Why: 1e-5 for all weights, the middle of what published on-policy runs use (1e-6 to 5e-5); 1e-4 with lora, as in the
    Tinker cookbook's on-policy runs: adapters need about ten times the rate (LoRA Without Regret, 2025).
    """

    warmup_steps: Annotated[types.CountOrZero, AfterValidator(types.check_warmup_steps)] = Field(
        default_factory=lambda settings: min(10, settings.get("steps", 200) // 10)
    )
    """The number of first steps over which the learning rate rises to its full value; fewer than steps.
    Choose: 10. The optimizer's averages need a few steps to become reliable.
    Why: 10, or a tenth of steps if that is less, so that a short run reaches its learning rate too.
    """

    decay_share: types.Share = 0.2
    """The last share of the steps, over which the learning rate falls linearly to 0.
    Choose: 0.2; 0 if you plan to continue from this run.
    Why: constant for most of the run, so that it can be extended, and a decay at the end that settles the weights.
    """

    weight_decay: types.Share = 0.0
    """The weight decay of AdamW (Loshchilov and Hutter 2019).
    Choose: 0. Decay towards 0 moves the student away from the model that you started with.
    Why: the student starts from a good model.
    """

    max_grad_norm: types.Positive = 1.0
    """The maximum gradient norm; larger gradients are scaled down to it (Pascanu et al. 2013).
    Choose: 1. Lower it if the alerts report single large gradients.
    Why: published on-policy runs use it.
    """

    precision: Annotated[Literal["float32", "bf16-mixed", "auto"], AfterValidator(types.check_precision_with_lora)] = (
        "float32"
    )
    """The number format of the student's computation. Weights and loss are always float32; bf16-mixed generates, scores
    and computes gradients with copies rounded to bfloat16. auto is bf16-mixed if this machine is faster in bfloat16,
    otherwise and with lora float32; the run records which.
    Choose: auto or bf16-mixed for speed: several times as fast if `limbeck doctor` reports bf16 True, much slower if
    it reports False.
    Why: in float32, practice answers are the same for any number of slots and any order of the batch.
    """

    teacher_dtype: Literal["float32", "bfloat16", "auto"] = types.with_teacher(
        default_factory=lambda settings: types.DTYPE_OF.get(settings.get("precision"), "float32")
    )
    """The number format of the teacher's weights; its log-probabilities are converted to float32. On a CPU, a bfloat16
    teacher is first compared with itself in float32, and float32 is used if they differ. auto is bfloat16 if this
    machine is faster in it, otherwise float32.
    Choose: bfloat16 if the teacher does not fit into memory: half the bytes, slightly rounded.
    Why: the teacher is as exact as the student: float32, bfloat16 with precision: bf16-mixed, auto with auto.
    """

    max_prompt_tokens: types.Count = 1024
    """The maximum length of a prompt, in tokens, after the chat template is applied.
    Choose: Above your longest prompt; it limits the memory that a step needs.
    Why: long enough for a support ticket with its history.
    """

    long_prompts: Literal["refuse", "skip"] = "refuse"
    """What to do with prompts longer than max_prompt_tokens, which are never truncated: refuse stops with an error,
    skip leaves them out and reports how many.
    Choose: skip once you have seen which rows are too long and can do without them.
    Why: leaving out rows should be your decision.
    """

    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What to do with invalid rows of prompts (no text, an unknown role, turns that the chat template rejects, no
    reference answer to train on): refuse stops and lists all of them, skip leaves them out and lists them.
    Choose: skip once you have seen the list and can do without these rows.
    Why: leaving out rows should be your decision.
    """

    template: Annotated[types.NonEmptyText, "student, teacher, none, or the path of a template file"] = "student"
    """The chat template that turns messages into text. When the teacher scores tokens, both models get this text. When
    it only generates answers (cross_entropy), it uses its own template. A relative path starts at the recipe's folder.
    none: each prompt is plain text.
    Choose: student, since the student will be used with it; teacher to use the teacher's template for both; none for a
    base model that continues texts.
    Why: the student will be used with it in production.
    """

    template_options: types.TemplateOptionsSetting = Field({})
    """Variables for the chat template, for example enable_thinking: false.
    Choose: The values that you will use in production. A teacher that uses another template does not get them.
    Why: the template's own defaults.
    """

    micro_batch_tokens: types.Count = 4096
    """The maximum number of tokens, including padding, in one forward pass of scoring or update.
    Choose: Lower it if memory is short: on a CPU, a quarter changes the time of a step by less than a tenth. It never
    changes the loss.
    Why: a small pair fits on a laptop.
    """

    slots: types.Count = 32
    """The number of practice answers that are generated at the same time.
    Choose: As many as memory allows. It changes speed and memory, and the answers by rounding at most.
    Why: one step of the default prompts_per_step in one batch.
    """

    chunk_tokens: types.Count = 128
    """The number of tokens for which probabilities of the whole vocabulary are in memory at the same time.
    Choose: Lower it if memory is short; on a GPU with enough memory, 512 uses it better. It never changes the loss.
    Why: nearly as fast as more on a CPU, with a quarter of the memory of 512.
    """

    activation_checkpointing: Annotated[bool, "true or false"] = False
    """Store only the input of each of the student's layers and compute the rest again for the gradient.
    Choose: true if activations take the most memory; the update then needs a third more computation.
    Why: for a small student, memory is rarely the limit.
    """

    evaluate_every: types.Count = 20
    """The number of steps between comparisons of student and teacher on held-out prompts.
    Choose: A value that gives about ten points per run.
    Why: ten points in the default 200 steps.
    """

    held_out_sample: types.Count = 64
    """The number of held-out prompts in each of these comparisons, always the same ones.
    Choose: More gives a less noisy curve and takes longer. If there are fewer, all of them are used.
    Why: a small share of the time of a step at the default evaluate_every.
    """

    grader: GraderText = None
    """The grader of answers to held-out prompts, for `limbeck worth`, `limbeck eval` and during the run. The grader
    column of a row takes precedence; null chooses one by the form of each row's reference answer.
    Choose: Set it once you know how an answer should be graded; the verdict depends on it.
    Why: the form of the reference answer distinguishes numbers, JSON and short texts.
    """

    keep: Literal["best", "last"] = Field(
        default_factory=lambda settings: "last" if settings.get("grader") is None else "best"
    )
    """The step whose student becomes the final model. best: the step with the highest grade on the held-out sample, the
    latest of equal ones. last: the last step.
    Choose: best with a grader that you trust and a held_out_sample of 100 or more; a small sample chooses by chance.
    Why: best with a grader, since the run then knows which student is better; otherwise last.
    """

    seed: types.CountOrZero = 0
    """The random seed of the run: all of its randomness follows from it.
    Choose: Any. Two runs that differ only in the seed show how much of a difference is chance.
    Why: every run can be repeated.
    """

    name: types.RunName = None
    """The name of the run and of its folder.
    Choose: null generates a name such as calm-otter-17.
    Why: every run gets a new name.
    """

    workspace: Annotated[types.NonEmptyText, "the path of a folder"] = "."
    """The folder that contains runs/. A relative path starts at the current folder.
    Choose: One folder for all runs that you want to compare.
    Why: the current folder, where `limbeck runs` and `limbeck show` look too.
    """

    device: types.Device = "auto"
    """The device of both models. auto takes the best device of this machine and records which.
    Choose: auto, unless you share the machine.
    Why: the recipe also works on other machines.
    """

    @property
    def scores(self) -> bool:
        """Whether the teacher's distribution is compared at each token, which requires a shared vocabulary."""
        return self.objective != "cross_entropy"

    @property
    def answers_written(self) -> int:
        """The number of answers that the teacher generates for each prompt before training."""
        if self.route == "off-policy":
            return self.answers_per_prompt
        return self.warmup.answers_per_prompt if self.warmup is not None else int(self.on_policy_share < 1)

    def for_machine(self, *, bf16: bool) -> Recipe:
        """The recipe with `auto` number formats replaced by those of a machine; `bf16` says whether that saves time."""
        chosen = {}
        if self.precision == "auto":
            chosen["precision"] = "bf16-mixed" if bf16 and self.lora is None else "float32"
        if self.teacher_dtype == "auto":
            chosen["teacher_dtype"] = "bfloat16" if bf16 else "float32"
        return self.model_copy(update=chosen)

    def settings(self) -> dict[str, Any]:
        """The effective settings as plain values, without unused ones: read again, they are the same recipe."""
        values = dict(self)
        unused = {name for name in values if types.needed_for(name, self.routes_of(name), values) is not None}
        return self.model_dump(mode="json", exclude=unused)
