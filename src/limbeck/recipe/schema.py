"""Every setting of a run. Each field says what it means, which routes use it, how to choose it, its default and why.

A setting that is not used is refused, not ignored. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticUndefined

from limbeck.recipe import rules

__all__ = ["Lora", "PracticeGrowth", "Recipe", "Sampling"]

_REQUIRED = PydanticUndefined


def setting(default: object, meaning: str, *, choose: str, why: str) -> Any:
    """A field with all that `limbeck recipe explain` tells of it. A default that is a function says itself in `why`."""
    extra: dict[str, Any] = {"routes": ["on-policy"], "how_to_choose": choose, "default_and_why": why}
    if callable(default):
        return Field(default_factory=default, description=meaning, json_schema_extra=extra)
    shown = "No default" if default is _REQUIRED else "null" if default is None else str(default)
    extra["default_and_why"] = f"{shown}: {why}"
    return Field(default, description=meaning, json_schema_extra=extra)


# Types of settings. The text in each says which values it takes; a choice of words says so itself.
_Text = Annotated[str, Field(pattern=r"\S")]
_Path = Annotated[_Text, "the path of a file"]
_Count = Annotated[int, BeforeValidator(rules.whole), Field(ge=1), "a whole number, 1 or more"]
_CountOrZero = Annotated[int, BeforeValidator(rules.whole), Field(ge=0, lt=2**63), "a whole number, 0 or more"]
_Positive = Annotated[float, Field(gt=0), "a number above 0"]
_PositiveShare = Annotated[float, Field(gt=0, le=1), "a number above 0 and at most 1"]
_Share = Annotated[float, Field(ge=0, le=1), "a number from 0 to 1"]
_HeldOut = Annotated[
    Annotated[float, Field(gt=0, lt=1)] | Annotated[int, Field(ge=1)] | _Text,
    "a share between 0 and 1 (0.1), a count from 1 up (200), or the path of a prompt file",
]
_Model = Annotated[
    _Text,
    AfterValidator(rules.weights_at_hand),
    "a model whose weights this machine can hold: a hub id, a folder, a file.gguf or run:NAME",
]
_Name = Annotated[
    str | None, AfterValidator(rules.run_name), "null, or up to 100 of A-Z a-z 0-9 . _ - without . or - first"
]
_Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"), "auto, cpu, cuda or cuda:N"]
_Options = Annotated[dict[str, bool | int | float | str | None], "names with single values, such as true or 3"]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sampling(_Settings):
    """How the student draws the tokens of its practice answers."""

    temperature: Annotated[float, Field(ge=0), "a number, 0 or more"] = setting(
        1.0,
        "Divides the student's logits before a practice token is drawn; 0 takes the likeliest token each time.",
        choose="Leave it at 1: then the student practises exactly what it would write. Lower is narrower.",
        why="the objective is an average over the student's own distribution (Agarwal et al. 2024).",
    )
    top_p: _PositiveShare = setting(
        1.0,
        "Draw only from the likeliest tokens that together reach this probability (Holtzman et al. 2020).",
        choose="Leave it at 1 unless a weak student writes nonsense that the teacher cannot judge; then 0.95.",
        why="cutting the tail hides from the teacher the very tokens it should talk the student out of.",
    )
    top_k: _CountOrZero = setting(
        0,
        "Draw only from this many of the likeliest tokens; 0 is off.",
        choose="Leave it at 0; top_p does the same with less harm.",
        why="the same reason as for top_p.",
    )


class PracticeGrowth(_Settings):
    """Practice answers that start short and grow to their full length."""

    start: _PositiveShare = setting(
        0.25,
        "The share of max_practice_tokens at which practice answers are cut off in the first step.",
        choose="0.25; lower only for limits over a thousand tokens.",
        why="training on beginnings alone came close to whole answers for far less work (2602.15260).",
    )
    until: _PositiveShare = setting(
        0.5,
        "The share of all steps after which the full max_practice_tokens is in force.",
        choose="0.5, or less where the ending of an answer matters: endings have to be practised too.",
        why="a linear schedule over the first half, as in 2602.15260.",
    )


class Lora(_Settings):
    """Adapters that train in the place of the student's weights (Hu et al. 2021)."""

    rank: _Count = setting(
        32,
        "How many rows the two thin matrices beside each linear layer share.",
        choose="32. 128 for reasoning traces or a long supervised stage.",
        why="room for what a distillation teaches; published on-policy runs use 64 to 128 (OPSD, Tinker cookbook).",
    )
    alpha: _Count = setting(
        64,
        "Multiplies what the adapters add, divided by rank.",
        choose="Twice the rank. Where more is needed, raise learning_rate first.",
        why="twice the rank, as published on-policy runs with adapters have it (OPSD: rank 64, alpha 128).",
    )


class Recipe(_Settings):
    """The settings of one run."""

    student: _Model = setting(
        _REQUIRED,
        "The small model that learns: a hub id, a folder, a file.gguf, or run:NAME to go on from a run.",
        choose="The largest model whose price and speed you can live with, of the teacher's family.",
        why="it is your decision.",
    )
    teacher: _Model = setting(
        _REQUIRED,
        "The large model that scores every token of the student's practice answers. Named as the student is.",
        choose="A model that clearly beats the student on your prompts and splits text into the same tokens.",
        why="it is your decision.",
    )
    prompts: _Path = setting(
        _REQUIRED,
        "The file of prompts. A relative path starts at the folder of the recipe.",
        choose="Prompts as they come in production; a thousand or more if you have them. Answers are not needed.",
        why="they are yours.",
    )
    held_out: _HeldOut = setting(
        0.1,
        "The prompts that are never practised and tell whether the student improved: a share, a count, a file.",
        choose="At least 100 prompts if you can; with fewer, only large improvements can be told from luck.",
        why="a tenth leaves most of the prompts for practice.",
    )
    route: Annotated[Literal["on-policy"], BeforeValidator(rules.offered_route)] = setting(
        "on-policy",
        "The way to train. On-policy: the student writes practice answers and the teacher scores each token.",
        choose="This version has one route.",
        why="the student learns from its own mistakes, which a teacher's answers never show (Agarwal et al. 2024).",
    )
    objective: Literal["divergence", "kl_mix", "soft_targets"] = setting(
        "divergence",
        "What is minimised at each practice token. divergence: a generalized Jensen-Shannon divergence, chosen by "
        "beta. kl_mix: forward_weight·KL(teacher‖student) + (1-forward_weight)·KL(student‖teacher). soft_targets: "
        "temperature²·KL(teacher‖student), both softened by temperature (Hinton et al. 2015).",
        choose="divergence. kl_mix if the student must learn words that it thinks impossible.",
        why="it holds both KL directions as its ends (Agarwal et al. 2024).",
    )
    beta: Annotated[_Share, AfterValidator(rules.used_by_objective)] = setting(
        1.0,
        "Which divergence. With m = beta·teacher + (1-beta)·student it is D = beta·KL(teacher‖m) + "
        "(1-beta)·KL(student‖m). The ends: beta 0 is KL(teacher‖student), the forward KL; beta 1 is "
        "KL(student‖teacher), the reverse KL. Other tools may count the other way round.",
        choose="0: cover everything the teacher might say. 1: commit to what it likes most. Between them a mix, in "
        "which only exactly 0 teaches a token that the student thinks impossible.",
        why="a small student cannot cover all that a large teacher might say (Gu et al. 2024).",
    )
    scale: Annotated[Literal["unit", "gkd"], AfterValidator(rules.used_by_objective)] = setting(
        "unit",
        "The size of the divergence between the ends of beta. gkd: the published number. unit: that divided by "
        "beta·(1-beta), so that the loss does not shrink near the ends, where it joins the two KLs.",
        choose="unit, unless you compare with a published run.",
        why="turning beta then changes the kind of pull and not its strength.",
    )
    forward_weight: Annotated[_Share, AfterValidator(rules.used_by_objective)] = setting(
        0.5,
        "The weight w of w·KL(teacher‖student) + (1-w)·KL(student‖teacher).",
        choose="0.5; higher if the student leaves things out, lower if it rambles.",
        why="both directions alike.",
    )
    temperature: _Positive = setting(
        1.0,
        "Divides the logits of both models before the loss. Drawing tokens has its own: sampling.temperature.",
        choose="1. For soft_targets 2 to 4, which shows the student the teacher's second and third thoughts.",
        why="the student is compared with the teacher as both are (Agarwal et al. 2024).",
    )
    max_practice_tokens: _Count = setting(
        256,
        "The longest practice answer, in tokens. What is longer is cut off and trained on as far as it goes.",
        choose="Just above the length of most of your teacher's answers: the main lever on time and memory.",
        why="holds a short answer, and beginnings alone teach much (2602.15260).",
    )
    practice_growth: Annotated[PracticeGrowth | None, "null, or start and until"] = setting(
        None,
        "Lets the longest practice answer grow during the run; null keeps it at max_practice_tokens.",
        choose="Turn it on for limits over some 500 tokens, to save time and keep a weak student from rambling.",
        why="one thing less that changes during a run.",
    )
    sampling: Annotated[Sampling, "temperature, top_p and top_k"] = setting(
        Sampling(),
        "How the student draws the tokens of its practice answers.",
        choose="Leave it alone: practice should be what the student would write.",
        why="the student's own distribution, unchanged (Agarwal et al. 2024).",
    )
    steps: _Count = setting(
        200,
        "How many times the student is updated.",
        choose="Most of the gain comes in the first 50 to 100 steps; go on while the held-out loss falls.",
        why="published repairs of a fine-tuned model take about 100 steps (Tinker cookbook); this leaves room.",
    )
    prompts_per_step: _Count = setting(
        32,
        "How many prompts the student answers before each update.",
        choose="32 to 128. More makes a step steadier and slower.",
        why="a size for one machine; published runs use 64 to 1024 (thunlp 64, NeMo-RL 128).",
    )
    answers_per_prompt: _Count = setting(
        1,
        "How many practice answers the student writes for each prompt of a step.",
        choose="1 with a thousand prompts or more, 4 with fewer, 32 with a few dozen.",
        why="new prompts teach more than new answers to old ones.",
    )
    lora: Annotated[Lora | None, "null, or rank and alpha"] = setting(
        None,
        "Trains small adapters beside all linear layers of the student's body, never at embedding or output head, and "
        "leaves its own weights alone; {} turns it on, null trains all weights. The result is saved both ways: "
        "adapter/ in peft's format, model/ with the adapters merged into the weights.",
        choose="Turn it on where gradients and optimizer of all weights do not fit into memory, or where you want one "
        "base with many small adapters.",
        why="all weights can learn more than a part of them, and nothing is left to merge.",
    )
    learning_rate: _PositiveShare = setting(
        rules.learning_rate,
        "The step size of AdamW.",
        choose="A third or three times of it are worth 20 steps each. Halve it when the loss rises.",
        why="1e-5 for all weights, the middle of what published on-policy runs use (1e-6 to 5e-5); 1e-4 with lora, as "
        "in the Tinker cookbook's on-policy runs: adapters want about ten times the rate (LoRA Without Regret, 2025).",
    )
    warmup_steps: Annotated[_CountOrZero, AfterValidator(rules.warmup_ends)] = setting(
        lambda settings: min(10, settings.get("steps", 200) // 10),
        "Over how many first steps the learning rate rises to its full value; fewer than steps.",
        choose="10. The optimizer's averages need some steps before they can be trusted.",
        why="10, or a tenth of steps where that is less, so that a short run too reaches its learning rate.",
    )
    decay_share: _Share = setting(
        0.2,
        "Over which last share of the steps the learning rate falls to 0, in a straight line.",
        choose="0.2; 0 if you mean to go on from this run.",
        why="constant for most of the run, so that it can be made longer, and a fall that settles the weights.",
    )
    weight_decay: _Share = setting(
        0.0,
        "How strongly AdamW pulls the weights towards 0 (Loshchilov and Hutter 2019).",
        choose="0. A pull towards 0 is a pull away from the model you started with.",
        why="the student starts from a good model.",
    )
    max_grad_norm: _Positive = setting(
        1.0,
        "Gradients longer than this are shortened to it (Pascanu et al. 2013).",
        choose="1. Lower it if the alerts report single large gradients.",
        why="published on-policy runs use it.",
    )
    precision: Literal["float32"] = setting(
        "float32",
        "The number format of weights and activations; this version has one.",
        choose="Leave it out.",
        why="practice answers are then the same for any number of slots and any order of the batch.",
    )
    teacher_dtype: Literal["float32", "bfloat16"] = setting(
        "float32",
        "The number format of the teacher's weights; what it says of a text is turned into float32 either way.",
        choose="bfloat16 if the teacher does not fit into memory: half the bytes, a slightly rounded teacher.",
        why="the teacher as exact as the loss.",
    )
    max_prompt_tokens: _Count = setting(
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
    template: Annotated[_Text, "student, teacher, or the path of a template file"] = setting(
        "student",
        "Whose chat template turns messages into text, for both models. A relative path starts at the recipe's folder.",
        choose="student, since that is how the student will be asked in production.",
        why="the student will be asked in it.",
    )
    template_options: _Options = setting(
        {},
        "Values handed to the chat template, for example enable_thinking: false.",
        choose="Set what you will set in production. Both models get the same.",
        why="the template's own defaults.",
    )
    micro_batch_tokens: _Count = setting(
        4096,
        "How many tokens, padding included, go through a model at once while scoring and updating.",
        choose="As many as memory allows; it changes speed and memory, never the loss.",
        why="fits a small pair on a laptop.",
    )
    slots: _Count = setting(
        32,
        "How many practice answers are written at the same time.",
        choose="As many as memory allows; it changes speed and memory, and the answers by rounding at most.",
        why="one step of the default prompts_per_step in one go.",
    )
    chunk_tokens: _Count = setting(
        256,
        "For how many tokens at once the probabilities of the whole vocabulary are held in memory.",
        choose="Lower if the vocabulary is large and memory short; it changes memory and speed, never the loss.",
        why="at a vocabulary of 152,000 under 1 GB on a CPU and 2 GB on a GPU.",
    )
    evaluate_every: _Count = setting(
        20,
        "After how many steps the student is compared with the teacher on held-out prompts.",
        choose="So that you see about ten points in a run.",
        why="ten points in the default 200 steps.",
    )
    held_out_sample: _Count = setting(
        64,
        "How many held-out prompts each of these comparisons uses, always the same ones.",
        choose="More gives a steadier curve and takes longer. All held-out prompts if there are fewer.",
        why="a small share of a step's time at the default evaluate_every.",
    )
    seed: _CountOrZero = setting(
        0,
        "The number from which all randomness of the run follows.",
        choose="Any. Two runs that differ in the seed alone show how much of a difference is luck.",
        why="a run can be repeated without asking for it.",
    )
    name: _Name = setting(
        None,
        "The name of the run and of its folder.",
        choose="Leave it out and get one like calm-otter-17.",
        why="a new name for each run.",
    )
    workspace: Annotated[_Text, "the path of a folder"] = setting(
        ".",
        "The folder in which runs/ lies. A relative path starts at the current folder.",
        choose="One folder for all runs that you want to compare.",
        why="the current folder, where `limbeck runs` and `limbeck show` look too.",
    )
    device: _Device = setting(
        "auto",
        "Where the models run. auto takes the best device that this machine has and records which.",
        choose="auto, unless you share the machine.",
        why="a recipe can be passed on to another machine.",
    )

    def settings(self) -> dict[str, Any]:
        """All settings in force as plain values, none of another objective: read again, they are the same recipe."""
        unused = {name for name, objective in rules.OBJECTIVE_OF.items() if objective != self.objective}
        return self.model_dump(mode="json", exclude=unused)
