"""Every setting of a run. Each field says what it means, who uses it, how to choose it, its default and why.

A setting that is not used is refused, not ignored: `beta` and `scale` belong to one objective, `forward_weight` to
another, and a key that is no setting is an error. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticUndefined

from limbeck.recipe.rules import (
    OBJECTIVE_OF,
    AnswersPerPrompt,
    Count,
    CountOrZero,
    HeldOut,
    Model,
    Name,
    Positive,
    PositiveShare,
    Share,
    Text,
    WarmupSteps,
    explanation,
    offered_route,
    setting,
    used_by_objective,
)

__all__ = ["PracticeGrowth", "Recipe", "Sampling"]

_REQUIRED = PydanticUndefined
_WARMUP_STEPS = 10


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sampling(_Settings):
    """How the student draws the tokens of its practice answers."""

    temperature: Annotated[float, Field(ge=0)] = setting(
        1.0,
        meaning="Divides the student's logits before a practice token is drawn; 0 takes the likeliest token each time. "
        "The loss has a temperature of its own.",
        needs="a number, 0 or more",
        choose="Leave it at 1: then the student practises exactly what it would write. Lower makes practice narrower.",
        why="1.0, as the on-policy objective is an average over the student's own distribution (Agarwal et al. 2024).",
    )
    top_p: PositiveShare = setting(
        1.0,
        meaning="Draw only from the likeliest tokens that together reach this probability (Holtzman et al. 2020).",
        needs="a number above 0 and at most 1",
        choose="Leave it at 1 unless a weak student writes nonsense that the teacher cannot judge; then 0.95.",
        why="1.0: cutting the tail hides from the teacher the very tokens that it should talk the student out of.",
    )
    top_k: CountOrZero = setting(
        0,
        meaning="Draw only from this many of the likeliest tokens; 0 is off.",
        needs="a whole number, 0 or more",
        choose="Leave it at 0; top_p does the same with less harm.",
        why="0, for the same reason as top_p.",
    )


class PracticeGrowth(_Settings):
    """Practice answers that start short and grow to their full length."""

    start: PositiveShare = setting(
        0.25,
        meaning="The share of max_practice_tokens at which practice answers are cut off in the first step.",
        needs="a number above 0 and at most 1",
        choose="0.25; lower only for limits over a thousand tokens.",
        why="0.25: training on beginnings alone came close to whole answers for far less work (2602.15260).",
    )
    until: PositiveShare = setting(
        0.5,
        meaning="The share of all steps after which the full max_practice_tokens is in force.",
        needs="a number above 0 and at most 1",
        choose="0.5, or less where the ending of an answer matters: a student that never practises an ending loses it.",
        why="0.5: a linear schedule over the first half, as in 2602.15260.",
    )


class Recipe(_Settings):
    """The settings of one run."""

    student: Model = setting(
        _REQUIRED,
        meaning="The small model that learns. A hub id, a folder, a file.gguf, or run:NAME to go on from a run.",
        needs="the name of a model: a hub id, a folder, a file.gguf, or run:NAME",
        choose="The largest model whose price and speed you can live with, of the teacher's family: both must split "
        "text into the same tokens.",
        why="No default: it is your decision.",
        everyday=True,
    )
    teacher: Model = setting(
        _REQUIRED,
        meaning="The large model that scores every token of the student's practice answers. Named as the student is.",
        needs="the name of a model whose weights this machine can hold: a hub id, a folder, a file.gguf, or run:NAME",
        choose="A model that clearly beats the student on your held-out prompts and splits text into the same tokens. "
        "A chat API cannot be the teacher here, for it cannot score a given text.",
        why="No default: it is your decision.",
        everyday=True,
    )
    prompts: Text = setting(
        _REQUIRED,
        meaning="The file of prompts. A relative path starts at the folder of the recipe.",
        needs="the path of a prompt file",
        choose="Prompts as they come in production; a thousand or more if you have them. Answers are not needed.",
        why="No default: they are yours.",
        everyday=True,
    )
    held_out: HeldOut = setting(
        0.1,
        meaning="The prompts that are never practised and tell whether the student improved: a share, a count, a file.",
        needs="a share between 0 and 1, a count from 1 up, or the path of a prompt file",
        choose="At least 100 prompts if you can spare them; with fewer, only large improvements can be told from luck.",
        why="0.1: a tenth leaves most of the prompts for practice.",
        everyday=True,
    )
    route: Annotated[Literal["on-policy"], BeforeValidator(offered_route)] = setting(
        "on-policy",
        meaning="The way to train. On-policy: the student writes practice answers and the teacher scores each token.",
        needs="on-policy",
        choose="This version has one route.",
        why="on-policy: the student learns from its own mistakes, which answers written by the teacher never show "
        "(Agarwal et al. 2024).",
        everyday=True,
    )
    objective: Literal["divergence", "kl_mix", "soft_targets"] = setting(
        "divergence",
        meaning="What is minimised at each practice token. divergence: a generalized Jensen-Shannon divergence, chosen "
        "by beta. kl_mix: forward_weight·KL(teacher‖student) + (1-forward_weight)·KL(student‖teacher). soft_targets: "
        "temperature²·KL(teacher‖student), both softened by temperature.",
        needs="divergence, kl_mix or soft_targets",
        choose="divergence. kl_mix if the student must learn words that it thinks impossible; soft_targets to repeat "
        "the classic recipe.",
        why="divergence, which holds both KL directions as its ends (Agarwal et al. 2024). soft_targets is that of "
        "Hinton et al. 2015.",
        everyday=True,
    )
    beta: Annotated[Share, AfterValidator(used_by_objective)] = setting(
        1.0,
        meaning="Which divergence. With m = beta·teacher + (1-beta)·student it is D = beta·KL(teacher‖m) + "
        "(1-beta)·KL(student‖m). The ends: beta 0 is KL(teacher‖student), the forward KL; beta 1 is "
        "KL(student‖teacher), the reverse KL. Other tools may count the other way round.",
        needs="a number from 0 to 1; only for objective: divergence",
        choose="0: cover everything the teacher might say. 1: commit to what the teacher likes most. Between them a "
        "mix, in which only exactly 0 teaches a token that the student thinks impossible.",
        why="1.0: a small student cannot cover all that a large teacher might say, and on its own answers the reverse "
        "KL corrects what it does say (Gu et al. 2024; Agarwal et al. 2024).",
        everyday=True,
    )
    scale: Annotated[Literal["unit", "gkd"], AfterValidator(used_by_objective)] = setting(
        "unit",
        meaning="The size of the divergence between the ends of beta. gkd: the published number. unit: the published "
        "number divided by beta·(1-beta), so that the loss does not shrink near the ends, where it joins the two KLs.",
        needs="unit or gkd; only for objective: divergence",
        choose="unit, unless you compare with a published run.",
        why="unit: turning beta then changes the kind of pull and not its strength; the published number is some ten "
        "times smaller at beta 0.1 than at 0.",
    )
    forward_weight: Annotated[Share, AfterValidator(used_by_objective)] = setting(
        0.5,
        meaning="The weight w of w·KL(teacher‖student) + (1-w)·KL(student‖teacher).",
        needs="a number from 0 to 1; only for objective: kl_mix",
        choose="0.5; higher if the student leaves things out, lower if it rambles.",
        why="0.5: both directions alike.",
        everyday=True,
    )
    temperature: Positive = setting(
        1.0,
        meaning="Divides the logits of both models before the loss. Drawing tokens has a temperature of its own, "
        "sampling.temperature. Only soft_targets multiplies the loss by temperature².",
        needs="a number above 0",
        choose="1. For soft_targets 2 to 4, which shows the student the teacher's second and third thoughts.",
        why="1.0: the student is compared with the teacher as both are (Agarwal et al. 2024).",
    )
    max_practice_tokens: Count = setting(
        256,
        meaning="The longest practice answer, in tokens. What is longer is cut off and trained on as far as it goes.",
        needs="a whole number, 1 or more",
        choose="Just above the length of most of your teacher's answers: the main lever on time, and on memory.",
        why="256: holds a short answer of support or finance, and beginnings alone teach much (2602.15260).",
        everyday=True,
    )
    practice_growth: PracticeGrowth | None = setting(
        None,
        meaning="Lets the longest practice answer grow during the run; null keeps it at max_practice_tokens.",
        needs="null, or start and until",
        choose="Turn it on for limits over some 500 tokens, to save time and keep a weak student from rambling.",
        why="null: one thing less that changes during a run.",
        everyday=True,
    )
    sampling: Sampling = setting(
        Sampling(),
        meaning="How the student draws the tokens of its practice answers.",
        needs="temperature, top_p and top_k",
        choose="Leave it alone: practice should be what the student would write.",
        why="The student's own distribution, unchanged (Agarwal et al. 2024).",
    )
    steps: Count = setting(
        200,
        meaning="How many times the student is updated.",
        needs="a whole number, 1 or more",
        choose="Most of the gain comes in the first 50 to 100 steps; go on while the held-out loss falls.",
        why="200: published repairs of a fine-tuned model take about 100 steps (Tinker cookbook); this leaves room.",
        everyday=True,
    )
    prompts_per_step: Count = setting(
        32,
        meaning="How many prompts the student answers before each update.",
        needs="a whole number, 1 or more",
        choose="32 to 128. More makes a step steadier and slower.",
        why="32: a size for one machine; published runs use 64 to 1024 (thunlp 64, NeMo-RL 128).",
        everyday=True,
    )
    answers_per_prompt: AnswersPerPrompt = setting(
        1,
        meaning="How many practice answers the student writes for each prompt of a step.",
        needs="a whole number, 1 or more",
        choose="1 with a thousand prompts or more, 4 with fewer, 32 with a few dozen.",
        why="1: new prompts teach more than new answers to old ones, and no baseline over a group is needed.",
        everyday=True,
    )
    learning_rate: PositiveShare = setting(
        1e-5,
        meaning="The step size of AdamW for all weights of the student.",
        needs="a number above 0 and at most 1, for example 1e-5",
        choose="A third or three times of it are worth 20 steps each. Halve it when the loss rises.",
        why="1e-5: the middle of what published on-policy runs use when all weights train (1e-6 to 5e-5).",
        everyday=True,
    )
    warmup_steps: WarmupSteps = Field(
        default_factory=lambda data: min(_WARMUP_STEPS, data.get("steps", 200) // 10),
        description="Over how many first steps the learning rate rises to its full value.",
        json_schema_extra=explanation(
            needs="a whole number, 0 or more, below steps",
            choose="10. The optimizer's averages need some steps before they can be trusted.",
            why="10, or a tenth of the steps when there are fewer than 100, so that a short run too reaches its "
            "learning rate.",
            everyday=False,
        ),
    )
    decay_share: Share = setting(
        0.2,
        meaning="Over which last share of the steps the learning rate falls to 0, in a straight line.",
        needs="a number from 0 to 1",
        choose="0.2; 0 if you mean to go on from this run.",
        why="0.2: constant for most of the run, so that it can be made longer, and a fall that settles the weights.",
    )
    weight_decay: Share = setting(
        0.0,
        meaning="How strongly AdamW pulls the weights towards 0 (Loshchilov and Hutter 2019).",
        needs="a number from 0 to 1",
        choose="0. A pull towards 0 is a pull away from the model you started with.",
        why="0.0: the student starts from a good model.",
    )
    max_grad_norm: Positive = setting(
        1.0,
        meaning="Gradients longer than this are shortened to it (Pascanu et al. 2013).",
        needs="a number above 0",
        choose="1. Lower it if the alerts report single large gradients.",
        why="1.0, which published on-policy runs use.",
    )
    precision: Literal["float32"] = setting(
        "float32",
        meaning="The number format of weights and activations.",
        needs="float32, the only precision of this version",
        choose="This version has one.",
        why="float32: practice answers are then the same for any number of slots and any order of the batch.",
    )
    teacher_dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        meaning="The number format of the teacher's weights; what it says of a text is turned into float32 either way.",
        needs="float32 or bfloat16",
        choose="bfloat16 if the teacher does not fit into memory: half the bytes, for a slightly rounded teacher.",
        why="float32: the teacher as exact as the loss.",
    )
    max_prompt_tokens: Count = setting(
        1024,
        meaning="The longest prompt, in tokens, after the chat template.",
        needs="a whole number, 1 or more",
        choose="Above your longest prompt; it bounds the memory that a step needs.",
        why="1024: holds a support ticket with its history.",
        everyday=True,
    )
    long_prompts: Literal["refuse", "skip"] = setting(
        "refuse",
        meaning="What happens to a prompt longer than max_prompt_tokens: refuse stops with its row, skip leaves it out "
        "and counts it. No prompt is ever cut.",
        needs="refuse or skip",
        choose="skip once you have seen which rows are too long and can do without them.",
        why="refuse: leaving rows out is your decision.",
    )
    template: Text = setting(
        "student",
        meaning="Whose chat template turns messages into text, for both models: student, teacher, or a file. A "
        "relative path starts at the folder of the recipe; ./student is a file of that name.",
        needs="student, teacher, or the path of a template file",
        choose="student, since that is how the student will be asked in production.",
        why="student, for the same reason.",
        everyday=True,
    )
    template_options: dict[str, bool | int | float | str | None] = setting(
        {},
        meaning="Values handed to the chat template, for example enable_thinking: false.",
        needs="names with single values; write true or false, not yes or no",
        choose="Set what you will set in production. Both models get the same.",
        why="Empty: the template's own defaults.",
    )
    micro_batch_tokens: Count = setting(
        4096,
        meaning="How many tokens, padding included, go through a model at once while scoring and updating.",
        needs="a whole number, 1 or more",
        choose="As many as memory allows; it changes speed and memory, never the loss.",
        why="4096: fits a small pair on a laptop.",
    )
    slots: Count = setting(
        32,
        meaning="How many practice answers are written at the same time.",
        needs="a whole number, 1 or more",
        choose="As many as memory allows; it changes speed and memory, never the answers.",
        why="32: one step of the default prompts_per_step in one go.",
    )
    chunk_tokens: Count = setting(
        256,
        meaning="For how many tokens at once the probabilities of the whole vocabulary are held in memory.",
        needs="a whole number, 1 or more",
        choose="Lower if the vocabulary is large and memory short; it changes memory and speed, never the loss.",
        why="256: about 0.3 GB for the two models of a vocabulary of 152,000.",
    )
    evaluate_every: Count = setting(
        20,
        meaning="After how many steps the student is compared with the teacher on held-out prompts.",
        needs="a whole number, 1 or more",
        choose="So that you see about ten points in a run.",
        why="20: ten points in the default 200 steps.",
        everyday=True,
    )
    held_out_sample: Count = setting(
        64,
        meaning="How many held-out prompts each of these comparisons uses, always the same ones.",
        needs="a whole number, 1 or more",
        choose="More gives a steadier curve and takes longer. All held-out prompts if there are fewer.",
        why="64: a small share of a step's time at the default evaluate_every.",
    )
    seed: Annotated[CountOrZero, Field(lt=2**63)] = setting(
        0,
        meaning="The number from which all randomness of the run follows.",
        needs="a whole number, 0 or more",
        choose="Any. Two runs that differ in the seed alone show how much of a difference is luck.",
        why="0: a run can be repeated without asking for it.",
        everyday=True,
    )
    name: Name | None = setting(
        None,
        meaning="The name of the run and of its folder.",
        needs="null, or 1 to 100 of the letters A-Z a-z, digits, dot, underscore and hyphen",
        choose="Leave it out and get one like calm-otter-17.",
        why="null: a new name for each run.",
        everyday=True,
    )
    workspace: Text = setting(
        ".",
        meaning="The folder in which runs/ lies. A relative path starts at the current folder.",
        needs="the path of a folder",
        choose="One folder for all runs that you want to compare.",
        why="The current folder, where `limbeck runs` and `limbeck show` look too.",
        everyday=True,
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")] = setting(
        "auto",
        meaning="Where the models run. auto takes the best device that this machine has and records which.",
        needs="auto, cpu, cuda or cuda:N",
        choose="auto, unless you share the machine.",
        why="auto: a recipe can be passed on to another machine.",
        everyday=True,
    )

    def settings(self) -> dict[str, Any]:
        """All settings in force as plain values, none of another objective: read again, they are the same recipe."""
        unused = {name for name, objective in OBJECTIVE_OF.items() if objective != self.objective}
        return self.model_dump(mode="json", exclude=unused)
