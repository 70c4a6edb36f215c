"""Errors of `limbeck report`, and the sentences of the HTML page and of notebook cells."""

from __future__ import annotations

from limbeck.errors import LimbeckError, Text, UsageError, error, note

__all__ = [
    "against",
    "answer_of_row",
    "answers_missing",
    "axis_difference",
    "axis_share",
    "better",
    "better_than",
    "cell_evaluation",
    "cell_marks",
    "footer",
    "length_of_won",
    "length_of_won_few",
    "lengths_note",
    "lost_to",
    "mark_details",
    "mark_first_mistake",
    "mark_in_text",
    "mark_probabilities",
    "mark_uncertain",
    "marks_agree",
    "marks_divergence",
    "marks_legend",
    "marks_num",
    "marks_student_at",
    "marks_title",
    "models_compared",
    "no_answer",
    "not_compared",
    "not_html",
    "not_written",
    "num_prompts",
    "num_tokens",
    "of_grades",
    "points_of",
    "prompt_of_marked",
    "prompt_of_row",
    "prompts_of",
    "ranges",
    "ranges_with_band",
    "recovered_formula",
    "reference_of_row",
    "resamples",
    "row",
    "rows_shown",
    "score_of",
    "slices_note",
    "versions",
]


@error(UsageError, "report.not-html")
def not_html(*, output: str, name: str) -> Text:
    return Text(
        given="The report cannot be written to {output}.",
        needed="A report is an HTML page: its name must end in .html, and its folder must exist.",
        fix="Create the folder, or use -o {name}.html.",
    )


@error(LimbeckError, "report.not-written")
def not_written(*, reason: str) -> Text:
    return Text(
        given="{reason}",
        needed="The page was not written: Limbeck never leaves half a file.",
        fix="Free disk space, change the permissions, or write to another folder with -o.",
    )


@note("report.answers-missing")
def answers_missing(*, models: list[str], folder: str) -> str:
    return "Not shown: the answers of {models}. Their files are no longer in {folder}."


@note("report.models-compared")
def models_compared(*, num: int) -> str:
    return "{num:model|models} compared"


@note("report.num-prompts")
def num_prompts(*, num: int) -> str:
    return "{num:prompt|prompts}"


@note("report.num-tokens")
def num_tokens(*, num: int) -> str:
    return "{num:token|tokens}"


@note("report.points-of")
def points_of(*, points: str) -> str:
    return "{points} points"


@note("report.of-grades")
def of_grades(*, num: int) -> str:
    return "{num:grade|grades}"


@note("report.recovered-formula")
def recovered_formula() -> str:
    return "(distilled − original student) / (teacher − original student)"


@note("report.length-of-won")
def length_of_won(*, share: str, low: str, high: str, prompts: str) -> str:
    return (
        "Where one answer is better and the lengths differ, the longer one is better on {share} ({low} to {high}) of "
        "{prompts}."
    )


@note("report.length-of-won.few")
def length_of_won_few(*, num_longer: str, prompts: str) -> str:
    return "Where one answer is better and the lengths differ, the longer one is better on {num_longer} of {prompts}."


@note("report.not-compared")
def not_compared(*, missing: str, asked: int, first: str, num_first: int, second: str, num_second: int) -> str:
    return (
        "Not compared: {missing} of {asked:prompt|prompts}. Not graded: {first} {num_first:,}, {second} {num_second:,}."
    )


@note("report.ranges")
def ranges() -> str:
    return "Ranges are 95% intervals. Underlined numbers link to their rows."


@note("report.ranges-with-band")
def ranges_with_band(*, points: int) -> str:
    return (
        "Ranges are 95% intervals. Differences within the shaded area, up to {points:point|points}, are too small to "
        "matter. Underlined numbers link to their rows."
    )


@note("report.lengths-note")
def lengths_note() -> str:
    return "Mean answer length in tokens. A student adopts the answer length of the texts it is trained on."


@note("report.slices-note")
def slices_note() -> str:
    return "On average, one in twenty of these intervals misses the true difference by chance."


@note("report.versions")
def versions(*, created: str, limbeck: str) -> str:
    return "{created} with Limbeck {limbeck}"


@note("report.resamples")
def resamples(*, seed: int, num: int) -> str:
    return "{seed}, {num:resample|resamples}"


@note("report.prompts-of")
def prompts_of(*, num: int, files: list[str]) -> str:
    return "{num:,} from {files}"


@note("report.rows-shown")
def rows_shown(*, num: str, of: int, label: str) -> str:
    return "{num} of {of:row|rows}: {label}."


@note("report.no-answer")
def no_answer(*, reason: str) -> str:
    return "No answer: {reason}"


@note("report.marks-legend")
def marks_legend() -> str:
    return (
        "The worst tokens of an answer. Thick line: the teacher is confident in another token. Thin line: the teacher "
        "agrees or nearly agrees. Dashed line: the teacher is uncertain too. The first mistake is the first thick "
        "line: everything after it builds on it."
    )


@note("report.mark-probabilities")
def mark_probabilities(*, student: str, teacher: str) -> str:
    return "Probability of this token: student {student}, teacher {teacher}."


@note("report.mark-uncertain")
def mark_uncertain() -> str:
    return "The teacher is uncertain too."


@note("report.mark-first-mistake")
def mark_first_mistake() -> str:
    return "The rest of the answer builds on this token."


@note("report.mark-details")
def mark_details(*, position: int, nats: str, rank: int, teacher: str, student: str) -> str:
    return (
        "Position {position:,}. Divergence: {nats} nats. Tokens that the teacher prefers to this one: {rank:,}. "
        "Entropy: teacher {teacher} nats, student {student} nats."
    )


@note("report.marks-page-title")
def marks_title(*, source: str, student: str, teacher: str) -> str:
    return "{source}: {student}, scored by {teacher}"


@note("report.marks-of-run")
def marks_student_at(*, student: str, step: int) -> str:
    return "{student}, step {step:,}"


@note("report.marks-page-num")
def marks_num(*, num: int, tokens: int) -> str:
    return "Marked: {num:,} of {tokens:token|tokens}."


@note("report.marks-page-agree")
def marks_agree() -> str:
    return "Student and teacher agree on the whole answer."


@note("report.marks-divergence")
def marks_divergence(*, beta: str) -> str:
    return "Nats: the divergence of both models (beta {beta}, unit scale, temperature 1)."


@note("report.footer")
def footer(*, name: str, created: str, limbeck: str) -> str:
    return (
        "{name}, created {created} with Limbeck {limbeck}. This file contains everything on the page; it loads nothing."
    )


@note("report.better")
def better(*, model: str) -> str:
    return "{model} better"


@note("report.better-than")
def better_than(*, first: str, second: str) -> str:
    return "{first} better than {second}"


@note("report.against")
def against(*, first: str, second: str) -> str:
    return "{first} against {second}"


@note("report.lost-to")
def lost_to(*, model: str) -> str:
    return "Lost to {model}"


@note("report.score-of")
def score_of(*, model: str) -> str:
    return "score of {model}"


@note("report.row")
def row(*, number: int) -> str:
    return "row {number:,}"


@note("report.prompt-of-row")
def prompt_of_row(*, number: int) -> str:
    return "prompt {number:,}"


@note("report.answer-of-row")
def answer_of_row(*, model: str, number: int) -> str:
    return "{model}, prompt {number:,}"


@note("report.reference-of-row")
def reference_of_row(*, number: int) -> str:
    return "reference answer, prompt {number:,}"


@note("report.prompt-of-marked")
def prompt_of_marked(*, number: int) -> str:
    return "prompt of marked answer {number:,}"


@note("report.mark-in-text")
def mark_in_text(*, number: int) -> str:
    return "mark {number:,} in the text"


@note("report.axis-difference")
def axis_difference(*, label: str, points: str, low: str, high: str) -> str:
    return "{label}: {points} points, 95% interval {low} to {high}, on an axis from −100 to +100"


@note("report.axis-share")
def axis_share(*, label: str, share: str, low: str, high: str) -> str:
    return "{label}: {share}, 95% interval {low} to {high}"


@note("report.cell-evaluation")
def cell_evaluation(*, name: str) -> str:
    return "Evaluation {name}"


@note("report.cell-marks")
def cell_marks(*, student: str, teacher: str) -> str:
    return "{student}, scored by {teacher}"
