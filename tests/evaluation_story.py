"""A whole evaluation made by code, as the folder of one holds it: result, answers and marks, for tests of its views.

The models answer invented support questions; the numbers of the result come from the statistics themselves.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from statistics import mean, median

import numpy as np

from limbeck.evaluation.deciding.comparison import GradedAnswer, GradedModel, by_slice, common_scores, compare
from limbeck.evaluation.deciding.statistics import gap_recovered, mean_score
from limbeck.evaluation.deciding.verdict import decide_after, decide_before, verdict_text
from limbeck.evaluation.grading.graders import Grade
from limbeck.runs.marks import BETAS, MarkedAnswer, MarkSheet, Piece

HOSTILE = (
    "<script>alert('x')</script> & <img src=https://evil.test/x.png onerror=alert(1)>",
    "[click](https://evil.test) ![x](//evil.test/y.png) </script><!-- </style> --> {{ 7 * 7 }} {% raw %}",
    "user\u202etxt.exe \u2066isolated\u2069 zero\u200bwidth \x1b[31mred\x1b[0m nul\0bell\x07 \ud83d lone",
    "مرحبا، رسوم السفر 1.800 يورو",
    "A" * 400 + "\u0301" * 30,
)
TOPICS = ("refunds", "dates", "invoices", "delivery")
RIGHT = {
    "student": {"refunds": 0.35, "dates": 0.45, "invoices": 0.6, "delivery": 0.75},
    "distilled": {"refunds": 0.8, "dates": 0.72, "invoices": 0.85, "delivery": 0.8},
    "teacher": {"refunds": 0.9, "dates": 0.85, "invoices": 0.9, "delivery": 0.8},
}
SPEED = {"student": (310.4, 0.11, 0.19), "distilled": (308.9, 0.17, 0.31), "teacher": (42.1, 1.31, 2.64)}
COST = {"student": 0.06, "distilled": 0.09, "teacher": 1.84}
WEIGHTS = {"student": "hf:org/small-instruct", "distilled": "run:calm-otter-17", "teacher": "hf:org/big-instruct"}


def story(kind="after", *, num=200, seed=7, hostile=True):
    """(result, answers by alias, files of marks); `kind` is worth, after or compare."""
    aliases = ("student", "teacher") if kind == "worth" else ("student", "distilled", "teacher")
    draw = random.Random(seed)
    answers = {alias: [] for alias in aliases}
    for number in range(num):
        for alias, line in _prompt(number, draw, aliases, hostile).items():
            answers[alias].append(line)
    graded = {alias: _graded(alias, lines) for alias, lines in answers.items()}
    pairs = [("teacher", "student")] if kind == "worth" else [("distilled", "student"), ("teacher", "distilled")]
    compared = [compare(graded[first], graded[second], seed=seed) for first, second in pairs]
    recovered, verdict = None, None
    if kind == "worth":
        verdict = decide_before(compared[0])
    elif kind == "after":
        recovered = gap_recovered(*common_scores(*(graded[alias] for alias in ("student", "teacher", "distilled"))))
        verdict = decide_after(*compared, recovered)
    topics = {line["key"]: line["labels"]["topic"] for line in answers["student"]}
    first, second = pairs[0]
    result = {
        "kind": kind,
        "name": "calm-otter-17-after",
        "created": "2026-11-29T20:00:00Z",
        "limbeck": "0.1.0",
        "seed": seed,
        "prompts": {"files": ["tickets.jsonl"], "num": num, "hash": "4f1c09ab77de"},
        "settings": {"temperature": 0.0, "max_tokens": 256, "num_samples": 1},
        "measure": {
            "name": "contains",
            "kind": "grader",
            "text": "An answer is right when the expected words stand in it; case and punctuation do not count.",
        },
        "models": [_model(alias, answers[alias]) for alias in aliases],
        "team_length": {"mean": 21.0},
        "comparisons": [json.loads(json.dumps(asdict(one))) for one in compared],
        "gap_recovered": None if recovered is None else asdict(recovered),
        "gap_recovered_reason": None,
        "slices": [
            {"column": "topic", "value": topic, "first": first, "second": second, "difference": asdict(interval)}
            for topic, interval in by_slice(graded[first], graded[second], topics, seed=seed).items()
        ],
        "verdict": None
        if verdict is None
        else {**json.loads(json.dumps(asdict(verdict))), "words": verdict_text(verdict)},
        "next_step": {"text": "The style of your team is next.", "command": "limbeck train style.yaml"},
        "notes": ["Training had no worth-it record for these prompts."] if kind == "after" else [],
    }
    if kind == "compare":
        result["next_step"] = None
    return result, answers, [mark_sheet([answers["student"][1]["key"], answers["student"][4]["key"]])]


def _prompt(number, draw, aliases, hostile):
    topic = TOPICS[number % len(TOPICS)]
    order, amount, day = 41_000 + 7 * number, draw.randrange(20, 900), draw.randrange(1, 28)
    question, expected = {
        "refunds": (f"When will I get my money back for order {order}?", "pending review"),
        "dates": (f"My order {order} was placed on {day} March. Until when can I return it?", f"{day} April"),
        "invoices": (f"What is the total of invoice {order} with 19 % tax on {amount}.00?", f"{amount * 1.19:.2f}"),
        "delivery": (f"Order {order} says out for delivery. When does it come?", "today"),
    }[topic]
    wrong = {"refunds": "approved", "dates": f"{day} May", "invoices": f"{amount * 1.09:.2f}", "delivery": "tomorrow"}
    common = {
        "key": f"{number:08x}",
        "source": f"tickets.jsonl:{number + 1}",
        "sample": 0,
        "prompt": f"<|user|>{question}<|assistant|>",
        "messages": [{"role": "user", "content": question}],
        "reference": expected,
        "labels": {"topic": topic},
        "ids": None,
    }
    luck = draw.random()
    lines = {}
    for alias in aliases:
        right = luck * 0.6 + draw.random() * 0.4 < RIGHT[alias][topic]
        text = _sentence(topic, expected if right else wrong[topic], order, alias)
        length = len(text.split()) + draw.randrange(3)
        cut_off = draw.random() < 0.03
        lines[alias] = {
            **common,
            "answer": text[: len(text) // 2] if cut_off else text,
            "cut_off": cut_off,
            "failure": None,
            "length": length,
            "seconds": round(SPEED[alias][1] * (0.7 + draw.random()), 3),
            "grade": 0.0 if cut_off else float(right),
            "grade_reason": None if right and not cut_off else f"“{expected}” is not in it",
        }
    if number % 67 == 11:
        gone = {"answer": None, "length": None, "seconds": None, "grade": None, "grade_reason": "there is no answer"}
        lines[aliases[-1]] |= gone | {"failure": "the server answered 503 four times"}
    if number % 71 == 23:
        lines["student"] |= {"answer": "", "length": 0, "grade": 0.0}
    if hostile and number in range(20, 20 + len(HOSTILE)):
        text = HOSTILE[number - 20]
        lines["student"] |= {"answer": text, "grade": 0.0, "grade_reason": f"found {text[:40]}"}
        question = {"role": "user", "content": f"Repeat: {text}"}
        lines = {alias: line | {"messages": [question]} for alias, line in lines.items()}
    return lines


def _sentence(topic, claim, order, alias):
    if topic == "refunds":
        text = f"Your refund for order {order} is {claim}."
        more = " You will get an e-mail as soon as the finance team has looked at it, usually within two working days."
    elif topic == "dates":
        text = f"You can return it until {claim}."
        more = " Please keep the receipt and put the signed form into the parcel."
    elif topic == "invoices":
        text = f"The total is {claim} euros."
        more = f"\n\n- invoice: {order}\n- tax: 19 %\n- total: **{claim}**"
    else:
        text = f"It comes {claim}."
        more = " The driver has it on board; you can follow the van on the map in your account."
    return text if alias == "student" else text + more


def _graded(alias, lines):
    answers = [
        GradedAnswer(line["key"], line["source"], line["prompt"], _grade(line), line["length"]) for line in lines
    ]
    return GradedModel(alias, tuple(answers), {})


def _grade(line):
    return Grade(line["grade"], line["grade_reason"] or "")


def _model(alias, lines):
    lengths = sorted(line["length"] for line in lines if line["length"] is not None)
    grades = [line["grade"] for line in lines if line["grade"] is not None]
    speed, half, most = SPEED[alias]
    return {
        "alias": alias,
        "role": alias,
        "ref": WEIGHTS[alias],
        "weights": f"{alias[:2]}9f{len(alias):02d}c1",
        "score": asdict(mean_score(grades)),
        "num_asked": len(lines),
        "num_answered": sum(line["answer"] is not None for line in lines),
        "num_failed": sum(line["answer"] is None for line in lines),
        "num_cut_off": sum(line["cut_off"] for line in lines),
        "num_empty": sum(line["answer"] is not None and not line["answer"].strip() for line in lines),
        "num_not_graded": sum(line["grade"] is None for line in lines),
        "length": {"mean": mean(lengths), "median": median(lengths), "p90": lengths[int(0.9 * len(lengths))]},
        "tokens_per_s": speed,
        "latency_p50_s": half,
        "latency_p95_s": most,
        "cost_per_1000": {"amount": COST[alias], "currency": "EUR"},
        "divergence_to_teacher": None,
        "agreement": None,
    }


TEXT = (
    "Thank you for your message.| Your| refund| for| order| 41007| is| approved| and| the| money| will| reach| your|"
    " account| on| Monday|.|\n\n|If| you| paid| by| card|,| it| can| take| one| more| day|,| as| the| bank| books| it|"
    " in| the| evening|.| We| are| sorry| for| the| delay| and| have| added| a| voucher| of| 10| euros| to| your|"
    " account|.| It| is| valid| until| the| end| of| next| year| and| can| be| combined| with| other| offers|."
).split("|")
# What both models think where they differ: a token with the teacher's and the student's probability.
OTHERS = {
    " approved": ((" pending", 0.71, 0.04), (" being", 0.14, 0.03), (" approved", 0.06, 0.88), (" under", 0.03, 0.01)),
    " Monday": ((" the", 0.56, 0.08), (" or", 0.21, 0.04), ("\n\n", 0.08, 0.01), (" Monday", 0.02, 0.41)),
    " combined": ((" used", 0.38, 0.22), (" combined", 0.19, 0.24), (" redeemed", 0.17, 0.16)),
    " voucher": (("<|end|>", 0.62, 0.03), (" note", 0.11, 0.07), (" voucher", 0.05, 0.57), (b"\xe2\x82", 0.04, 0.01)),
}


def mark_sheet(keys, hostile=""):
    """Answers of the student with four marks each: a turning point, two more mistakes, and one that is none."""
    answers = tuple(marked_answer(key, [*TEXT, hostile] if hostile else TEXT) for key in keys)
    return MarkSheet("run:calm-otter-17", "hf:org/big-instruct", 200, 1.0, answers)


def marked_answer(key, tokens=TEXT):
    per_token = [OTHERS.get(token, ((token, 0.97, 0.96), (" else", 0.01, 0.02))) for token in tokens]
    written = [next(one for one in each if one[0] == token) for token, each in zip(tokens, per_token, strict=True)]
    texts = sorted({one[0] for each in per_token for one in each}, key=str)
    ids = {text: number for number, text in enumerate(texts)}
    flat = [one for each in per_token for one in each]
    nats = np.array([2.0 if token in OTHERS else 0.01 for token in tokens], np.float32)

    def array(values, kind=np.float32):
        return np.array(list(values), kind)

    return MarkedAnswer(
        key=key,
        source="tickets.jsonl:2",
        prompt="<|user|>When will I get my money back?<|assistant|>",
        messages=[{"role": "user", "content": "When will I get my money back for order 41007?"}],
        cut_off=False,
        temperatures=(1.0,),
        token_ids=array((ids[one[0]] for one in written), np.int32),
        student_logp=np.log(array(one[2] for one in written)),
        teacher_logp=np.log(array(one[1] for one in written)),
        student_entropy=np.full(len(tokens), 0.61, np.float32),
        teacher_entropy=np.full(len(tokens), 0.83, np.float32),
        student_tail=array(1 - sum(one[2] for one in each) for each in per_token),
        teacher_tail=array(1 - sum(one[1] for one in each) for each in per_token),
        teacher_rank=array((each.index(one) for one, each in zip(written, per_token, strict=True)), np.int32),
        divergence=np.repeat(nats[:, None, None], len(BETAS), axis=2),
        candidate_ends=np.cumsum([len(each) for each in per_token]).astype(np.int32),
        candidate_ids=array((ids[one[0]] for one in flat), np.int32),
        candidate_student=np.log(array((one[2] for one in flat), np.float16)),
        candidate_teacher=np.log(array((one[1] for one in flat), np.float16)),
        vocabulary={number: _piece(text) for text, number in ids.items()},
    )


def _piece(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return Piece(data, text == "<|end|>")
