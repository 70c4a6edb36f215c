"""The main settings of a recipe: route, models, prompts, objective and answers. Read this first.

The settings that most users change are route, student, teacher, prompts, beta and the two answer limits,
max_practice_tokens and max_teacher_tokens. `recipe.py` adds how training runs (optimizer, precision, memory, folders).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, ValidationInfo, field_validator

from limbeck.recipe import messages, types
from limbeck.recipe.parts import HostedApiSettings, OwnAnswers, PracticeGrowth, SamplingSettings, Settings, WarmUp

__all__ = ["MainSettings"]


class MainSettings(Settings):
    """Route, models, prompts and objective, and how student and teacher generate answers."""

    route: Literal["on-policy", "off-policy", "supervised"] = "on-policy"
    """The training method. on-policy: the student generates practice answers and the teacher scores each of their
    tokens. off-policy: the teacher generates answers once, and the student is trained on them. supervised: the student
    is trained on the reference answers in the prompt file.
    Choose: on-policy if the teacher is a local model that shares the student's vocabulary; off-policy for any other
    teacher; supervised to teach a distilled student your own style.
    Why: the student learns from its own mistakes, which the teacher's answers do not contain (Agarwal et al. 2024).
    """

    student: types.ModelText
    """The small model to train: a hub id, a folder, a .gguf file, run:NAME to start from the result of a run
    (run:NAME@STEP from one of its checkpoints), or previous: the stage before in `limbeck train FIRST SECOND`.
    Choose: The largest model that is fast and cheap enough for your use, from the teacher's model family.
    Why: it depends on your task.
    """

    teacher: types.TeacherText = types.with_teacher(None)
    """The large model to learn from. On-policy it scores every token of the student's practice answers; off-policy it
    generates the answers. Specified as for student; off-policy also openai:MODEL for a model at a hosted API.
    Choose: A model that is clearly better than the student on your prompts (`limbeck worth` measures it). Every
    objective but cross_entropy requires a local model that tokenises text as the student does.
    Why: it depends on your task; supervised training has no teacher.
    """

    prompts: types.PathText
    """The file with the prompts. A relative path starts at the recipe's folder.
    Choose: Prompts as they occur in production, a thousand or more if you have them. Only supervised training needs
    reference answers in the same rows.
    Why: it is your data.
    """

    held_out: types.HeldOutSetting = 0.1
    """The held-out prompts, which are used for evaluation and never for training: a share, a count or a file.
    Choose: At least 100 prompts if you can. With fewer, only large improvements can be distinguished from chance.
    Why: a tenth leaves most prompts for training.
    """

    objective: Annotated[
        Literal["divergence", "kl_mix", "soft_targets", "cross_entropy"], AfterValidator(types.check_objective)
    ] = types.with_teacher(
        default_factory=lambda settings: "divergence" if settings.get("route") == "on-policy" else "cross_entropy"
    )
    """The loss of each token. divergence: a generalised Jensen-Shannon divergence, set by beta. kl_mix:
    forward_weight·KL(teacher‖student) + (1-forward_weight)·KL(student‖teacher). soft_targets:
    temperature²·KL(teacher‖student), both softened by temperature (Hinton et al. 2015). cross_entropy: the negative
    log-probability of the teacher's text under the student, off-policy only.
    Choose: divergence; kl_mix if the student must learn tokens to which it gives almost no probability. Off-policy,
    cross_entropy works for any pair of models; with a shared vocabulary, a divergence gives more signal per token.
    Why: divergence on-policy, since it covers both directions of the KL divergence (Agarwal et al. 2024); cross_entropy
    off-policy, since it works with any teacher (Kim and Rush 2016).
    """

    beta: types.Share = types.with_teacher(
        default_factory=lambda settings: (
            0.0 if (settings["route"], settings["objective"]) == ("off-policy", "divergence") else 1.0
        )
    )
    """The kind of divergence. With m = beta·teacher + (1-beta)·student it is
    D = beta·KL(teacher‖m) + (1-beta)·KL(student‖m). At its ends, beta 0 is KL(teacher‖student), the
    forward KL, and beta 1 is KL(student‖teacher), the reverse KL. Some other tools use the opposite direction.
    Choose: 0 to cover everything that the teacher might say, 1 to concentrate on what it is most likely to say, or a
    mix between them. Only exactly 0 teaches tokens to which the student gives almost no probability.
    Why: 1 on-policy, since a small student cannot cover everything that a large teacher might say (Gu et al. 2024); 0
    off-policy, where the text is the teacher's.
    """

    scale: Literal["unit", "gkd"] = types.with_teacher("unit")
    """The scale of the divergence for beta between 0 and 1. gkd: as published. unit: the published value divided by
    beta·(1-beta), so that the loss does not vanish near 0 and 1, where it meets the two KL divergences.
    Choose: unit, unless you compare with a published run.
    Why: changing beta then changes the direction of the gradient and hardly its size.
    """

    forward_weight: types.Share = types.with_teacher(0.5)
    """The weight w in w·KL(teacher‖student) + (1-w)·KL(student‖teacher).
    Choose: 0.5; higher if the student leaves things out, lower if it rambles.
    Why: both directions equally.
    """

    temperature: types.Positive = types.with_teacher(1.0)
    """The temperature of the loss: the logits of both models are divided by it. Generation has its own:
    sampling.temperature.
    Choose: 1. For soft_targets 2 to 4, so that less likely tokens of the teacher count for more.
    Why: both models are compared as they are (Agarwal et al. 2024).
    """

    max_practice_tokens: types.Count = types.on_policy_only(256)
    """The maximum length of a practice answer, in tokens. Longer answers are truncated; the part that was generated
    still trains.
    Choose: Slightly above the length of most teacher answers. It affects time and memory more than any other setting.
    Why: long enough for a short answer, and the beginning of an answer already teaches a lot (arXiv 2602.15260).
    """

    practice_growth: Annotated[PracticeGrowth | None, "null, or start and until"] = types.on_policy_only(None)
    """A schedule that lets the maximum length of practice answers grow during the run; null keeps it at
    max_practice_tokens.
    Choose: Use it for limits above about 500 tokens: it saves time and keeps a weak student from rambling.
    Why: one thing less that changes during a run.
    """

    sampling: Annotated[SamplingSettings, "temperature, top_p and top_k"] = types.on_policy_only(SamplingSettings())
    """How the tokens of practice answers are sampled.
    Choose: The defaults: practice should match what the student would generate.
    Why: the student's own distribution, unchanged (Agarwal et al. 2024).
    """

    steps: types.Count = 200
    """The number of training steps, each with one update of the student.
    Choose: Most of the gain comes in the first 50 to 100 steps; train longer while the held-out loss falls.
    Why: published runs that restore a fine-tuned model take about 100 steps (Tinker cookbook); 200 leaves a margin.
    """

    prompts_per_step: types.Count = 32
    """The number of prompts per training step: on-policy the student answers them; on the other routes, the number of
    answers in a step.
    Choose: 32 to 128. Larger steps are less noisy and slower.
    Why: a size for one machine; published runs use 64 to 1024 (thunlp 64, NeMo-RL 128).
    """

    answers_per_prompt: types.Count = types.with_teacher(
        default_factory=lambda settings: 4 if settings.get("route") == "off-policy" else 1
    )
    """On-policy, the number of practice answers for each prompt of a step; off-policy, the number of answers that the
    teacher generates for each prompt, once.
    Choose: 1 with a thousand prompts or more, 4 with fewer, 32 with a few dozen.
    Why: 1 on-policy, where new prompts teach more; 4 off-policy, where each answer is used again in every epoch.
    """

    on_policy_share: Annotated[types.PositiveShare, AfterValidator(types.check_on_policy_share)] = types.on_policy_only(
        1.0
    )
    """The share of a step's prompts with practice answers. The other prompts train on answers that the teacher
    generated before training (warmup.answers_per_prompt of them for each prompt, 1 without a warm-up).
    Choose: 1; 0.5 to 0.8 if practice answers become long and repetitive.
    Why: the student has to improve what it generates itself (Agarwal et al. 2024).
    """

    warmup: Annotated[
        WarmUp | None, AfterValidator(types.check_warmup_leaves_practice), "null, or steps and answers_per_prompt"
    ] = types.on_policy_only(None)
    """First steps on the teacher's answers, before practice answers begin. The warm-up of the learning rate is another
    setting: warmup_steps.
    Choose: Use it if student and teacher rarely agree, or if the student does not end its answers.
    Why: a student from the teacher's model family rarely needs it.
    """

    own_answers: Annotated[OwnAnswers | None, "null, or file and weight"] = types.with_teacher(None)
    """Human-written answers to train on by cross-entropy, in addition to the teacher's signal.
    Choose: Only answers that are as good as the teacher's. For style alone, a supervised stage afterwards does more.
    Why: distillation needs no human-written answers.
    """

    train_on: Literal["last_turn", "all_turns"] = "last_turn"
    """The assistant turns of a conversation to train on: the last, or all of them, each as a row of its own.
    Choose: all_turns if every assistant turn is as you want it.
    Why: the last turn is the answer to the row's prompt.
    """

    max_teacher_tokens: types.Count = types.with_teacher(512)
    """The maximum length of a teacher answer to train on, in tokens. Truncated answers are left out.
    Choose: Above the longest answer that you want; `limbeck answers` reports how many are truncated.
    Why: long enough for most answers to end on their own.
    """

    teacher_temperature: types.TeacherTemperature = types.with_teacher(0.7)
    """The temperature at which the teacher generates answers to train on; at 0 it always takes the most likely token.
    Choose: 0.7 to 1 for several answers per prompt; 0 for one.
    Why: the answers to a prompt differ and still contain few mistakes.
    """

    teacher_examples: Annotated[types.NonEmptyText | None, "null, or the path of a file"] = types.with_teacher(None)
    """A file of rows with answers that the teacher sees before each prompt, as turns of the conversation. The student
    is not trained on them, and held-out rows are never used.
    Choose: Two to five human-written answers, if the teacher does not answer as you want from the prompt alone.
    Why: without examples, the teacher's requests are shorter and cheaper.
    """

    hosted: Annotated[HostedApiSettings, "a section with base_url, prices, caps and limits"] = types.hosted_only(
        default_factory=HostedApiSettings
    )
    """The endpoint, prices, budget and limits of a teacher openai:MODEL. Its API key comes from the environment.
    Choose: Set base_url and one of the caps (max_cost, max_total_tokens, max_calls).
    Why: see its parts.
    """

    teacher_options: types.TemplateOptionsSetting = types.hosted_only({})
    """Additional fields of each request to openai:MODEL, such as top_p: 0.9; null removes temperature or seed from the
    request.
    Choose: The fields that you would send yourself. Some models reject a temperature or a seed.
    Why: the API's own defaults.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _has_an_effect(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        user = types.needed_for(name, cls.routes_of(name), info.data)
        if value is not None and user is not None:
            raise types.setting_error(messages.setting_unused(key=name, user=user))
        return value

    @classmethod
    def routes_of(cls, name: str) -> tuple[str, ...]:
        """The routes that use a setting."""
        extra = cast("dict[str, Any]", cls.model_fields[name].json_schema_extra or {})
        return tuple(extra.get("routes", types.EVERY))
