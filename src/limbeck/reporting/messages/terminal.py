"""Sentences of the terminal views."""

from __future__ import annotations

from limbeck.errors import note

__all__ = [
    "check_answer_ends",
    "check_memory_fits",
    "check_memory_too_small",
    "check_prompt",
    "check_prompts",
    "check_shared",
    "check_system_added",
    "check_system_none",
    "count",
    "evaluation_against",
    "evaluation_better",
    "evaluation_divergence",
    "evaluation_graded",
    "evaluation_latency",
    "evaluation_longer",
    "evaluation_longer_few",
    "evaluation_next",
    "evaluation_report",
    "evaluation_slices",
    "evaluation_title",
    "live_note",
    "live_objective",
    "live_phase",
    "machine_environment",
    "machine_environment_none",
    "marks_agree",
    "marks_beta",
    "marks_continued",
    "marks_legend_agrees",
    "marks_legend_mistake",
    "marks_legend_uncertain",
    "marks_num",
    "marks_probabilities",
    "marks_scored",
    "marks_title",
    "run_checkpoint",
    "run_loss_not_finite",
    "run_loss_not_finite_more",
    "run_measured",
    "run_model",
    "run_objective",
    "run_resumed",
    "run_state",
    "run_state_open",
    "run_worst_legend",
    "run_worst_title",
    "runs_none",
]


@note("report.evaluation-title")
def evaluation_title(*, question: str, name: str, num: int) -> str:
    return "{question} {name}, {num:prompt|prompts}"


@note("report.evaluation-against")
def evaluation_against(*, first: str, second: str) -> str:
    return "{first} against {second}"


@note("report.evaluation-better")
def evaluation_better(*, model: str) -> str:
    return "{model} better"


@note("report.evaluation-longer")
def evaluation_longer(*, share: str, num: int) -> str:
    return (
        "Where one answer is better and the lengths differ, the longer one is better on {share} of "
        "{num:prompt|prompts}."
    )


@note("report.evaluation-longer.few")
def evaluation_longer_few(*, num_longer: int, num: int) -> str:
    return (
        "Where one answer is better and the lengths differ, the longer one is better on {num_longer:,} of "
        "{num:prompt|prompts}."
    )


@note("report.evaluation-graded")
def evaluation_graded(*, num: int, asked: int) -> str:
    return "Prompts with a grade for both models: {num:,} of {asked:,}."


@note("report.evaluation-slices")
def evaluation_slices() -> str:
    return "On average, one in twenty of these intervals misses the true difference by chance."


@note("report.evaluation-latency")
def evaluation_latency(*, slots: int) -> str:
    return "Seconds per answer, with up to {slots:answer|answers} generated at the same time."


@note("report.evaluation-divergence")
def evaluation_divergence() -> str:
    return "nats from teacher: KL(model‖teacher) per token, on the model's own answers."


@note("report.evaluation-report")
def evaluation_report() -> str:
    return "All answers side by side, with marks if there are any:"


@note("report.evaluation-next")
def evaluation_next(*, step: str) -> str:
    return "Next: {step}"


@note("report.runs-none")
def runs_none(*, folder: str) -> str:
    return "No runs in {folder} yet. `limbeck demo` creates one."


@note("report.run-state")
def run_state(*, state: str, step: int, steps: int) -> str:
    return "State: {state} after step {step:,} of {steps:,}."


@note("report.run-state-open")
def run_state_open(*, state: str, step: int) -> str:
    return "State: {state} after step {step:,}."


@note("report.run-checkpoint")
def run_checkpoint(*, step: int) -> str:
    return "Last checkpoint: step {step:,}. Continue with:"


@note("report.run-objective")
def run_objective(*, objective: str) -> str:
    return "Objective: {objective}"


@note("report.run-resumed")
def run_resumed(*, step: int, time: str) -> str:
    return "Resumed from step {step:,} at {time}. Steps after {step:,} from before then are not shown."


@note("report.run-model")
def run_model(*, path: str) -> str:
    return "Model: {path}"


@note("report.run-measured")
def run_measured(*, num_prompts: int, num_tokens: int) -> str:
    return "The last evaluation used {num_prompts:prompt|prompts} and {num_tokens:token|tokens} of student text."


@note("report.run-loss-not-finite")
def run_loss_not_finite(*, steps: list[str]) -> str:
    return "The loss is not a finite number at step {steps}."


@note("report.run-loss-not-finite.more")
def run_loss_not_finite_more(*, steps: list[str], more: int) -> str:
    return "The loss is not a finite number at step {steps} and {more:more step|more steps}."


@note("report.count")
def count(*, num: str, of: int) -> str:
    return "{num} of {of:,}"


@note("report.run-worst-title")
def run_worst_title(*, step: int) -> str:
    return "Worst tokens of step {step:,}"


@note("report.run-worst-legend")
def run_worst_legend() -> str:
    return "student, teacher: log-probability that each model gives the token, in nats."


@note("report.check-prompt")
def check_prompt(*, source: str, num: int) -> str:
    return "{source}, {num:token|tokens}"


@note("report.check-prompts")
def check_prompts(*, train: int, held_out: int, shortest: int, longest: int, median: int) -> str:
    return (
        "{train:prompt|prompts} for training, {held_out:,} held out. Length: {shortest:,} to {longest:,} tokens, "
        "median {median:,}."
    )


@note("report.check-system-none")
def check_system_none() -> str:
    return "The chat template adds no system message."


@note("report.check-system-added")
def check_system_added(*, text: str) -> str:
    return "The chat template adds a system message to rows without one: {text}"


@note("report.check-shared")
def check_shared(*, num: int) -> str:
    return "Shared vocabulary: {num:token id|token ids}. Both output heads are restricted to them."


@note("report.check-answer-ends")
def check_answer_ends(*, tokens: list[str], template: str) -> str:
    return "Stop tokens: {tokens}. Chat template: {template}."


@note("report.check-memory-fits")
def check_memory_fits(*, phase: str, peak: str, free: str) -> str:
    return (
        "The run fits: about {peak} of {free} free. Most memory is needed in the {phase} phase. Activations are "
        "estimated, everything else is counted."
    )


@note("report.check-memory-too-small")
def check_memory_too_small(*, phase: str, peak: str, free: str) -> str:
    return (
        "The run DOES NOT FIT: it needs about {peak}, and {free} is free. Most memory is needed in the {phase} phase. "
        "Activations are estimated, everything else is counted."
    )


@note("report.machine-environment")
def machine_environment(*, settings: list[str]) -> str:
    return "Environment variables: {settings}"


@note("report.machine-environment-none")
def machine_environment_none() -> str:
    return "Environment variables: none set."


@note("report.live-note")
def live_note(*, text: str) -> str:
    return "note: {text}"


@note("report.live-phase")
def live_phase(*, phase: str) -> str:
    return "{phase} ..."


@note("report.live-objective")
def live_objective(*, objective: str) -> str:
    return "objective: {objective}"


@note("report.marks-title")
def marks_title(*, source: str, step: int) -> str:
    return "{source}, step {step:,}"


@note("report.marks-num")
def marks_num(*, num: int, tokens: int) -> str:
    return "Marked: {num:,} of {tokens:token|tokens}."


@note("report.marks-agree")
def marks_agree() -> str:
    return "Student and teacher agree on the whole answer."


@note("report.marks-scored")
def marks_scored(*, student: str, teacher: str) -> str:
    return "Answers of {student}, scored by {teacher}."


@note("report.marks-legend-mistake")
def marks_legend_mistake() -> str:
    return "«x» mistake: the teacher is confident in another token."


@note("report.marks-legend-agrees")
def marks_legend_agrees() -> str:
    return "‹x› mild: the teacher agrees or nearly agrees."


@note("report.marks-legend-uncertain")
def marks_legend_uncertain() -> str:
    return "(x) uncertain: the teacher has no clear preference either."


@note("report.marks-probabilities")
def marks_probabilities() -> str:
    return "student, teacher: the probability that each model gives the token."


@note("report.marks-beta")
def marks_beta(*, beta: str) -> str:
    return "nats: the divergence of both models at that position (beta {beta}, unit scale)."


@note("report.marks-continued")
def marks_continued(*, position: int) -> str:
    return "From position {position:,}"
