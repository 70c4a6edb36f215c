"""A judge in an evaluation: it compares the stored answers of each pair of models, and its replies are stored beside.

Its preferences are the only measure of an evaluation that has a judge. Where rows have a grader too, the notes say how
far both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Message, PromptRow
from limbeck.errors import DataError
from limbeck.evaluation.answering.answers import Log, load_side
from limbeck.evaluation.answering.hosted import hosted_settings, hosted_teacher
from limbeck.evaluation.answering.sides import Named, Side, all_sides
from limbeck.evaluation.grading.judge import Judged, Rubric, ask_judge, pairs_of, read_rubric
from limbeck.models.resolve import parse_ref
from limbeck.models.save import weights_hash
from limbeck.recipe.evaluation import EvaluationOptions, option_refused
from limbeck.runs.evaluations import Evaluation
from limbeck.teachers.writer import AnswerGenerator, HostedGenerator, LocalGenerator
from limbeck.training.generation import choose_method, engine_for

__all__ = ["Judge", "find_judge", "judge_pairs"]

ALIAS = "judge"


@dataclass(frozen=True)
class Judge:
    """Who judges, and by what; `slots` questions are answered at once."""

    side: Side
    rubric: Rubric
    max_tokens: int
    slots: int


def find_judge(
    options: EvaluationOptions, workspace: Path, given: Mapping[str, Any], num_models: int, slots: int
) -> Judge:
    """The judge that the options name, before anything is asked; `given` are hosted settings of a recipe.

    Raises:
        UsageError: there are no two models to compare, or the rubric is none.
    """
    assert options.judge is not None
    if num_models < 2:
        raise option_refused("One model is to be judged", "Name another to compare it with, or a grader instead.")
    rubric, ref = read_rubric(options.rubric), parse_ref(options.judge, workspace=workspace)
    messages = (Message("user", "Which answer is better?"),)
    row = PromptRow(messages, None, "the judge")
    named = Named(ALIAS, "model", ref, hosted=hosted_settings(ref, ALIAS, options, given))
    (side,) = all_sides([named], [row], max_tokens=options.judge_tokens)
    return Judge(side, rubric, options.judge_tokens, slots)


def judge_pairs(
    evaluation: Evaluation,
    judge: Judge,
    pairs: Sequence[tuple[str, str]],
    sides: Sequence[Side],
    device: str,
    log: Log,
) -> dict[tuple[str, str], Judged]:
    """What the judge thinks of each pair of aliases; what it replied before is not asked again."""
    prompts, rows = sides[0].prompts, {side.alias: evaluation.read_answers(side.alias) for side in sides}
    references = {conversation_key(prompt): prompt.reference for prompt in prompts}
    writer = _writer(evaluation, judge, device)
    found: dict[tuple[str, str], Judged] = {}
    for one, two in pairs:
        log("phase", phase=f"the judge compares {one} and {two}")
        asked = pairs_of(rows[one], rows[two], references)
        told = {"judge": judge.side.name, "models": (one, two)}
        try:
            found[one, two] = ask_judge(writer, asked, judge.rubric, evaluation.judgements_path, **told)
        except DataError as error:  # of its own rendering: the answers were written, and are kept
            fix = "Name a judge with more positions or another template, or a shorter rubric."
            raise option_refused(f"A question does not fit the judge. {error.given.strip()}", fix) from error
    return found


def _writer(evaluation: Evaluation, judge: Judge, device: str) -> AnswerGenerator:
    side = judge.side
    if side.hosted is not None:
        teacher = hosted_teacher(evaluation, side)
        return HostedGenerator(teacher, judge.max_tokens, 0.0, 0, lambda kind, **fields: None)
    model = load_side(side, device)
    # another model under the judge's name is another judge
    evaluation.learn(f"{ALIAS} {side.name}", {"weights": weights_hash(model.module)})
    dialogue = side.local
    way = choose_method(model, max_length=dialogue.num_positions, pad_id=dialogue.pad_id).decoder
    engine = engine_for(model, dialogue, way, num_slots=judge.slots)
    return LocalGenerator(engine, dialogue, 0.0, judge.max_tokens)
