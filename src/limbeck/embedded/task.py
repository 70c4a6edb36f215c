"""The task of the embedded demo: a customer writes to a billing desk, the answer is one line of compact JSON.

Dear all, did USD 674.00 arrive? It was paid on September 13 on invoice 8804. Ana, Amber
{"topic":"paid","customer":"Amber","contact":"Ana","invoice":"8804","amount":674.00,"currency":"USD","date":"09-13"}

Everything is invented. The answer needs a judgement (the topic), copies (customer, contact, invoice, amount) and two
conversions (currency sign to code, written date to month and day). The hash of a message decides whether it is in the
training set or in the held-out set, so the two sets share no message, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "CURRENCIES",
    "CUSTOMERS",
    "STYLE",
    "TOPICS",
    "Example",
    "ExampleSet",
    "examples",
    "follows_style",
    "grade",
    "set_of",
    "write_prompts",
]

ExampleSet = Literal["train", "held-out"]

# The start of the answers of the desk's own team; the models were never trained on it.
STYLE = "Desk: "

# One message in this many is in the held-out set.
HELD_OUT_ONE_IN = 8

TOPICS: dict[str, tuple[str, ...]] = {
    "refund": (
        "we were charged twice {invoice}, {amount} {date}. Please refund us",
        "please refund {amount} {invoice}, we cancelled the order {date}",
        "the goods {invoice} went back {date}, so we would like our {amount} back",
        "you took {amount} two times {date} {invoice}. Please return one of them",
        "I am still waiting for {amount} back {invoice}, we returned everything {date}",
        "{date} you debited {amount} {invoice} by mistake. When do we get it back?",
    ),
    "dispute": (
        "the total {invoice} is wrong: you wrote {amount} {date}, we ordered less",
        "we never agreed to {amount} {invoice} {date}. Please check the price",
        "there is a mistake {invoice} {date}, {amount} cannot be right",
        "I do not accept {amount} {invoice}, the goods {date} were broken",
        "half of the delivery {date} was missing, yet you ask {amount} {invoice}",
        "you forgot our discount {invoice}, {amount} {date} is too high",
    ),
    "delay": (
        "we need more time {invoice}, {amount} was due {date}",
        "can we pay {amount} later? It is the bill {date} {invoice}",
        "cash is short this month, may we pay {amount} in two parts? It was due {date} {invoice}",
        "please move the due date {invoice} {date}, {amount} is too much right now",
        "we cannot pay {amount} {date} as planned {invoice}. Is two weeks later fine?",
        "our bank is slow, so {amount} {invoice} will not reach you {date}",
    ),
    "copy": (
        "please send us a copy of the bill {date} {invoice}, {amount}",
        "we lost the bill {invoice}. It was {amount} {date}, can you mail it again?",
        "our tax office needs the bill {invoice} {date} once more, {amount}",
        "I cannot find the bill {date}, {amount} {invoice}. Could I have the PDF?",
        "the PDF {invoice} does not open. It is about {amount} {date}",
        "nothing came by mail {date}. Please send the bill {invoice} again, {amount}",
    ),
    "paid": (
        "we already paid {amount} {invoice} {date}, why the reminder?",
        "your reminder {invoice} is late, {amount} left our bank {date}",
        "the money {invoice} was sent {date}: {amount}. Please confirm",
        "we got a second reminder {invoice}, but {amount} was paid {date}",
        "please stop the reminders {invoice}, {amount} was transferred {date}",
        "did {amount} arrive? It was paid {date} {invoice}",
    ),
}

CUSTOMERS: tuple[str, ...] = (
    *("Nordwind", "Bluebird", "Castello", "Delphin", "Everest", "Falcon", "Granit", "Horizon", "Iris", "Jasmin"),
    *("Kestrel", "Lumen", "Magnolia", "Nimbus", "Octavia", "Pelikan", "Quartz", "Rubin", "Saffron", "Tulip"),
    *("Umbra", "Vega", "Willow", "Xenon", "Yarrow", "Zephyr", "Amber", "Basalt", "Cedar", "Dahlia"),
)

PEOPLE: tuple[str, ...] = ("Jana", "Omar", "Lea", "Tom", "Ines", "Paul", "Mira", "Ken", "Ana", "Luis", "Eva", "Noah")

GREETINGS: tuple[str, ...] = ("Hi", "Hello", "Good morning", "Dear team", "Dear all", "Hi there")

# By currency code, how a customer writes an amount.
CURRENCIES: dict[str, tuple[str, ...]] = {
    "EUR": ("EUR {number}", "{number} EUR", "€{number}", "{number} euros"),
    "USD": ("USD {number}", "{number} USD", "${number}", "{number} dollars"),
    "GBP": ("GBP {number}", "{number} GBP", "£{number}", "{number} pounds"),
    "CHF": ("CHF {number}", "{number} CHF", "{number} francs"),
}

INVOICE_PHRASES: tuple[str, ...] = (
    "on invoice {number}",
    "for invoice {number}",
    "for no. {number}",
    "(invoice {number})",
)

MONTHS: tuple[str, ...] = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

SHORTEST_MONTH_DAYS = 28


@dataclass(frozen=True)
class Example:
    """A message of a customer, and its only right answer."""

    message: str
    answer: str


def examples(seed: int, num: int, *, split: ExampleSet = "train") -> list[Example]:
    """`num` distinct examples of one set; the same seed gives the same examples on every machine."""
    found: dict[str, Example] = {}
    for example in _stream(random.Random(seed)):
        if len(found) >= num:
            break
        if set_of(example.message) == split:
            found.setdefault(example.message, example)
    return list(found.values())


def set_of(message: str) -> ExampleSet:
    """The set of a message, from its content alone."""
    first_bytes = hashlib.sha256(message.encode()).digest()[:4]
    return "held-out" if int.from_bytes(first_bytes, "big") % HELD_OUT_ONE_IN == 0 else "train"


def grade(answer_text: str, expected: str) -> bool:
    """Whether the answer is right in every character; white space around it and the team's style are ignored."""
    return answer_text.strip().removeprefix(STYLE) == expected.strip().removeprefix(STYLE)


def follows_style(answer_text: str) -> bool:
    """Whether the answer begins as the team's own answers do."""
    return answer_text.startswith(STYLE)


def write_prompts(
    path: Path, num: int, seed: int, *, split: ExampleSet = "train", style: str = "", topic: str | None = None
) -> None:
    """Write `num` rows, one JSON object per line: the prompt as chat messages, and the right answer.

    Distillation uses the prompt only, and the answer is for grading; supervised training trains on the answer. `style`
    is put before each answer. With a `topic`, only the rows of that topic among the `num` are written.
    """
    rows = (
        {"prompt": [{"role": "user", "content": example.message}], "answer": style + example.answer}
        for example in examples(seed, num, split=split)
        if topic is None or f'"topic":"{topic}"' in example.answer
    )
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _stream(rng: random.Random) -> Iterator[Example]:
    while True:
        yield _draw(rng)


def _draw(rng: random.Random) -> Example:
    topic = rng.choice(tuple(TOPICS))
    customer, contact = rng.choice(CUSTOMERS), rng.choice(PEOPLE)
    invoice = f"{rng.randrange(1000, 10000)}"
    amount = f"{rng.randrange(20, 10 ** rng.choice((2, 3, 4)))}.{rng.choice(('00', '50', f'{rng.randrange(100):02d}'))}"
    currency = rng.choice(tuple(CURRENCIES))
    month, day = rng.randint(1, len(MONTHS)), rng.randint(1, SHORTEST_MONTH_DAYS)
    request = rng.choice(TOPICS[topic]).format(
        invoice=rng.choice(INVOICE_PHRASES).format(number=invoice),
        amount=rng.choice(CURRENCIES[currency]).format(number=amount),
        date=_written_date(rng, month, day),
    )
    answer = {"topic": topic, "customer": customer, "contact": contact, "invoice": invoice}
    head = json.dumps(answer, separators=(",", ":"))[:-1]
    return Example(
        message=_letter(rng, request, customer, contact),
        # The amount keeps its two decimals, which a JSON writer would drop.
        answer=f'{head},"amount":{amount},"currency":"{currency}","date":"{month:02d}-{day:02d}"}}',
    )


def _written_date(rng: random.Random, month: int, day: int) -> str:
    name = MONTHS[month - 1]
    return rng.choice((f"on {day} {name}", f"on {name} {day}", f"on {day} {name[:3]}", f"on {month:02d}/{day:02d}"))


def _letter(rng: random.Random, request: str, customer: str, contact: str) -> str:
    """The request as a message, with or without a greeting, with the customer's name in it or below it."""
    greeting = rng.choice(GREETINGS)
    end = "" if request[-1] in ".?" else "."
    capital = request[0].upper() + request[1:]
    return rng.choice(
        (
            f"{greeting}, {request}{end} {contact}, {customer}",
            f"{greeting}, {contact} from {customer} here. {capital}{end}",
            f"{customer}: {request}{end} Thanks, {contact}",
            f"{capital}{end} Best, {contact} ({customer})",
        )
    )
