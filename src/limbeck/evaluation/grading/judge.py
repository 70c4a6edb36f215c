"""A model as judge: which of two answers to a prompt is better.

    path/judgements.jsonl    one line per judge prompt, appended as replies arrive, and never requested again

The judge sees each pair of answers twice, once in each order, and never the name of a model. An answer is preferred
only if it wins in both orders; if the preference changes with the order, the pair is a tie. A reply that cannot be
parsed gives no preference. In an evaluation with a judge, its preferences are the only measure. Where rows have a
grader too, a note says how far both agree.

A judge is any `AnswerGenerator`, local or hosted, and its preference is parsed from its text. Comparing the
log-probabilities of the choices instead would always give a preference, even where the model did not understand the
prompt, and would need a local model. Text that contains no preference is visible, stored and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Message, PromptRow
from limbeck.errors import DataError
from limbeck.evaluation.answering.answers import load_evaluated
from limbeck.evaluation.answering.evaluated import EvaluatedModel, ModelEntry, prepare_all_models
from limbeck.evaluation.answering.hosted import hosted_settings, hosted_teacher
from limbeck.evaluation.deciding.comparison import GradedModel, common_answers, common_scores, winners
from limbeck.evaluation.deciding.statistics import FEWEST_FOR_SHARES, Interval, kappa, mean_score
from limbeck.evaluation.grading.graders import Grade
from limbeck.evaluation.grading.measure import MeasureText
from limbeck.evaluation.grading.rubric import (
    AnswerPair,
    Preference,
    Rubric,
    answer_pairs,
    hash_of,
    read_preference,
    read_rubric,
)
from limbeck.evaluation.messages import grading as messages
from limbeck.evaluation.messages import models as progress
from limbeck.models.resolve import parse_ref
from limbeck.models.save import weights_hash
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.rollouts.sampling import Purpose, stream_key
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.lines import append_line, event_line, iterate_lines
from limbeck.runs.store import WriteEvent
from limbeck.teachers.writer import AnswerGenerator, HostedGenerator, LocalGenerator, TeacherRequest
from limbeck.training.generation import choose_method, engine_for

__all__ = ["ALIAS", "Judge", "Judged", "agreement", "collect_judgements", "find_judge", "judge_pairs"]

ALIAS = "judge"
NUM_AT_ONCE = 32
# The first model's grade for the replies in both orders, if they agree.
_CONSISTENT: Mapping[tuple[Preference | None, ...], float] = {("A", "B"): 1.0, ("B", "A"): 0.0, ("TIE", "TIE"): 0.5}


@dataclass(frozen=True)
class Judge:
    """A judge and its rubric; it generates up to `slots` replies at the same time."""

    model: EvaluatedModel
    rubric: Rubric
    max_tokens: int
    slots: int


@dataclass(frozen=True)
class Judged:
    """A judge's preferences between a first and a second model.

    `grades` are those of the first model by the prompt's key: 1 if it is preferred, 0 if the second is, 0.5 for a tie,
    or none with the reason. Those of the second model are 1 minus these. `first_place` is the share of decisions for
    the answer shown first, with an interval over prompts; 0.5 for a judge that does not favour a position.
    """

    judge: str
    rubric: Rubric
    grades: Mapping[str, Grade]
    num_questions: int
    num_unreadable: int
    num_changed: int
    first_place: Interval | None

    def models(self, first: GradedModel, second: GradedModel) -> tuple[GradedModel, GradedModel]:
        """Both models with the judge's grades instead of their own, for `compare`."""
        rest = {key: grade if grade.value is None else Grade(1 - grade.value) for key, grade in self.grades.items()}
        return self._regraded(first, self.grades), self._regraded(second, rest)

    def _regraded(self, model: GradedModel, grades: Mapping[str, Grade]) -> GradedModel:
        missing = Grade(None, messages.not_judged())
        answers = tuple(replace(answer, grade=grades.get(answer.key, missing)) for answer in model.answers)
        return replace(model, answers=answers, judge=f"{self.judge} by the rubric {self.rubric.sha256[:12]}")

    def measure(self) -> MeasureText:
        """The measure of a result; its kind distinguishes it from a grader's."""
        return MeasureText(self.judge, "judge", messages.judged_by(judge=self.judge, rubric=self.rubric.name))

    def notes(self, first: str, second: str) -> list[str]:
        """How the judge behaved when it compared the models of these aliases."""
        models = {"first": first, "second": second}
        found: list[str] = [
            messages.judge_summary(
                **models,
                judge=self.judge,
                num=self.num_questions // 2,
                num_unreadable=self.num_unreadable,
                num_changed=self.num_changed,
            )
        ]
        place = self.first_place
        if place is not None and place.n >= FEWEST_FOR_SHARES:
            text = messages.prefers_first_place if place.low > 0.5 else messages.prefers_no_place
            text = messages.prefers_second_place if place.high < 0.5 else text
            found.append(text(**models, share=place.estimate, low=place.low, high=place.high, num=place.n))
        return found


def find_judge(
    options: EvaluationOptions, workspace: Path, given: Mapping[str, Any], num_models: int, slots: int
) -> Judge:
    """The judge that the options select; `given` are settings of a recipe for a hosted API.

    Raises:
        UsageError: there are fewer than two models to compare, or the rubric is invalid.
    """
    assert options.judge is not None
    if num_models < 2:
        raise messages.one_model_judged()
    rubric, ref = read_rubric(options.rubric), parse_ref(options.judge, workspace=workspace)
    row = PromptRow((Message("user", "Which answer is better?"),), None, "the judge")
    entry = ModelEntry(ALIAS, "model", ref, hosted=hosted_settings(ref, ALIAS, options, given))
    (model,) = prepare_all_models([entry], [row], max_tokens=options.judge_tokens)
    return Judge(model, rubric, options.judge_tokens, slots)


def judge_pairs(
    evaluation: Evaluation,
    judge: Judge,
    pairs: Sequence[tuple[str, str]],
    models: Sequence[EvaluatedModel],
    device: str,
    log: WriteEvent,
) -> dict[tuple[str, str], Judged]:
    """The judge's preferences for each pair of aliases; stored replies are used again."""
    prompts, rows = models[0].prompts, {model.alias: evaluation.read_answers(model.alias) for model in models}
    references = {conversation_key(prompt): prompt.reference for prompt in prompts}
    generator = _generator(evaluation, judge, device)
    found: dict[tuple[str, str], Judged] = {}
    for one, two in pairs:
        log("phase", phase=progress.judging(first=one, second=two))
        compared = answer_pairs(rows[one], rows[two], references)
        try:
            found[one, two] = collect_judgements(
                generator,
                compared,
                judge.rubric,
                evaluation.judgements_path,
                judge=judge.model.name,
                models=(one, two),
            )
        except DataError as error:  # from rendering the judge's prompts; the answers are stored already
            raise messages.judge_prompt_too_long(problem=error.given.strip()) from error
    return found


def collect_judgements(
    generator: AnswerGenerator,
    pairs: Sequence[AnswerPair],
    rubric: Rubric,
    path: Path,
    *,
    judge: str,
    models: tuple[str, str],
    seed: int = 0,
    num_at_once: int = NUM_AT_ONCE,
) -> Judged:
    """Query the judge for each pair in both orders, unless `path` has the reply. Two equal answers are a tie.

        judged = collect_judgements(writer, answer_pairs(teacher_rows, student_rows, references), read_rubric(None),
                                    evaluation.path / "judgements.jsonl", judge="Qwen/...",
                                    models=("teacher", "student"))
        comparison = compare(*judged.models(teacher, student))

    Args:
        generator: a `LocalGenerator` at temperature 0 with 16 tokens or more for its reply (more if the rubric requires
            reasons), or a hosted one. An empty reply is not stored, so it is requested again next time.
        judge: the judge's name; the same prompt to two judges is two lines of the file.
        models: the names of the two models in the file, for people.
        num_at_once: judge prompts between two writes to the file.

    The share of the gap recovered is undefined here: preferences between two answers have no common scale.
    """
    requests: dict[str, tuple[AnswerPair, bool, str]] = {}
    for pair in pairs:
        if None not in (pair.first, pair.second) and pair.first != pair.second:
            for swapped in (False, True):
                text = rubric.judge_prompt(pair, swapped=swapped)
                requests[hash_of([judge, pair.key, pair.sample, text])] = (pair, swapped, text)
    found = {str(line["id"]): _read(line) for line in iterate_lines(path)} if path.exists() else {}
    missing = [name for name in requests if name not in found]
    for start in range(0, len(missing), num_at_once):
        names = missing[start : start + num_at_once]
        keys = [stream_key(seed, Purpose.EVALUATION, 0, name, 0, 0) for name in names]
        prompts = [
            TeacherRequest((Message("user", requests[name][2]),), key) for name, key in zip(names, keys, strict=True)
        ]
        for name, answer in zip(names, generator.generate(prompts), strict=True):
            pair, swapped, _ = requests[name]
            about = {"key": pair.key, "source": pair.source, "sample": pair.sample}
            shown = {"judge": judge, "rubric": rubric.sha256, "a": models[swapped], "b": models[not swapped]}
            line = {"id": name, **about, **shown, "reply": answer.text, "cut_off": answer.cut_off}
            found[name] = _read(line)
            if answer.text:
                append_line(path, event_line({**line, "verdict": found[name]}))
    preferences: dict[tuple[str, int], list[Preference | None]] = defaultdict(list)
    for name, (pair, _, _) in requests.items():
        preferences[pair.key, pair.sample].append(found[name])
    return _judged(judge, rubric, pairs, preferences)


def agreement(judged: Judged, first: GradedModel, second: GradedModel, *, seed: int = 0) -> Interval | None:
    """Cohen's kappa between judge and grader on which model is better or tied; None where it is undefined."""
    models = (first, second, *judged.models(first, second))
    if not common_answers(*models):
        return None
    first_P, second_P, preferred_P, other_P = common_scores(*models)
    return kappa(winners(first_P - second_P), winners(preferred_P - other_P), seed=seed)


def _generator(evaluation: Evaluation, judge: Judge, device: str) -> AnswerGenerator:
    evaluated = judge.model
    if evaluated.hosted is not None:
        teacher = hosted_teacher(evaluation, evaluated)
        return HostedGenerator(teacher, judge.max_tokens, 0.0, 0, lambda kind, **fields: None)
    model = load_evaluated(evaluated, device)
    # a judge of the same name with other weights is another judge
    evaluation.learn(f"{ALIAS} {evaluated.name}", {"weights": weights_hash(model.module)})
    dialogue = evaluated.local
    decoder = choose_method(model, max_length=dialogue.num_positions, pad_id=dialogue.pad_id).decoder
    engine = engine_for(model, dialogue, decoder, num_slots=judge.slots)
    return LocalGenerator(engine, dialogue, 0.0, judge.max_tokens)


def _judged(
    judge: str,
    rubric: Rubric,
    pairs: Sequence[AnswerPair],
    preferences: Mapping[tuple[str, int], Sequence[Preference | None]],
) -> Judged:
    grades: dict[str, list[Grade]] = defaultdict(list)
    for pair in pairs:
        grades[pair.key].append(_grade(pair, preferences.get((pair.key, pair.sample))))
    decided = [[each == "A" for each in both if each in ("A", "B")] for both in preferences.values()]
    first_places = [sum(places) / len(places) for places in decided if places]
    return Judged(
        judge=judge,
        rubric=rubric,
        grades={key: _mean(samples) for key, samples in grades.items()},
        num_questions=2 * len(preferences),
        num_unreadable=sum(both.count(None) for both in preferences.values()),
        num_changed=sum(None not in both and tuple(both) not in _CONSISTENT for both in preferences.values()),
        first_place=mean_score(first_places) if first_places else None,
    )


def _grade(pair: AnswerPair, preferences: Sequence[Preference | None] | None) -> Grade:
    if None in (pair.first, pair.second):
        return Grade(None, messages.no_answer())
    if preferences is not None and None in preferences:
        return Grade(None, messages.reply_unreadable())
    return Grade(_CONSISTENT.get(tuple(preferences or ()), 0.5))


def _mean(samples: Sequence[Grade]) -> Grade:
    """The mean over the samples of one prompt that have a grade."""
    values = [grade.value for grade in samples if grade.value is not None]
    return Grade(sum(values) / len(values)) if values else samples[0]


def _read(line: Mapping[str, object]) -> Preference | None:
    return read_preference(str(line["reply"]), cut_off=bool(line["cut_off"]))
