"""Every setting of a run. Each field says what it means, which routes use it, how to choose it, its default and why.

A setting that is not used is refused, not ignored. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from limbeck.recipe import rules
from limbeck.recipe.grader import GRADER, KEEP, GraderText
from limbeck.recipe.parts import (
    TAUGHT,
    Count,
    CountOrZero,
    Device,
    Hosted,
    Lora,
    Options,
    OwnAnswers,
    Positive,
    PositiveShare,
    PracticeGrowth,
    RunName,
    Sampling,
    Share,
    Text,
    WarmUp,
    setting,
)
from limbeck.recipe.teaching import Teaching

__all__ = ["Hosted", "Lora", "OwnAnswers", "PracticeGrowth", "Recipe", "Sampling", "WarmUp"]


class Recipe(Teaching):
    """The settings of one run: what it learns, then how."""

    lora: Annotated[Lora | None, "null, or rank and alpha"] = setting(
        None,
        "Trains small adapters beside all linear layers of the student's body, never at embedding or output head, and "
        "leaves its own weights alone; {} turns it on, null trains all weights. The result is saved both ways: "
        "adapter/ in peft's format, model/ with the adapters merged into the weights.",
        choose="Turn it on where gradients and optimizer of all weights do not fit into memory, or where you want one "
        "base with many small adapters.",
        why="all weights can learn more than a part of them, and nothing is left to merge.",
    )
    learning_rate: PositiveShare = setting(
        rules.learning_rate,
        "The step size of AdamW.",
        choose="A third or three times of it are worth 20 steps each. Halve it when the loss rises.",
        why="1e-5 for all weights, the middle of what published on-policy runs use (1e-6 to 5e-5); 1e-4 with lora, as "
        "in the Tinker cookbook's on-policy runs: adapters want about ten times the rate (LoRA Without Regret, 2025).",
    )
    warmup_steps: Annotated[CountOrZero, AfterValidator(rules.warmup_ends)] = setting(
        lambda settings: min(10, settings.get("steps", 200) // 10),
        "Over how many first steps the learning rate rises to its full value; fewer than steps.",
        choose="10. The optimizer's averages need some steps before they can be trusted.",
        why="10, or a tenth of steps where that is less, so that a short run too reaches its learning rate.",
    )
    decay_share: Share = setting(
        0.2,
        "Over which last share of the steps the learning rate falls to 0, in a straight line.",
        choose="0.2; 0 if you mean to go on from this run.",
        why="constant for most of the run, so that it can be made longer, and a fall that settles the weights.",
    )
    weight_decay: Share = setting(
        0.0,
        "How strongly AdamW pulls the weights towards 0 (Loshchilov and Hutter 2019).",
        choose="0. A pull towards 0 is a pull away from the model you started with.",
        why="the student starts from a good model.",
    )
    max_grad_norm: Positive = setting(
        1.0,
        "Gradients longer than this are shortened to it (Pascanu et al. 2013).",
        choose="1. Lower it if the alerts report single large gradients.",
        why="published on-policy runs use it.",
    )
    precision: Annotated[Literal["float32", "bf16-mixed"], AfterValidator(rules.not_with_lora)] = setting(
        "float32",
        "The number format in which the student computes. Its weights and the loss are float32 either way; bf16-mixed "
        "writes, reads and differentiates with copies rounded to bfloat16.",
        choose="bf16-mixed where `limbeck doctor` says that the machine has bfloat16: several times as fast.",
        why="practice answers are then the same for any number of slots and any order of the batch.",
    )
    teacher_dtype: Literal["float32", "bfloat16"] = setting(
        lambda settings: "bfloat16" if settings.get("precision") == "bf16-mixed" else "float32",
        "The number format of the teacher's weights; what it says of a text is turned into float32 either way. On a "
        "CPU a bfloat16 teacher is compared with itself in float32 first, and float32 is kept where they differ.",
        choose="bfloat16 if the teacher does not fit into memory: half the bytes, a slightly rounded teacher.",
        why="the teacher as exact as the student: float32, or bfloat16 with precision bf16-mixed.",
        routes=TAUGHT,
    )
    max_prompt_tokens: Count = setting(
        1024,
        "The longest prompt, in tokens, after the chat template.",
        choose="Above your longest prompt; it bounds the memory that a step needs.",
        why="holds a support ticket with its history.",
    )
    long_prompts: Literal["refuse", "skip"] = setting(
        "refuse",
        "A prompt longer than max_prompt_tokens is never cut: refuse stops at its row, skip leaves it out and counts.",
        choose="skip once you have seen which rows are too long and can do without them.",
        why="leaving rows out is your decision.",
    )
    bad_rows: Literal["refuse", "skip"] = setting(
        "refuse",
        "A row of prompts that cannot be used as it stands (no text, an unknown role, turns that the template refuses, "
        "no answer to learn): refuse stops and lists all of them, skip leaves them out, lists and counts them.",
        choose="skip once you have seen the list and can do without these rows.",
        why="leaving rows out is your decision.",
    )
    template: Annotated[Text, "student, teacher, none, or the path of a template file"] = setting(
        "student",
        "Whose chat template turns messages into text. Where the teacher scores tokens, both models read this text; "
        "where it only writes answers (cross_entropy), it is asked in its own template. A relative path starts at the "
        "recipe's folder. none: each prompt is one plain text.",
        choose="student, since that is how the student will be asked in production; teacher makes both alike; none for "
        "a base model that goes on with texts.",
        why="the student will be asked in it.",
    )
    template_options: Options = setting(
        {},
        "Values handed to the chat template, for example enable_thinking: false.",
        choose="Set what you will set in production. A teacher that is asked in another template does not get them.",
        why="the template's own defaults.",
    )
    micro_batch_tokens: Count = setting(
        4096,
        "How many tokens, padding included, go through a model at once while scoring and updating.",
        choose="As many as memory allows; it changes speed and memory, never the loss.",
        why="fits a small pair on a laptop.",
    )
    slots: Count = setting(
        32,
        "How many practice answers are written at the same time.",
        choose="As many as memory allows; it changes speed and memory, and the answers by rounding at most.",
        why="one step of the default prompts_per_step in one go.",
    )
    chunk_tokens: Count = setting(
        128,
        "For how many tokens at once the probabilities of the whole vocabulary are held in memory.",
        choose="Lower if memory is short; on a GPU with room, 512 keeps it busier. It never changes the loss.",
        why="as fast as more on a CPU, in a quarter of the memory of 512.",
    )
    activation_checkpointing: Annotated[bool, "true or false"] = setting(
        False,
        "Keep only what goes into each layer of the student and compute the rest again for the gradient.",
        choose="true where activations are the largest part of the memory: a third more computing in the update.",
        why="memory is rarely what is short for a small student.",
    )
    evaluate_every: Count = setting(
        20,
        "After how many steps the student is compared with the teacher on held-out prompts.",
        choose="So that you see about ten points in a run.",
        why="ten points in the default 200 steps.",
    )
    held_out_sample: Count = setting(
        64,
        "How many held-out prompts each of these comparisons uses, always the same ones.",
        choose="More gives a steadier curve and takes longer. All held-out prompts if there are fewer.",
        why="a small share of a step's time at the default evaluate_every.",
    )
    grader: GraderText = GRADER
    keep: Literal["best", "last"] = KEEP
    seed: CountOrZero = setting(
        0,
        "The number from which all randomness of the run follows.",
        choose="Any. Two runs that differ in the seed alone show how much of a difference is luck.",
        why="a run can be repeated without asking for it.",
    )
    name: RunName = setting(
        None,
        "The name of the run and of its folder.",
        choose="Leave it out and get one like calm-otter-17.",
        why="a new name for each run.",
    )
    workspace: Annotated[Text, "the path of a folder"] = setting(
        ".",
        "The folder in which runs/ lies. A relative path starts at the current folder.",
        choose="One folder for all runs that you want to compare.",
        why="the current folder, where `limbeck runs` and `limbeck show` look too.",
    )
    device: Device = setting(
        "auto",
        "Where the models run. auto takes the best device that this machine has and records which.",
        choose="auto, unless you share the machine.",
        why="a recipe can be passed on to another machine.",
    )

    @property
    def scores(self) -> bool:
        """Whether the teacher's distribution is compared at each token, for which the vocabulary must be one."""
        return self.objective != "cross_entropy"

    @property
    def answers_written(self) -> int:
        """How many answers the teacher writes to each prompt before training."""
        if self.route == "off-policy":
            return self.answers_per_prompt
        return self.warmup.answers_per_prompt if self.warmup is not None else int(self.on_policy_share < 1)

    def settings(self) -> dict[str, Any]:
        """All settings in force as plain values, none without effect: read again, they are the same recipe."""
        values = dict(self)
        unused = {name for name in values if rules.needed_for(name, self.routes_of(name), values) is not None}
        return self.model_dump(mode="json", exclude=unused)
