"""The chat template: choosing it, and finding out what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from builders import (
    CHATML,
    CHATML_WITH_DEFAULT_SYSTEM,
    CHATML_WITHOUT_GENERATION_PROMPT,
    tiny_tokenizer,
)
from limbeck.data.prompt import Message
from limbeck.data.templates import Template, check_options, choose_template, probe_template, render
from limbeck.errors import RecipeError, Refusal

LLAMA_LIKE = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}"
    "{{ bos_token }}<|im_start|>system\nToday: {{ date_string }}\n\n{{ system }}<|im_end|>\n"
)
# The answer follows the instruction directly, as in the first Mistral and Llama 2 models.
INSTRUCTION = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)


def choose(choice: str, student: PreTrainedTokenizerFast, teacher: PreTrainedTokenizerFast | None = None) -> Template:
    return choose_template(choice, student, teacher, student_name="the-student", teacher_name="the-teacher")


def test_the_template_is_that_of_the_student_the_teacher_or_a_file(tmp_path: Path) -> None:
    student = tiny_tokenizer()
    teacher = tiny_tokenizer(chat_template=CHATML_WITH_DEFAULT_SYSTEM)
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML_WITH_DEFAULT_SYSTEM, encoding="utf-8")
    assert choose("student", student, teacher).source == CHATML
    assert choose("teacher", student, teacher).source == CHATML_WITH_DEFAULT_SYSTEM
    from_file = choose(str(file), student, teacher)
    assert (from_file.source, from_file.origin) == (CHATML_WITH_DEFAULT_SYSTEM, str(file))
    assert from_file.sha256 == choose("teacher", student, teacher).sha256 != choose("student", student, None).sha256


def test_the_default_of_several_templates_is_taken() -> None:
    student = tiny_tokenizer()
    student.chat_template = {"default": CHATML, "tool_use": CHATML_WITH_DEFAULT_SYSTEM}
    assert choose("student", student).source == CHATML


@pytest.mark.report("CT-05")
@pytest.mark.parametrize(
    ("choice", "student_template", "teacher_template", "fix"),
    [
        (
            "student",
            None,
            CHATML,
            "Set template: teacher, or template: FILE with a Jinja template, or template: none",
        ),
        ("student", None, None, "Set template: FILE"),
        ("student", "  ", None, "Set template: FILE"),
        ("teacher", CHATML, None, "Set template: student, or template: FILE"),
    ],
)
def test_a_model_without_template_is_named_with_a_way_out(
    choice: str, student_template: str | None, teacher_template: str | None, fix: str
) -> None:
    with pytest.raises(RecipeError) as raised:
        choose(choice, tiny_tokenizer(chat_template=student_template), tiny_tokenizer(chat_template=teacher_template))
    assert raised.value.code == "recipe.template-missing"
    assert f"the-{choice}" in raised.value.given
    assert raised.value.fix.startswith(fix)


@pytest.mark.report("CT-05")
def test_without_a_template_a_prompt_is_one_text_as_it_stands() -> None:
    base = tiny_tokenizer(chat_template=None)
    template = choose("none", base)
    text = " {{ once }} upon\na time"
    assert render(base, template, (Message("user", text),), {}, opened=True) == text
    facts = probe_template(base, template, {})
    assert (facts.generation_prompt, facts.injected_system, facts.turn_end) == ("", None, "")
    for roles in (("system", "user"), ("user", "user"), ("user", "assistant", "user")):
        with pytest.raises(TemplateError, match="a prompt is one user message"):
            render(base, template, [Message(role, "a") for role in roles], {}, opened=True)
    with_bos = tiny_tokenizer(chat_template=None, bos_token="<|endoftext|>", writes_bos=True)
    assert render(with_bos, choose("none", with_bos), (Message("user", "a"),), {}, opened=True) == "<|endoftext|>a"


def test_a_file_that_is_no_template_is_refused(tmp_path: Path) -> None:
    student = tiny_tokenizer()
    (tmp_path / "chat.jinja").write_text("{% for message in messages %}\n{{ message }\n{% endfor %}")
    (tmp_path / "latin.jinja").write_bytes(b"caf\xe9")
    for name, code, part in (
        ("latin.jinja", "recipe.template-file", "is not UTF-8"),
        ("chatt.jinja", "recipe.template-file", "nearest: chat.jinja"),
    ):
        with pytest.raises(RecipeError) as raised:
            choose(str(tmp_path / name), student)
        assert raised.value.code == code
        assert part in raised.value.given
    with pytest.raises(Refusal, match=r"unexpected '\}' in line 2"):
        probe_template(student, choose(str(tmp_path / "chat.jinja"), student), {})


def test_a_chat_token_that_the_student_splits_is_refused(tmp_path: Path) -> None:
    student = tiny_tokenizer(special_tokens=["<|endoftext|>"], eos_token="<|endoftext|>", chat_template=None)
    teacher = tiny_tokenizer()
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML)
    for choice in ("teacher", str(file)):
        with pytest.raises(Refusal) as raised:
            choose(choice, student, teacher)
        assert raised.value.code == "data.template-token-split"
        assert "<|im_end|>, <|im_start|>, for which the-student has no token" in raised.value.given
    with_them = tiny_tokenizer(special_tokens=["<|endoftext|>"], extra_tokens=["<|im_start|>", "<|im_end|>"])
    assert choose(str(file), with_them).source == CHATML


def test_token_shaped_text_of_the_models_own_template_is_its_own_business() -> None:
    plain = CHATML.replace("<|im_start|>", "<|turn|>")
    student = tiny_tokenizer(chat_template=plain)
    assert choose("student", student).source == plain
    # the teacher too writes it as plain text
    assert choose("teacher", tiny_tokenizer(), student).source == plain


def test_options_must_be_read_by_the_template() -> None:
    template = choose("student", tiny_tokenizer(chat_template=LLAMA_LIKE + CHATML))
    check_options(template, {"date_string": "26 Jul 2024"})
    for options in ({"date_sting": "x"}, {"tokenize": False}, {"messages": []}):
        with pytest.raises(RecipeError) as raised:
            check_options(template, options)
        assert raised.value.code == "recipe.template-option-unused"
        assert raised.value.parameters == {
            "options": list(options),
            "origin": "student",
            "readable": ["date_string", "system"],
        }
        assert raised.value.fix == "Remove it, or use the options of this template: date_string, system."
    with pytest.raises(RecipeError, match="This template has no options"):
        check_options(choose("student", tiny_tokenizer()), {"date_string": "x"})


# -- what a template does --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "bos", "generation_prompt", "injected", "turn_end"),
    [
        (CHATML, None, "<|im_start|>assistant\n", None, "<|im_end|>\n"),
        # a start token that is also the turn's first token is no injected text
        (CHATML, "<|im_start|>", "<|im_start|>assistant\n", None, "<|im_end|>\n"),
        (
            CHATML_WITH_DEFAULT_SYSTEM,
            None,
            "<|im_start|>assistant\n",
            "<|im_start|>system\nYou are a helpful assistant.",
            "<|im_end|>\n",
        ),
        (
            CHATML_WITH_DEFAULT_SYSTEM,
            "<|im_start|>",
            "<|im_start|>assistant\n",
            "system\nYou are a helpful assistant.",
            "<|im_end|>\n",
        ),
        (
            LLAMA_LIKE + CHATML,
            "<|endoftext|>",
            "<|im_start|>assistant\n",
            "<|im_start|>system\nToday: 1 May",
            "<|im_end|>\n",
        ),
        (INSTRUCTION, "<|endoftext|>", "", None, "<|im_end|>"),
        # a template without system turns of its own
        (
            "A chat between a user and an assistant. " + INSTRUCTION,
            None,
            "",
            "A chat between a user and an assistant.",
            "<|im_end|>",
        ),
    ],
)
def test_what_a_template_does_is_read_from_what_it_writes(
    source: str, bos: str | None, generation_prompt: str, injected: str | None, turn_end: str
) -> None:
    tokenizer = tiny_tokenizer(chat_template=source, bos_token=bos)
    facts = probe_template(tokenizer, choose("student", tokenizer), {"date_string": "1 May"})
    assert facts.generation_prompt == generation_prompt
    assert facts.injected_system == injected
    assert facts.turn_end == turn_end


@pytest.mark.report("CT-02")
def test_a_template_that_ignores_the_generation_prompt_is_refused_with_the_line_to_add(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(chat_template=CHATML_WITHOUT_GENERATION_PROMPT)
    with pytest.raises(Refusal) as raised:
        probe_template(tokenizer, choose("student", tokenizer), {})
    assert raised.value.code == "data.template-no-generation-prompt"
    remedy = '{% if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}'
    assert remedy in raised.value.fix
    # the remedy, followed to the letter, is accepted
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML_WITHOUT_GENERATION_PROMPT + remedy, encoding="utf-8")
    assert probe_template(tokenizer, choose(str(file), tokenizer), {}).generation_prompt == "<|im_start|>assistant\n"


@pytest.mark.report("CT-02")
def test_a_template_whose_header_cannot_be_derived_is_refused_too() -> None:
    source = (
        "{% for message in messages %}"
        "{% if loop.last and message['role'] == 'user' %}<|im_start|>{% endif %}"
        "{{ message['role'] + ': ' + message['content'] + '<|im_end|>' }}{% endfor %}"
    )
    tokenizer = tiny_tokenizer(chat_template=source)
    with pytest.raises(Refusal, match=r"data\.template-no-generation-prompt"):
        probe_template(tokenizer, choose("student", tokenizer), {})


def test_a_template_that_fails_or_drops_the_user_is_refused() -> None:
    for source, code, part in (
        ("{{ raise_exception('no way') }}", "data.template-fails", 'fails with "no way"'),
        ("{{ 1 / 0 }}", "data.template-fails", 'fails with "division by zero"'),
        ("{{ missing.part.more }}", "data.template-fails", "'missing' is undefined"),
        ("hello{% if add_generation_prompt %}x{% endif %}", "data.template-fails", "leaves out the text"),
    ):
        tokenizer = tiny_tokenizer(chat_template=source)
        with pytest.raises(Refusal) as raised:
            probe_template(tokenizer, choose("student", tokenizer), {})
        assert raised.value.code == code
        assert part in raised.value.given
