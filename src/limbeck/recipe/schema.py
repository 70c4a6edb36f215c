"""What a run learns, and from whom: the first half of a recipe's settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, ValidationInfo, field_validator

from limbeck.recipe import rules, types
from limbeck.recipe.parts import HostedApiSettings, OwnAnswers, PracticeGrowth, SamplingSettings, Settings, WarmUp

__all__ = ["MainSettings"]


class MainSettings(Settings):
    """Route, models, prompts, objective, and what the student and the teacher write."""

    route: Literal["on-policy", "off-policy", "supervised"] = "on-policy"
    """The way to train. on-policy: the student writes practice answers and the teacher scores each token. off-policy:
    the teacher writes answers once, and the student learns from them. supervised: the student learns the answers that
    stand beside the prompts.
    Choose: on-policy if the teacher is here and shares the student's vocabulary; off-policy for any other teacher;
    supervised for your own style, from a distilled student.
    Why: the student learns from its own mistakes, which a teacher's answers never show (Agarwal et al. 2024).
    """

    student: types.ModelText
    """The small model that learns: a hub id, a folder, a file.gguf, run:NAME to go on from a run (run:NAME@STEP from
    one of its checkpoints), or previous: the stage before in `limbeck train FIRST SECOND`.
    Choose: The largest model whose price and speed you can live with, of the teacher's family.
    Why: it is your decision.
    """

    teacher: types.TeacherText = types.with_teacher(None)
    """The large model: on-policy it scores every token of the student's practice answers, off-policy it writes the
    answers. Named as the student is, or openai:MODEL for one behind a chat API, off-policy alone.
    Choose: A model that clearly beats the student on your prompts. On-policy, and off-policy for any objective but
    cross_entropy, it must split text into the same tokens.
    Why: it is your decision; supervised training has none.
    """

    prompts: types.PathText
    """The file of prompts. A relative path starts at the folder of the recipe.
    Choose: Prompts as they come in production; a thousand or more if you have them. Only supervised training needs an
    answer beside each.
    Why: they are yours.
    """

    held_out: types.HeldOutSetting = 0.1
    """The prompts that are never practised and tell whether the student improved: a share, a count, a file.
    Choose: At least 100 prompts if you can; with fewer, only large improvements can be told from luck.
    Why: a tenth leaves most of the prompts for practice.
    """

    objective: Annotated[
        Literal["divergence", "kl_mix", "soft_targets", "cross_entropy"], AfterValidator(rules.check_objective)
    ] = types.with_teacher(
        default_factory=lambda settings: "divergence" if settings.get("route") == "on-policy" else "cross_entropy"
    )
    """What is minimised at each token. cross_entropy: -log of the student's probability of the teacher's text,
    off-policy only. divergence: a generalized Jensen-Shannon divergence, chosen by beta. kl_mix:
    forward_weight·KL(teacher‖student) + (1-forward_weight)·KL(student‖teacher). soft_targets:
    temperature²·KL(teacher‖student), both softened by temperature (Hinton et al. 2015).
    Choose: divergence. kl_mix if the student must learn words that it thinks impossible. Off-policy, cross_entropy
    works for any pair; with one vocabulary a divergence tells the student more at each token.
    Why: divergence on-policy, which holds both KL directions as its ends (Agarwal et al. 2024); cross_entropy
    off-policy, which any teacher allows (Kim and Rush 2016).
    """

    beta: types.Share = types.with_teacher(
        default_factory=lambda settings: (
            0.0 if (settings["route"], settings["objective"]) == ("off-policy", "divergence") else 1.0
        )
    )
    """Which divergence. With m = beta·teacher + (1-beta)·student it is D = beta·KL(teacher‖m) + (1-beta)·KL(student‖m).
    The ends: beta 0 is KL(teacher‖student), the forward KL; beta 1 is KL(student‖teacher), the reverse KL. Other tools
    may count the other way round.
    Choose: 0: cover everything the teacher might say. 1: commit to what it likes most. Between them a mix, in which
    only exactly 0 teaches a token that the student thinks impossible.
    Why: 1 on-policy: a small student cannot cover all that a large teacher might say (Gu et al. 2024); 0 off-policy,
    where the text is the teacher's.
    """

    scale: Literal["unit", "gkd"] = types.with_teacher("unit")
    """The size of the divergence between the ends of beta. gkd: the published number. unit: that divided by
    beta·(1-beta), so that the loss does not shrink near the ends, where it joins the two KLs.
    Choose: unit, unless you compare with a published run.
    Why: turning beta then changes the kind of pull and not its strength.
    """

    forward_weight: types.Share = types.with_teacher(0.5)
    """The weight w of w·KL(teacher‖student) + (1-w)·KL(student‖teacher).
    Choose: 0.5; higher if the student leaves things out, lower if it rambles.
    Why: both directions alike.
    """

    temperature: types.Positive = types.with_teacher(1.0)
    """Divides the logits of both models before the loss. Drawing tokens has its own: sampling.temperature.
    Choose: 1. For soft_targets 2 to 4, which shows the student the teacher's second and third thoughts.
    Why: the student is compared with the teacher as both are (Agarwal et al. 2024).
    """

    max_practice_tokens: types.Count = types.on_policy_only(256)
    """The longest practice answer, in tokens. What is longer is cut off and trained on as far as it goes.
    Choose: Just above the length of most of your teacher's answers: the main lever on time and memory.
    Why: holds a short answer, and beginnings alone teach much (2602.15260).
    """

    practice_growth: Annotated[PracticeGrowth | None, "null, or start and until"] = types.on_policy_only(None)
    """Lets the longest practice answer grow during the run; null keeps it at max_practice_tokens.
    Choose: Turn it on for limits over some 500 tokens, to save time and keep a weak student from rambling.
    Why: one thing less that changes during a run.
    """

    sampling: Annotated[SamplingSettings, "temperature, top_p and top_k"] = types.on_policy_only(SamplingSettings())
    """How the student draws the tokens of its practice answers.
    Choose: Leave it alone: practice should be what the student would write.
    Why: the student's own distribution, unchanged (Agarwal et al. 2024).
    """

    steps: types.Count = 200
    """How many times the student is updated.
    Choose: Most of the gain comes in the first 50 to 100 steps; go on while the held-out loss falls.
    Why: published repairs of a fine-tuned model take about 100 steps (Tinker cookbook); this leaves room.
    """

    prompts_per_step: types.Count = 32
    """How many prompts the student answers before each update; on the other routes, how many answers it reads.
    Choose: 32 to 128. More makes a step steadier and slower.
    Why: a size for one machine; published runs use 64 to 1024 (thunlp 64, NeMo-RL 128).
    """

    answers_per_prompt: types.Count = types.with_teacher(
        default_factory=lambda settings: 4 if settings.get("route") == "off-policy" else 1
    )
    """On-policy, how many practice answers the student writes for each prompt of a step; off-policy, how many answers
    the teacher writes to each prompt, once.
    Choose: 1 with a thousand prompts or more, 4 with fewer, 32 with a few dozen.
    Why: 1 on-policy, where new prompts teach more; 4 off-policy, where each answer is read again in every epoch.
    """

    on_policy_share: Annotated[types.PositiveShare, AfterValidator(rules.check_on_policy_share)] = types.on_policy_only(
        1.0
    )
    """Which share of a step's prompts the student answers itself. For the others it reads answers that the teacher
    wrote before training (warmup.answers_per_prompt of them to each prompt, 1 without a warm-up).
    Choose: 1; 0.5 to 0.8 if practice answers grow and go in circles.
    Why: what the student writes itself is what it has to learn to write (Agarwal et al. 2024).
    """

    warmup: Annotated[
        WarmUp | None, AfterValidator(rules.check_warmup_leaves_practice), "null, or steps and answers_per_prompt"
    ] = types.on_policy_only(None)
    """First steps on the teacher's answers, before practice begins; warmup_steps is about the learning rate.
    Choose: Turn it on if the student and the teacher hardly agree, or the student does not know how to stop.
    Why: a student of the teacher's family seldom needs it.
    """

    own_answers: Annotated[OwnAnswers | None, "null, or file and weight"] = types.with_teacher(None)
    """Answers that people wrote, learnt by cross-entropy beside what the teacher says.
    Choose: Only answers as good as the teacher's. For style alone, a supervised stage afterwards does more.
    Why: distillation needs no human answers.
    """

    train_on: Literal["last_turn", "all_turns"] = "last_turn"
    """Which assistant turns of a conversation are learnt: the last, or each of them, each in a row of its own.
    Choose: all_turns if every assistant turn is as you want it.
    Why: the last turn is the answer that a row is about.
    """

    max_teacher_tokens: types.Count = types.with_teacher(512)
    """The longest answer that the teacher writes to train on, in tokens. One that is cut off there is not learnt.
    Choose: Above the longest answer that you want; `limbeck answers` tells how many are cut off.
    Why: room for an answer that ends by itself.
    """

    teacher_temperature: types.TeacherTemperature = types.with_teacher(0.7)
    """Divides the teacher's logits when it writes answers to train on; 0 takes the likeliest token each time.
    Choose: 0.7 to 1 for several answers to a prompt; 0 for one.
    Why: different answers to one prompt with few slips.
    """

    teacher_examples: Annotated[types.NonEmptyText | None, "null, or the path of a file"] = types.with_teacher(None)
    """Rows with answers that the teacher is shown before each prompt, as turns of the conversation. They are never
    learnt, and no held-out row is among them.
    Choose: Two to five answers of your team, if the teacher does not answer as you want from the prompt alone.
    Why: a teacher that needs no example costs less.
    """

    hosted: Annotated[HostedApiSettings, "the address of a chat API, prices, caps and limits of the calls"] = (
        types.hosted_only(default_factory=HostedApiSettings)
    )
    """Where a teacher openai:MODEL is, what it may cost and how it is asked. Its key comes from the environment.
    Choose: base_url and one of the caps; see docs/hosted-teachers.md.
    Why: the settings of each part.
    """

    teacher_options: types.TemplateOptionsSetting = types.hosted_only({})
    """Further fields of a request to openai:MODEL, such as top_p: 0.9; null takes out temperature or seed.
    Choose: What you would send by hand. Some models refuse a temperature or a seed.
    Why: the API's own defaults.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _has_an_effect(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        user = rules.needed_for(name, cls.routes_of(name), info.data)
        if value is not None and user is not None:
            why = f"Only {user} uses {name}. A setting without effect is refused, not ignored."
            raise rules.fault("recipe.setting-unused", why, f"Remove {name}, or write {user}.")
        return value

    @classmethod
    def routes_of(cls, name: str) -> tuple[str, ...]:
        """The routes that use a setting."""
        extra = cast("dict[str, Any]", cls.model_fields[name].json_schema_extra or {})
        return tuple(extra.get("routes", types.EVERY))
