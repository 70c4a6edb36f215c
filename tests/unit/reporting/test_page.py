"""The static page: every text stays text, every number leads to its rows, and nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation_story import HOSTILE, mark_sheet, story
from limbeck.cli import run_cli
from limbeck.reporting.page import page, percent_text, points_text, visible_text
from limbeck.reporting.rows import collect
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.marks import write_marks

VOID = {"meta", "input", "wbr", "br", "circle", "line", "rect"}


class Tree(HTMLParser):
    """The elements of a page with their attributes, and the text of each id."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.texts = [], [], {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("id")))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, identity in self.open:
            if identity:
                self.texts[identity] = self.texts.get(identity, "") + data

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def made():
    result, answers, marks = story("after")
    return result, answers, page(result, answers, marks)


def with_answer(text):
    result, answers, _ = story("worth", num=5)
    for number, line in enumerate(answers["student"]):
        line |= {"answer": text, "grade_reason": text, "reference": text, "labels": {"topic": text}, "source": text}
        line["messages"] = [{"role": text, "content": text}]
        if number == 3:
            line |= {"answer": None, "failure": text}
    result["name"] = result["models"][0]["ref"] = result["measure"]["text"] = text
    result["notes"] = result["prompts"]["files"] = [text]
    result["slices"] = [{**result["slices"][0], "value": text}]
    result["next_step"] = {"text": text or "x", "command": text}
    result["settings"] = {text: text}
    return result, answers


def shape(html):
    """The elements and their attributes, without those that say the text of an evaluation."""
    told = ("aria-label", "content")
    return [
        (tag, {name: value for name, value in attributes.items() if name not in told})
        for tag, attributes in Tree(html).elements
        if attributes.get("class") != "unseen" and tag != "wbr"
    ]


PLAIN_SHAPE = shape(page(*with_answer("plain")))


@pytest.mark.report("TU-04")
@settings(max_examples=25, deadline=None)
@given(st.text(st.characters() | st.sampled_from("<>&\"'`{%}#/\\=\0\x1b\u202e\ud800"), min_size=1, max_size=60))
def test_no_text_changes_the_page_around_it(text):
    if not text.strip():
        return
    html = page(*with_answer(text))
    html.encode("utf-8")
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html) is None
    assert shape(html) == PLAIN_SHAPE
    data = json.loads(Tree(html).texts["data"])
    assert data["rows"][0]["answers"]["student"][0]["answer"] == text


@pytest.mark.report("TU-04")
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_of_tokens_stays_text(text):
    result, answers, _ = story("worth", num=5)
    plain, hostile = (Tree(page(result, answers, [mark_sheet(["1/0"], each)])) for each in ("plain", text))
    assert [tag for tag, _ in plain.elements] == [tag for tag, _ in hostile.elements]


@pytest.mark.report("TU-04")
def test_every_character_of_a_text_is_on_the_page_and_none_of_it_is_markup():
    texts = [
        "<think>\n  one\n\ttwo\n</think> <script>alert(1)</script> &lt; </td></tr></table>",
        "<img src=x onerror=alert(1)> [click](javascript:alert(1)) <a href='javascript:alert(1)'>",
        "long " * 50_000,
    ]
    for text in texts:
        tree = Tree(page(*with_answer(text)))
        assert text in tree.texts["rows"]
        assert not {"think", "img"} & {tag for tag, _ in tree.elements}
        assert all(not (each.get("href") or "#").startswith("javascript") for each in tree.named("a"))
    style = re.search(r"<style>(.*?)</style>", page(*with_answer("x")), re.DOTALL)[1]
    assert "white-space: pre-wrap" in style


@pytest.mark.report("TU-05")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", float("nan"), float("inf")])
def test_a_number_that_is_none_leaves_the_page_whole_and_its_data_json(number):
    result, answers, marks = story("after", num=12)
    for model in result["models"]:
        model |= {"tokens_per_s": number, "latency_p50_s": number, "latency_p95_s": number}
        model["divergence_to_teacher"] = {"estimate": number, "low": number, "high": number, "n": 12}
        model["agreement"] = number
        model["cost_per_1000"] = {"amount": number, "currency": "EUR"}
    tree = Tree(page(result, answers, marks))
    data = json.loads(tree.texts["data"], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert float(data["result"]["models"][0]["tokens_per_s"]) != 0
    assert "rows" in tree.texts


@pytest.mark.report("TU-04")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user\u202etxt", 'user<span class="unseen">\\u202e</span>txt'),
        ("\x1b[31m\0", '<span class="unseen">\\u001b</span>[31m<span class="unseen">\\u0000</span>'),
        ("\ud83d", '<span class="unseen">\\ud83d</span>'),
        ("<b>&amp;\r\n\ttab", "&lt;b&gt;&amp;amp;\n\ttab"),
        ("[a](https://evil.test)", "[a](https://evil.test)"),
        ("می\u200cخواهم 👩\u200d💻", "می\u200cخواهم 👩\u200d💻"),
    ],
)
def test_what_cannot_be_seen_is_shown(text, shown):
    assert visible_text(text) == shown


@pytest.mark.report("TU-04")
def test_the_page_loads_nothing_and_allows_its_own_style_and_script_alone(made):
    *_, html = made
    tree = Tree(html)
    for _, attributes in tree.elements:
        assert not {name for name in attributes if name.startswith("on")}
        assert not {"style", "src", "action", "formaction", "srcset", "background"} & attributes.keys()
        assert all(value.startswith("#") for name, value in attributes.items() if name in ("href", "xlink:href"))
    assert not {"link", "img", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in tree.elements}
    policy = next(meta["content"] for meta in tree.named("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    assert "url(http" not in html
    assert "@import" not in html


@pytest.mark.parametrize("kind", ["worth", "after", "compare"])
def test_every_link_leads_somewhere_and_every_id_is_there_once(kind):
    tree = Tree(page(*story(kind)))
    ids = [attributes["id"] for _, attributes in tree.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"][1:] for link in tree.named("a")]
    assert set(links) <= set(ids)
    assert len(links) > 200  # each row has one to itself


def test_the_rows_behind_a_number_are_as_many_as_it_says(made):
    result, answers, html = made
    rows = collect(result, answers)
    for model in result["models"]:
        for state in ("asked", "answered", "failed", "cut_off", "empty", "not_graded"):
            assert rows.size(state, model["alias"]) == model[f"num_{state}"]
        assert rows.size("graded", model["alias"]) == model["score"]["n"]
    for number, compared in enumerate(result["comparisons"]):
        assert rows.size("compared", number) == compared["difference"]["n"]
        for part in ("first_better", "second_better", "both_good", "both_bad"):
            assert rows.size(part, number) == round(compared[part]["estimate"] * compared[part]["n"])
        longer = compared["longer_won"]
        assert rows.size("won_by_length", number) == longer["n"]
        assert rows.size("longer_won", number) == round(longer["estimate"] * longer["n"])
    for each in result["slices"]:
        assert rows.size("slice", each["column"], each["value"]) == 50
    tree = Tree(html)
    failed = rows.find("failed", "teacher")
    behind = [each for _, each in tree.elements if failed in (each.get("class") or "").split()]
    assert len(behind) == next(model["num_failed"] for model in result["models"] if model["alias"] == "teacher") == 3
    assert f"#{failed}:target ~ .rows > .row:not(.{failed}) {{ display: none; }}" in html


def test_the_numbers_of_the_result_are_on_the_page(made):
    result, _, html = made
    text = Tree(html).texts
    for sentence in result["verdict"]["words"]:
        assert sentence in text["verdict"]
    recovered = result["gap_recovered"]
    assert f"{100 * recovered['estimate']:.0f}%" in text["verdict"]
    for compared in result["comparisons"]:
        assert f"{points_text(compared['difference']['estimate'])} points" in text["comparisons"]
        for part in ("first_better", "second_better", "both_good", "both_bad"):
            assert percent_text(compared[part]["estimate"]) in text["comparisons"]
    for model in result["models"]:
        assert f"{percent_text(model['score']['low'])} to {percent_text(model['score']['high'])}" in text["models"]
    place = f"{50 + 50 * result['comparisons'][0]['difference']['estimate']:.2f}%"
    assert f'<circle class="estimate" cx="{place}" cy="14" r="6"/>' in html


def test_an_undefined_share_says_why_and_a_judge_has_ties():
    result, answers, _ = story("after", num=20)
    result["gap_recovered"], result["gap_recovered_reason"] = None, "undefined: the teacher is not better"
    tied = result["comparisons"][0]["both_good"]
    result["comparisons"][0] |= {"both_good": None, "both_bad": None, "tied": tied, "longer_won": None}
    text = Tree(page(result, answers)).texts
    assert "undefined: the teacher is not better" in text["verdict"]
    assert "Tied" in text["comparisons"]


def test_marks_show_what_the_teacher_would_have_said(made):
    *_, html = made
    marks = Tree(html).texts["marks"]
    assert "approved → teacher: pending 71%" in re.sub(r"\s+", " ", marks)
    assert "Probability of this token: student 88%, teacher 6%." in marks
    assert html.count('<span class="flag">first mistake</span>') == 2
    assert "Marked: 4 of 76 tokens." in marks
    assert "⟦<|end|>⟧" in marks
    assert "␣pending" in marks
    rest = re.search(r"all other tokens</th><td>.*?<span>(\d+%)</span>.*?<span>(\d+%)</span>", html, re.DOTALL)
    assert rest.groups() == ("6%", "4%")  # 1 - (0.71 + 0.14 + 0.06 + 0.03) and 1 - (0.04 + 0.03 + 0.88 + 0.01)


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0%"), (0.004, "<1%"), (0.5, "50%"), (0.996, ">99%"), (1, "100%"), (-0.2, "−20%")]
)
def test_a_share_is_never_rounded_to_none_or_all(value, shown):
    assert percent_text(value) == shown


@pytest.fixture
def stored(tmp_path):
    result, answers, marks = story("after", num=12)
    with Evaluation.create(tmp_path, "first") as evaluation:
        evaluation.begin({"kind": "after"})
        for alias, lines in answers.items():
            evaluation.write_answers(alias, lines)
        write_marks(evaluation.marks_path / "chosen.safetensors", marks[0])
        evaluation.write_result({**result, "name": "first"})
    return tmp_path


@pytest.mark.parametrize("name", ["first", "calm-otter-17"])
def test_the_command_writes_the_page_of_an_evaluation_or_of_the_run_it_judged(stored, capsys, name):
    output = stored / "report.html"
    assert run_cli(["report", name, "-o", str(output), "--workspace", str(stored)]) == 0
    assert str(output) in capsys.readouterr().out
    assert "first mistake" in output.read_text(encoding="utf-8")


def test_a_report_replaces_no_file_that_is_no_page(stored, capsys):
    kept = stored / "tickets.jsonl"
    kept.write_text("{}")
    assert run_cli(["report", "first", "-o", str(kept), "--workspace", str(stored)]) == 2
    assert "report.not-html" in capsys.readouterr().err
    assert kept.read_text() == "{}"


def test_an_unknown_name_is_told(stored, capsys):
    assert run_cli(["report", "second", "--workspace", str(stored)]) == 2
    assert "evaluation.not-found" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_no_stopped_run(stored, capsys):
    folder = stored / "report.html"
    folder.mkdir()
    assert run_cli(["report", "first", "-o", str(folder), "--workspace", str(stored)]) == 1
    assert "report.not-written" in capsys.readouterr().err


def test_answers_that_are_gone_are_told_on_the_page(stored, capsys):
    evaluation = Evaluation(stored / "evaluations" / "first")
    evaluation.answers("student").unlink()
    output = stored / "report.html"
    assert run_cli(["report", "first", "-o", str(output), "--workspace", str(stored)]) == 0
    assert "Not shown: the answers of student. Their files are no longer in" in output.read_text(encoding="utf-8")


def test_half_a_result_is_told_by_its_file(stored, capsys):
    path = stored / "evaluations" / "first" / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    del result["comparisons"]
    path.write_text(json.dumps(result))
    assert run_cli(["report", "first", "--workspace", str(stored)]) == 2
    assert "result.json" in capsys.readouterr().err


def _colours(style):
    """The colours of the light page and of the dark one, by name."""
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    read = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", part)) for part in (light, dark)]
    return read[0], {**read[0], **read[1]}


def _contrast(one, two):
    """The contrast ratio of WCAG 2.2 between two colours."""

    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_and_bars_stand_out_from_the_paper(made, scheme):
    colours = _colours(re.search(r"<style>(.*?)</style>", made[2], re.DOTALL)[1])[scheme]
    for ink in ("ink", "muted", "link", "pen", "right", "wrong"):
        for paper in ("paper", "soft"):
            assert _contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
    assert _contrast(colours["unseen-ink"], colours["unseen"]) >= 4.5
    assert _contrast(colours["ink"], colours["pen-2"]) >= 4.5
    for bar in ("first", "second", "bad", "plain"):
        assert _contrast(colours[bar], colours["paper"]) >= 3, bar
    # the two sides of a bar differ also for who sees no colour, as the hatched part between them does
    assert _contrast(colours["first"], colours["good"]) >= 1.5
