"""Labels, column heads and titles, by their codes. A terminal view and the page use the same words."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "ALIASES",
    "CHECK",
    "CURVES",
    "DECISIONS",
    "EVALUATION",
    "EXPLAIN",
    "FILTERS",
    "MACHINE",
    "MARKS",
    "NOTEBOOK",
    "PAGE",
    "PAIR_SETS",
    "PHASES",
    "QUESTIONS",
    "RUNS",
    "SETS",
]

Labels = Mapping[str, str]

# Titles of evaluations, by their kind.
QUESTIONS: Labels = {
    "worth": "Is it worth distilling?",
    "after": "Did it work?",
    "compare": "Which model answers better?",
}

# Decisions as headlines of the page; others are shown with a capital.
DECISIONS: Labels = {
    "don't": "Don’t distil",
    "not sure": "Not sure yet",
    "check grader and leak": "Check grader and leak",
}

# How the models of an evaluation are called in a table.
ALIASES: Labels = {"human_written": "human-written"}

EVALUATION: Labels = {
    "scores": "Scores and answers",
    "answers": "Answers",
    "score": "score",
    "answered": "answered",
    "failed": "failed",
    "truncated": "truncated",
    "empty": "empty",
    "not_graded": "not graded",
    "lengths": "Answer length in tokens",
    "mean": "mean",
    "median": "median",
    "p90": "90th percentile",
    "speed": "Speed and cost",
    "tokens_per_s": "tokens/s",
    "latency_p50": "median seconds",
    "latency_p95": "95th percentile seconds",
    "cost": "cost of 1,000 answers",
    "divergence": "nats from teacher",
    "models": "Models",
    "slices": "Slices",
    "comparison": "comparison",
    "points": "points",
    "interval": "95% interval",
    "prompts": "prompts",
    "notes": "Notes",
    "both_good": "both good",
    "both_bad": "both bad",
    "tied": "tied",
}

RUNS: Labels = {
    "run": "run",
    "state": "state",
    "step": "step",
    "steps": "steps",
    "checkpoint": "checkpoint",
    "held_out_divergence": "Held-out divergence in nats per token, with 95% intervals",
    "held_out_cross_entropy": "Held-out cross-entropy of reference answers in nats per token, with 95% intervals",
    "teacher_text": "teacher's text",
    "reference_text": "reference answers",
    "student_text": "student's text",
    "agreement": "same top token",
    "mean_length": "mean length",
    "truncated": "truncated",
    "curves": "Steps",
    "first": "first",
    "last": "last",
    "curve": "curve",
    "token": "token",
    "nats": "nats",
    "student": "student",
    "teacher": "teacher",
    "prompt": "prompt",
    "position": "position",
}

# The curves of a run, by the field of a `step` event.
CURVES: Labels = {
    "loss": "loss, nats per token",
    "grad_norm": "gradient norm",
    "mean_length": "answer length, tokens",
    "cut_off_share": "truncated answers, share",
    "student_entropy": "student entropy, nats",
    "teacher_entropy": "teacher entropy, nats",
    "agreement": "same top token, share",
    "write_us_per_token": "generation, µs per token",
    "score_us_per_token": "scoring, µs per token",
    "own_answers_loss": "human-written answers, nats per token",
}

CHECK: Labels = {
    "prompts": "Prompts, as the student receives them",
    "pair": "Models",
    "memory": "Memory",
    "objective": "Objective",
    "notes": "Notes",
    "check": "check",
    "claim": "claim",
    "measured": "measured",
    "limit": "must be",
    "result": "result",
    "passed": "ok",
    "failed": "FAILED",
    "role": "role",
    "student": "student",
    "teacher": "teacher",
    "model": "model",
    "tokens": "tokens",
    "head_rows": "rows of output head",
    "generation": "generation method",
    "component": "component",
    "size": "size",
    "phases": "needed in",
    "property": "property",
    "true": "yes",
    "false": "no",
    "value": "value",
}

# Phases as memory plans and older runs name them, and the words for them; others are shown as they are.
PHASES: Labels = {
    "load": "loading",
    "write": "generation",
    "writing": "generation",
    "score": "scoring",
    "reading": "scoring",
    "updating": "update",
}

# Properties of the machine, by the field of `doctor`; the versions of libraries have the names of the libraries.
MACHINE: Labels = {
    "device": "device",
    "device_name": "device name",
    "total_bytes": "total memory",
    "free_bytes": "free memory",
    "num_threads": "threads",
    "matmul_precision": "matmul precision",
    "bf16": "bfloat16 saves time",
    "bf16_speed": "bfloat16 speed, relative to float32",
    "libc": "C library",
    "python": "Python",
    "keeps_memory": "keeps freed memory",
    "large_pages": "large pages",
}

MARKS: Labels = {
    "position": "position",
    "token": "token",
    "student": "student",
    "teacher": "teacher",
    "choice": "teacher's choice",
    "nats": "nats",
    "kind": "kind",
    "first_mistake": "first mistake",
    "mistake": "mistake",
    "uncertain": "teacher uncertain",
    "less_likely": "less likely",
    "agrees": "teacher agrees",
    "student_ending": "student's ending",
    "teacher_ending": "teacher's ending",
    "truncated": " [truncated]",
}

EXPLAIN: Labels = {
    "routes": "Routes: ",
    "objective": "Objective: ",
    "accepts": "Accepts: ",
    "choose": "How to choose: ",
    "default": "Default: ",
}

# Sets of rows, by the name of the set; {first} and {second} are models.
SETS: Labels = {
    "differ": "one model is better than another",
    "lost": "lost to the other model",
    "both_bad": "both bad",
    "cut_off": "truncated",
    "empty": "an empty answer",
    "failed": "no answer",
    "not_graded": "not graded",
    "graded": "graded",
    "asked": "requested",
    "answered": "answered",
}
PAIR_SETS: Labels = {
    "compared": "both {first} and {second} are graded",
    "not_compared": "{first} or {second} is not graded",
    "first_better": "{first} better than {second}",
    "second_better": "{second} better than {first}",
    "tied": "{first} and {second} tied",
    "both_good": "{first} and {second} both good",
    "both_bad": "{first} and {second} both bad",
    "longer_won": "the longer answer is better, of {first} and {second}",
    "longer_lost": "the shorter answer is better, of {first} and {second}",
    "won_by_length": "the better answer of {first} and {second} is longer or shorter",
}
FILTERS: Labels = {
    "differ": "Only where they differ",
    "both_bad": "Both bad",
    "cut_off": "Truncated",
    "empty": "Empty",
    "failed": "Failed",
    "not_graded": "Not graded",
}

# Heads of the tables in notebook cells, by the field of an event; others are shown as they are.
NOTEBOOK: Labels = {**CURVES, "learning_rate": "learning rate", "step_s": "seconds per step"}

PAGE: Labels = {
    "skip": "Skip to the rows",
    "sections": "Sections",
    "verdict": "Verdict",
    "models": "Models",
    "slices": "Slices",
    "about": "Settings",
    "rows": "Rows",
    "marks": "Marks",
    "next": "Next:",
    "comparisons": "Comparisons",
    "lengths": "Length of the answers",
    "measured": "How this was measured",
    "prompts": "Prompts",
    "seed": "Seed",
    "created": "Created",
    "show_all": "Show all",
    "filters": "Filter rows",
    "all": "All",
    "find": "Search",
    "rows_found": "Rows with “{text}”: {num}",
    "save": "Save the data as JSON",
    "recovered": "Share of the gap recovered",
    "student": "student",
    "teacher": "teacher",
    "undefined": "undefined",
    "tied": "Tied",
    "both_good": "Both good",
    "both_bad": "Both bad",
    "table_of_models": "Table of models",
    "table_of_slices": "Table of slices",
    "score": "Score",
    "requested": "Requested",
    "answered": "Answered",
    "failed": "Failed",
    "truncated": "Truncated",
    "empty": "Empty",
    "not_graded": "Not graded",
    "mean_length": "Mean length",
    "median_length": "Median length",
    "p90_length": "90th percentile of length",
    "speed": "Speed",
    "median_latency": "Median time per answer",
    "p95_latency": "95th percentile of time",
    "cost": "Cost of 1,000 answers",
    "divergence": "Divergence from teacher",
    "agreement": "Same top token as teacher",
    "tokens": "tokens",
    "tokens_per_s": "tokens/s",
    "seconds": "seconds",
    "nats": "nats per token",
    "human_written": "Human-written",
    "slice_prompts": "Prompts",
    "slice_points": "Points",
    "no_reason": "no reason recorded",
    "empty_answer": "The answer is empty.",
    "no_model": "No model has an answer.",
    "reference": "Reference answer",
    "answer_right": "✓ right",
    "answer_wrong": "✗ wrong",
    "answer_ungraded": "not graded",
    "answer_truncated": "✂ truncated",
    "see_marks": "see the marks",
    "first_mistake": "first mistake",
    "teacher_choice": "teacher:",
    "distributions": "Both distributions",
    "token": "token",
    "everything_else": "all other tokens",
}
