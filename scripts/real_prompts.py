"""Real prompts for the real test pair: short English questions out of the data files of the package `evals`.

The package's licence file puts everything under MIT except the data folders that it lists with licences of their own.
Only files named in SOURCES are read, and a source from one of those folders is refused.

Two kinds of source. A question file gives its questions as they stand. A file of things (job titles, foods, countries)
gives the thing, and one of a few short requests is written around it: each thing is asked about once. Sets are cut by
the hash of the text, so the same wheel gives the same three sets, and no text is in two of them.

    write_prompts(wheel, folder)    three JSONL files of {"prompt": [{"role": "user", "content": "..."}]}
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

DATA_FOLDER = "evals/registry/data/"

# The folders that the package's LICENSE.md takes out of its MIT licence.
OTHER_LICENCES = frozenset(
    [
        "already_said_that",
        "ballots",
        "sandbagging",
        "schelling_point",
        "steganography",
        "text_compression",
        "theory_of_mind",
    ]
)

SET_SIZES = {"on_policy": 200, "held_out": 64, "healing": 240}

# About 60 tokens; with the template's system text and turn marks a prompt stays under 100.
MAX_CHARACTERS = 200


@dataclass(frozen=True)
class Source:
    """One data file: which part of its text is used, the requests written around it, and how many are taken."""

    file: str
    pattern: str
    limit: int
    requests: tuple[str, ...] = ("{}",)
    field: str = "input"


ANY_QUESTION = r"(.+)"

SOURCES = (
    Source(
        "soc_codes/samples.jsonl",
        r"for the job title ([A-Za-z]+(?: [A-Za-z]+){0,2})'$",
        300,
        (
            "What does the job of {} involve? Answer in one sentence.",
            "Name three tools for the job of {}.",
            "Why does the job of {} matter? Answer in one short sentence.",
            "Write one sentence about a day at work as {}.",
        ),
    ),
    Source(
        "twenty_questions/dataset.jsonl",
        r"([A-Za-z ]+)",
        207,
        (
            "Use the word {} in a short sentence.",
            "Explain {} to a child in one sentence.",
            "What comes to mind when you hear the word {}? Answer briefly.",
        ),
        field="word",
    ),
    Source(
        "food/samples.jsonl",
        r"related to food\? ([a-z]+(?: [a-z]+){1,2})$",
        150,
        ("What is {}? Answer in one sentence.", "What goes well with {}? Answer briefly."),
    ),
    Source(
        "largest_country/samples.jsonl",
        r"^([A-Z][A-Za-z ]+), ",
        100,
        ("Name one thing that {} is known for.", "Where is {}? Answer in one sentence."),
    ),
    Source(
        "non-compound-names/samples.jsonl",
        r"potential names for an? ([a-z ]+)\. Return",
        50,
        ("Suggest three names for the first {} in town.", "Write a short slogan for our {}."),
    ),
    Source("bigrams/samples.jsonl", r"(.{20,}[.!?])$", 50, ("Say this in other words: {}",)),
    Source("security_guide/samples.jsonl", ANY_QUESTION, 16),
    Source("math_for_5th-grader/samples.jsonl", ANY_QUESTION, 20),
    Source("internal_representations/samples.jsonl", ANY_QUESTION, 33),
    Source("counterfactual-reasoning/counterfactual_reasoning_samples.jsonl", ANY_QUESTION, 15),
    Source("superficialpatterns/samples.jsonl", ANY_QUESTION, 16),
    Source("seo_keywords/samples.jsonl", ANY_QUESTION, 23),
    Source("nutrition/facts.jsonl", ANY_QUESTION, 40),
    Source("test_modelgraded/joke_fruits.jsonl", ANY_QUESTION, 10),
    Source("which_is_heavier/which_is_heavier.jsonl", r"(.+\?)", 50),
)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _last_message(value: object) -> str:
    """The text of a row's field: a string as it is, of a conversation the last message."""
    if isinstance(value, list):
        value = value[-1]["content"]
    if not isinstance(value, str):
        raise ValueError(f"expected a text or a conversation, got {value!r}")
    return value.strip()


def _texts(archive: zipfile.ZipFile, source: Source) -> list[str]:
    if source.file.split("/")[0] in OTHER_LICENCES:
        raise ValueError(f"{source.file} is not under the package's MIT licence; take another source")
    data = archive.read(DATA_FOLDER + source.file).decode()
    return [_last_message(json.loads(line)[source.field]) for line in data.split("\n") if line.strip()]


def _questions(archive: zipfile.ZipFile, source: Source) -> list[str]:
    """The source's questions, each thing once, the `limit` ones with the smallest hashes."""
    matches = (re.search(source.pattern, text, re.DOTALL) for text in _texts(archive, source))
    things = sorted({match.group(1) for match in matches if match}, key=_digest)
    questions = []
    for thing in things:
        request = source.requests[int(_digest(thing), 16) % len(source.requests)]
        question = request.format(thing)
        if len(question) <= MAX_CHARACTERS and question.isascii():
            questions.append(question)
    return questions[: source.limit]


def collect_prompts(wheel: Path) -> dict[str, list[str]]:
    """The questions of each set, {set name: texts}; disjoint, in an order that depends on the texts alone."""
    with zipfile.ZipFile(wheel) as archive:
        questions = {question for source in SOURCES for question in _questions(archive, source)}
    # Another hash than the one that limits a source, so that every source falls into the sets in proportion.
    ordered = sorted(questions, key=lambda question: _digest(f"set {question}"))
    needed = sum(SET_SIZES.values())
    if len(ordered) < needed:
        raise ValueError(f"the data files give {len(ordered)} questions and the sets need {needed}")
    sets: dict[str, list[str]] = {}
    start = 0
    for name, size in SET_SIZES.items():
        sets[name] = ordered[start : start + size]
        start += size
    return sets


def write_prompts(wheel: Path, folder: Path) -> dict[str, int]:
    """Write one JSONL file per set into `folder`; returns the number of prompts in each."""
    sets = collect_prompts(wheel)
    for name, questions in sets.items():
        rows = ({"prompt": [{"role": "user", "content": question}]} for question in questions)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return {name: len(questions) for name, questions in sets.items()}
