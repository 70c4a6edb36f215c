"""Every setting of a run. Each field says what it means, which routes use it, how to choose it, its default and why.

A setting that is not used is refused, not ignored. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from limbeck.recipe import kinds, rules
from limbeck.recipe.grader import GraderText
from limbeck.recipe.parts import Lora
from limbeck.recipe.schema import Teaching

__all__ = ["Recipe"]


class Recipe(Teaching):
    """The settings of one run: what it learns, then how."""

    lora: Annotated[Lora | None, "null, or rank and alpha"] = None
    """Trains small adapters beside all linear layers of the student's body, never at embedding or output head, and
    leaves its own weights alone; {} turns it on, null trains all weights. The result is saved both ways: adapter/ in
    peft's format, model/ with the adapters merged into the weights.
    Choose: Turn it on where gradients and optimizer of all weights do not fit into memory, or where you want one base
    with many small adapters.
    Why: all weights can learn more than a part of them, and nothing is left to merge.
    """

    learning_rate: kinds.PositiveShare = Field(
        default_factory=lambda settings: 1e-5 if settings.get("lora") is None else 1e-4
    )
    """The step size of AdamW.
    Choose: A third or three times of it are worth 20 steps each. Halve it when the loss rises.
    Why: 1e-5 for all weights, the middle of what published on-policy runs use (1e-6 to 5e-5); 1e-4 with lora, as in the
    Tinker cookbook's on-policy runs: adapters want about ten times the rate (LoRA Without Regret, 2025).
    """

    warmup_steps: Annotated[kinds.CountOrZero, AfterValidator(rules.rate_arrives)] = Field(
        default_factory=lambda settings: min(10, settings.get("steps", 200) // 10)
    )
    """Over how many first steps the learning rate rises to its full value; fewer than steps.
    Choose: 10. The optimizer's averages need some steps before they can be trusted.
    Why: 10, or a tenth of steps where that is less, so that a short run too reaches its learning rate.
    """

    decay_share: kinds.Share = 0.2
    """Over which last share of the steps the learning rate falls to 0, in a straight line.
    Choose: 0.2; 0 if you mean to go on from this run.
    Why: constant for most of the run, so that it can be made longer, and a fall that settles the weights.
    """

    weight_decay: kinds.Share = 0.0
    """How strongly AdamW pulls the weights towards 0 (Loshchilov and Hutter 2019).
    Choose: 0. A pull towards 0 is a pull away from the model you started with.
    Why: the student starts from a good model.
    """

    max_grad_norm: kinds.Positive = 1.0
    """Gradients longer than this are shortened to it (Pascanu et al. 2013).
    Choose: 1. Lower it if the alerts report single large gradients.
    Why: published on-policy runs use it.
    """

    precision: Annotated[Literal["float32", "bf16-mixed", "auto"], AfterValidator(rules.not_with_lora)] = "float32"
    """The number format in which the student computes. Its weights and the loss are float32 either way; bf16-mixed
    writes, reads and differentiates with copies rounded to bfloat16; auto is bf16-mixed where the machine is faster in
    bfloat16, and float32 elsewhere and with lora. The run records which.
    Choose: bf16-mixed or auto for speed: several times as fast where `limbeck doctor` says bf16 True, far slower where
    it says False.
    Why: practice answers are then the same for any number of slots and any order of the batch.
    """

    teacher_dtype: Literal["float32", "bfloat16", "auto"] = kinds.taught(
        default_factory=lambda settings: rules.DTYPE_OF.get(settings.get("precision"), "float32")
    )
    """The number format of the teacher's weights; what it says of a text is turned into float32 either way. On a CPU a
    bfloat16 teacher is compared with itself in float32 first, and float32 is kept where they differ. auto is bfloat16
    where the machine computes faster in it, else float32.
    Choose: bfloat16 if the teacher does not fit into memory: half the bytes, a slightly rounded teacher.
    Why: the teacher as exact as the student: float32, bfloat16 with precision bf16-mixed, auto with precision auto.
    """

    max_prompt_tokens: kinds.Count = 1024
    """The longest prompt, in tokens, after the chat template.
    Choose: Above your longest prompt; it bounds the memory that a step needs.
    Why: holds a support ticket with its history.
    """

    long_prompts: Literal["refuse", "skip"] = "refuse"
    """A prompt longer than max_prompt_tokens is never cut: refuse stops at its row, skip leaves it out and counts.
    Choose: skip once you have seen which rows are too long and can do without them.
    Why: leaving rows out is your decision.
    """

    bad_rows: Literal["refuse", "skip"] = "refuse"
    """A row of prompts that cannot be used as it stands (no text, an unknown role, turns that the template refuses, no
    answer to learn): refuse stops and lists all of them, skip leaves them out, lists and counts them.
    Choose: skip once you have seen the list and can do without these rows.
    Why: leaving rows out is your decision.
    """

    template: Annotated[kinds.Text, "student, teacher, none, or the path of a template file"] = "student"
    """Whose chat template turns messages into text. Where the teacher scores tokens, both models read this text; where
    it only writes answers (cross_entropy), it is asked in its own template. A relative path starts at the recipe's
    folder. none: each prompt is one plain text.
    Choose: student, since that is how the student will be asked in production; teacher makes both alike; none for a
    base model that goes on with texts.
    Why: the student will be asked in it.
    """

    template_options: kinds.Options = Field({})
    """Values handed to the chat template, for example enable_thinking: false.
    Choose: Set what you will set in production. A teacher that is asked in another template does not get them.
    Why: the template's own defaults.
    """

    micro_batch_tokens: kinds.Count = 4096
    """How many tokens, padding included, go through a model at once while scoring and updating.
    Choose: Lower if memory is short: on a CPU a quarter of it changes the time of a step by less than a tenth.
    It never changes the loss.
    Why: fits a small pair on a laptop.
    """

    slots: kinds.Count = 32
    """How many practice answers are written at the same time.
    Choose: As many as memory allows; it changes speed and memory, and the answers by rounding at most.
    Why: one step of the default prompts_per_step in one go.
    """

    chunk_tokens: kinds.Count = 128
    """For how many tokens at once the probabilities of the whole vocabulary are held in memory.
    Choose: Lower if memory is short; on a GPU with room, 512 keeps it busier. It never changes the loss.
    Why: nearly as fast as more on a CPU, in a quarter of the memory of 512.
    """

    activation_checkpointing: Annotated[bool, "true or false"] = False
    """Keep only what goes into each layer of the student and compute the rest again for the gradient.
    Choose: true where activations are the largest part of the memory: a third more computing in the update.
    Why: memory is rarely what is short for a small student.
    """

    evaluate_every: kinds.Count = 20
    """After how many steps the student is compared with the teacher on held-out prompts.
    Choose: So that you see about ten points in a run.
    Why: ten points in the default 200 steps.
    """

    held_out_sample: kinds.Count = 64
    """How many held-out prompts each of these comparisons uses, always the same ones.
    Choose: More gives a steadier curve and takes longer. All held-out prompts if there are fewer.
    Why: a small share of a step's time at the default evaluate_every.
    """

    grader: GraderText = None
    """How answers to held-out prompts are graded: by limbeck worth and eval, and during the run. A row's own column
    grader goes before it; null goes by the form of each row's reference answer.
    Choose: Say it once you know how an answer is judged; a verdict stands on it.
    Why: the form of a reference tells numbers, JSON and short texts apart.
    """

    keep: Literal["best", "last"] = Field(
        default_factory=lambda settings: "last" if settings.get("grader") is None else "best"
    )
    """Which step's student the run hands over. best: of the steps after which the held-out sample was graded, the one
    with the highest grade, and the later of two alike. last: the last step's.
    Choose: best with a grader that you trust and a held_out_sample of 100 or more; a small sample picks by luck.
    Why: best with a grader, for then the run knows what better means; else last.
    """

    seed: kinds.CountOrZero = 0
    """The number from which all randomness of the run follows.
    Choose: Any. Two runs that differ in the seed alone show how much of a difference is luck.
    Why: a run can be repeated without asking for it.
    """

    name: kinds.RunName = None
    """The name of the run and of its folder.
    Choose: Leave it out and get one like calm-otter-17.
    Why: a new name for each run.
    """

    workspace: Annotated[kinds.Text, "the path of a folder"] = "."
    """The folder in which runs/ lies. A relative path starts at the current folder.
    Choose: One folder for all runs that you want to compare.
    Why: the current folder, where `limbeck runs` and `limbeck show` look too.
    """

    device: kinds.Device = "auto"
    """Where the models run. auto takes the best device that this machine has and records which.
    Choose: auto, unless you share the machine.
    Why: a recipe can be passed on to another machine.
    """

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

    def for_machine(self, *, bf16: bool) -> Recipe:
        """The recipe with `auto` number formats replaced by those of a machine; `bf16` says whether that saves time."""
        chosen = {}
        if self.precision == "auto":
            chosen["precision"] = "bf16-mixed" if bf16 and self.lora is None else "float32"
        if self.teacher_dtype == "auto":
            chosen["teacher_dtype"] = "bfloat16" if bf16 else "float32"
        return self.model_copy(update=chosen)

    def settings(self) -> dict[str, Any]:
        """All settings in force as plain values, none without effect: read again, they are the same recipe."""
        values = dict(self)
        unused = {name for name in values if rules.needed_for(name, self.routes_of(name), values) is not None}
        return self.model_dump(mode="json", exclude=unused)
