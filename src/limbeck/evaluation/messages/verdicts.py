"""Verdicts, next steps, and the notes of a result.

Points are hundredths of a score. `low` and `high` are the ends of the 95 % confidence interval, `num` the prompts.
"""

from __future__ import annotations

from limbeck.errors import Refusal, Text, UsageError, error, note


@note("evaluation.worth-it")
def worth_it(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "Distilling is worth it: the teacher is better than the original student "
        "({points:+d} points, 95% CI {low:+d} to {high:+d}). {num:prompt|prompts}."
    )


@note("evaluation.not-worth-it")
def not_worth_it(*, points: int, low: int, high: int, num: int, band: float) -> str:
    return (
        "Distilling is not worth it: the teacher is less than {band:g} points better than the original student "
        "({points:+d} points, 95% CI {low:+d} to {high:+d}). {num:prompt|prompts}."
    )


@note("evaluation.student-ahead")
def student_ahead(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "Distilling is not worth it: the teacher is worse than the original student "
        "({points:+d} points, 95% CI {low:+d} to {high:+d}). {num:prompt|prompts}."
    )


@note("evaluation.worth-undecided")
def worth_undecided(*, points: int, low: int, high: int, num: int, band: float) -> str:
    return (
        "No decision yet: the teacher may or may not be at least {band:g} points better than the original student "
        "({points:+d} points, 95% CI {low:+d} to {high:+d}). {num:prompt|prompts}."
    )


@note("evaluation.both-bad")
def both_bad() -> str:
    return (
        "For more than half of the prompts, neither model gives a good answer, so this teacher has little to transfer. "
        "First train the student on human-written answers."
    )


@note("evaluation.both-good")
def both_good() -> str:
    return (
        "For more than half of the prompts, both models give a good answer: the original student may be good enough "
        "already."
    )


@note("evaluation.better-and-near-teacher")
def better_and_near_teacher(*, points: int, low: int, high: int, num: int, band: float) -> str:
    return (
        "The distilled student is better than before ({points:+d} points, 95% CI {low:+d} to {high:+d}) and within "
        "{band:g} points of the teacher. {num:prompt|prompts}."
    )


@note("evaluation.better-and-far-from-teacher")
def better_and_far_from_teacher(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "The distilled student is better than before ({points:+d} points, 95% CI {low:+d} to {high:+d}), but the "
        "teacher is still better. {num:prompt|prompts}."
    )


@note("evaluation.better-in-wrong-style")
def better_in_wrong_style(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "The distilled student is better than before ({points:+d} points, 95% CI {low:+d} to {high:+d}), but many of "
        "its answers are right and in the wrong style. {num:prompt|prompts}."
    )


@note("evaluation.better-rest-undecided")
def better_rest_undecided(*, points: int, low: int, high: int, num: int, band: float) -> str:
    return (
        "No decision yet: the distilled student is better than before ({points:+d} points, 95% CI {low:+d} to "
        "{high:+d}), but it may or may not be within {band:g} points of the teacher. {num:prompt|prompts}."
    )


@note("evaluation.gain-undecided")
def gain_undecided(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "No decision yet: the distilled student may or may not be better than before "
        "({points:+d} points, 95% CI {low:+d} to {high:+d}). {num:prompt|prompts}."
    )


@note("evaluation.not-better")
def not_better(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "The distilled student is not better than before ({points:+d} points, 95% CI {low:+d} to {high:+d}). "
        "{num:prompt|prompts}."
    )


@note("evaluation.worse")
def worse(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "The distilled student is worse than before ({points:+d} points, 95% CI {low:+d} to {high:+d}). "
        "{num:prompt|prompts}."
    )


@note("evaluation.above-teacher")
def above_teacher(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "Check the grader and the prompts: the distilled student is better than its teacher "
        "({points:+d} points, 95% CI {low:+d} to {high:+d}). {num:prompt|prompts}. A weak grader or leaked prompts can "
        "cause this."
    )


@note("evaluation.gain")
def gain(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "Distilled student compared with the original student: {points:+d} points (95% CI {low:+d} to {high:+d}, "
        "{num:prompt|prompts})."
    )


@note("evaluation.teacher-lead")
def teacher_lead(*, points: int, low: int, high: int, num: int) -> str:
    return (
        "Teacher compared with the distilled student: {points:+d} points (95% CI {low:+d} to {high:+d}, "
        "{num:prompt|prompts})."
    )


@note("evaluation.recovered")
def recovered(*, share: float, low: float, high: float) -> str:
    return "Share of the gap recovered: {share:.0%} (95% CI {low:.0%} to {high:.0%})."


@note("evaluation.recovered-undefined")
def recovered_undefined() -> str:
    return "Share of the gap recovered: undefined."


@note("evaluation.more-prompts")
def more_prompts(*, num: int) -> str:
    return (
        "About {num:more prompt|more prompts} would probably settle it (4 in 5 if the difference is what it is now). "
        "Evaluate all of them before you look again."
    )


@note("evaluation.never-settled")
def never_settled(*, band: float) -> str:
    return (
        "The difference is so close to {band:g} points, the smallest difference that matters, that no number of "
        "prompts would settle it."
    )


@note("evaluation.overlap-no-verdict")
def no_verdict() -> str:
    return (
        "No verdict: character overlap does not show which answer is better. Add reference answers, --grader or "
        "--judge."
    )


@note("evaluation.next-distil")
def next_distil() -> str:
    return "Distil the student."


@note("evaluation.next-keep-student")
def next_keep_student() -> str:
    return "Use the original student, or choose another teacher."


@note("evaluation.next-human-answers")
def next_human_answers() -> str:
    return "First train the student on human-written answers, with a supervised recipe."


@note("evaluation.next-more-prompts")
def next_more_prompts() -> str:
    return "Evaluate again with more prompts."


@note("evaluation.next-export")
def next_export() -> str:
    return "Export the model."


@note("evaluation.next-style")
def next_style() -> str:
    return "Teach the student your style: train it on human-written answers, with a supervised recipe."


@note("evaluation.next-more-training")
def next_more_training() -> str:
    return "Train longer, with more steps or more prompts."


@note("evaluation.next-check-recipe")
def next_check_recipe() -> str:
    return "Check the recipe before you train again."


@note("evaluation.next-read-answers")
def next_read_answers() -> str:
    return "Read answers and their grades before you trust this result."


@note("evaluation.next-choose-grader")
def next_choose_grader() -> str:
    return "Choose how answers are graded."


@note("evaluation.gap-without-scale")
def gap_without_scale() -> str:
    return "undefined: preferences between two answers have no common scale"


@note("evaluation.gap-not-graded")
def gap_not_graded() -> str:
    return "undefined: the teacher's answers are not graded"


@note("evaluation.gap-uncertain")
def gap_uncertain() -> str:
    return "undefined: it is not certain that the teacher is better than the original student"


@note("evaluation.of-models")
def of_models(*, models: list[str], note: str) -> str:
    return "{models}: {note}"


@note("evaluation.answers-failed")
def answers_failed(*, model: str, num: int, total: int) -> str:
    return "{model}: failed requests, which have no answer: {num} of {total}."


@note("evaluation.answers-truncated")
def answers_truncated(*, model: str, num: int, total: int) -> str:
    return "{model}: truncated answers: {num} of {total}. Raise --max-tokens to let them finish."


@note("evaluation.answers-not-graded")
def answers_not_graded(*, model: str, num: int, total: int) -> str:
    return "{model}: answers without a grade, left out of its score: {num} of {total}."


@note("evaluation.not-comparable")
def not_comparable(*, first: str, second: str) -> str:
    return "{first} and {second} cannot be compared: no prompt has a grade for both."


@note("evaluation.not-comparable-because")
def not_comparable_because(*, first: str, second: str, reason: str) -> str:
    return (
        "{first} and {second} cannot be compared: no prompt has a grade for both. The most frequent reason: {reason}."
    )


@note("evaluation.setting-differs")
def setting_differs(*, setting: str, first: str, first_value: str, second: str, second_value: str) -> str:
    return "{setting}: {first_value} for {first}, {second_value} for {second}"


@note("evaluation.texts-differ")
def texts_differ(*, num: int, example: str) -> str:
    return "The two models got different text for {num:prompt|prompts}. The first of these: {example}"


@note("evaluation.text-differs")
def text_differs(*, source: str, character: int, first: str, second: str) -> str:
    return "{source}: from character {character}, {first!r} and {second!r}"


@note("evaluation.prompt-of-one-model")
def prompt_of_one_model(*, source: str, model: str) -> str:
    return "{source}: only {model} has an answer to this prompt"


@error(Refusal, "evaluation.prompts-unequal")
def prompts_unequal(*, num: int, first: str, second: str, listing: str) -> Text:
    return Text(
        given="{num:prompt differs|prompts differ} between {first} and {second}:{listing}\n",
        needed="A difference between two models means something only on the same prompts.",
        fix="Evaluate both models with the same file and the same template. Models of two families may each use their "
        "own template.",
    )


@error(Refusal, "evaluation.measures-mixed")
def measures_mixed(*, first: str, first_measure: str, second: str, second_measure: str) -> Text:
    return Text(
        given="The measure of {first} is {first_measure}, that of {second} is {second_measure}.",
        needed="A preference between two answers and the grade of one answer have no common scale.",
        fix="Use the same grader or the same judge for both.",
    )


@error(UsageError, "evaluation.nothing-graded")
def nothing_graded(*, models: list[str]) -> Text:
    return Text(
        given="No prompt has a grade for all of these models: {models}.",
        needed="A comparison needs prompts for which every model has a graded answer.",
        fix="See the reasons next to the answers. Add reference answers, or choose another grader.",
    )
