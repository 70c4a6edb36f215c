"""The chat template: which one is used, and what it does, determined by rendering conversations of marker texts.

A template is code that comes with a model. It is chosen once and stored with its hash. What is reported about it (what
it injects, how it opens an answer, how it ends a turn) is derived from its output, never from its source.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from transformers import PreTrainedTokenizerBase as Tokenizer

from limbeck.data.messages import templates as messages
from limbeck.data.prompt import Message
from limbeck.data.row_errors import nearest

__all__ = [
    "RENDER_ERRORS",
    "START",
    "Template",
    "TemplateFacts",
    "check_options",
    "choose_template",
    "describe_refusal",
    "probe_template",
    "render",
]

# What rendering raises when a template rejects a conversation or fails on it.
RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Put before a template that does not write the start token with which the tokenizer begins each text.
START = "{{ bos_token }}"
_NO_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != ['user', 'assistant'][loop.index0] %}"
    "{{ raise_exception('without a chat template, a prompt is one user message') }}{% endif %}"
    "{{ message['content'] }}{% endfor %}"
)

# Variables for a template, from the recipe.
TemplateOptions = Mapping[str, Any]

_USER = Message("user", "QZUSERQZ")
_ANSWER = Message("assistant", "QZANSWERQZ")
_NEXT_USER = Message("user", "QZNEXTQZ")
_SYSTEM = Message("system", "QZSYSTEMQZ")

# Variables that every template gets.
_TOKENS = {"bos_token", "eos_token", "unk_token", "pad_token"}
_ALWAYS_GIVEN = {"messages", "add_generation_prompt", "raise_exception", "strftime_now", *_TOKENS}
_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


@dataclass(frozen=True)
class Template:
    """A chat template: its Jinja source, its origin ("student", "teacher", "none" or a file path), its hash.

    `read_at` (ISO 8601) is the time that the template gets as the current time, None for the clock's; `start_added` is
    whether START was put before the source that came with the model.
    """

    source: str
    origin: str
    sha256: str
    read_at: str | None = None
    start_added: bool = False

    @cached_property
    def dated_source(self) -> str:
        """The source with the date of `read_at` in place of today's."""
        if self.read_at is None:
            return self.source
        now = datetime.fromisoformat(self.read_at)
        return _TODAY.sub(lambda found: json.dumps(now.strftime(found[2])), self.source)


@dataclass(frozen=True)
class TemplateFacts:
    """What a template writes to open an answer (may be empty), what it adds to a conversation without a system turn
    (None if nothing), and what it writes after an answer."""

    generation_prompt: str
    injected_system: str | None
    turn_end: str


def choose_template(
    choice: str, student: Tokenizer, teacher: Tokenizer | None, *, student_name: str, teacher_name: str
) -> Template:
    """The template of a recipe's `template`: "student", "teacher", "none", or the path of a Jinja file.

    With "none", a prompt is plain text, as for a base model. If the tokenizer begins each text with a start token and
    the template does not write it, START is added.

    Raises:
        RecipeError: the model has no template, or the file cannot be read.
        Refusal: the template writes control tokens of the teacher that the student does not have.
    """
    own = {"student": _own_template(student), "teacher": _own_template(teacher), "none": _NO_TEMPLATE}
    source = own[choice] if choice in own else _read_template_file(choice)
    if source is None:
        model, other = (student_name, "teacher") if choice == "student" else (teacher_name, "student")
        if own[other]:
            raise messages.template_missing_here(choice=choice, model=model, other=other)
        raise messages.template_missing(choice=choice, model=model)
    lacks_start = _lacks_start(student, Template(source, choice, ""))
    source = START * lacks_start + source
    content = hashlib.sha256(source.encode("utf-8")).hexdigest()
    template = Template(source, choice, content, start_added=lacks_start)
    if choice != "student" and teacher is not None:
        _check_tokens(template, student, teacher, student_name)
    return template


def render(
    tokenizer: Tokenizer, template: Template, messages: Sequence[Message], options: TemplateOptions, *, opened: bool
) -> str:
    """The conversation as text, with the opening of the answer if `opened`. Raises one of RENDER_ERRORS if it fails."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    text = tokenizer.apply_chat_template(
        turns, chat_template=template.dated_source, tokenize=False, add_generation_prompt=opened, **options
    )
    assert isinstance(text, str)
    return text


def describe_refusal(error: Exception) -> str:
    """What a template raised while rendering, on one line; for a syntax error, with its line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text} in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else text


def check_options(template: Template, options: TemplateOptions) -> None:
    """Raises RecipeError for an option that the template does not use, or that Limbeck sets itself."""
    if not options:
        return
    # {% generation %} is a tag of transformers, unknown to plain Jinja
    source = _GENERATION_TAG.sub("", template.source)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    readable = sorted(jinja2.meta.find_undeclared_variables(environment.parse(source)) - _ALWAYS_GIVEN)
    unused = [name for name in options if name not in readable]
    if unused and readable:
        raise messages.template_option_unused(options=unused, origin=template.origin, readable=readable)
    if unused:
        raise messages.template_has_no_options(options=unused, origin=template.origin)


def probe_template(tokenizer: Tokenizer, template: Template, options: TemplateOptions) -> TemplateFacts:
    """Render conversations of marker texts and derive what the template does.

    Raises Refusal if it cannot render a user turn and its answer, or does not open an answer that has a header.
    """
    try:
        closed = render(tokenizer, template, (_USER,), options, opened=False)
        opened = render(tokenizer, template, (_USER,), options, opened=True)
        answered = render(tokenizer, template, (_USER, _ANSWER), options, opened=False)
    except RENDER_ERRORS as error:
        raise messages.template_fails(origin=template.origin, reason=describe_refusal(error)) from error
    if any(_USER.content not in text for text in (closed, opened, answered)):
        raise messages.template_omits_user(origin=template.origin)
    if opened == closed:
        _refuse_missing_header(template, closed, answered)
    injected = None
    with suppress(*RENDER_ERRORS):  # a template for a single turn has no later header to compare with
        later = render(tokenizer, template, (_USER, _ANSWER, _NEXT_USER), options, opened=False)
        injected = _injected(_before(closed, _USER).removeprefix(str(tokenizer.bos_token or "")), later)
    return TemplateFacts(
        generation_prompt=opened.removeprefix(closed) if opened.startswith(closed) else _after(opened, _USER),
        injected_system=injected,
        turn_end=_after(answered, _ANSWER),
    )


def _before(text: str, message: Message) -> str:
    return text.partition(message.content)[0]


def _after(text: str, message: Message) -> str:
    return text.partition(message.content)[2]


def _refuse_missing_header(template: Template, closed: str, answered: str) -> None:
    """For a template that ignores `add_generation_prompt`: raises Refusal if it writes a header before an answer."""
    if not answered.startswith(closed) or _ANSWER.content not in answered:
        raise messages.template_no_generation_prompt_header_unknown(origin=template.origin)
    if (header := _before(answered.removeprefix(closed), _ANSWER)).strip():
        line = json.dumps(header, ensure_ascii=False)
        raise messages.template_no_generation_prompt(origin=template.origin, header=line)


def _injected(before_user: str, later: str) -> str | None:
    """What the template writes before the first user turn and not before a later one; None if nothing.

    Between an answer and the next user turn, the template writes the end of the answer and the header of a user turn.
    The longest end of that text with which `before_user` (without the start token) also ends is the header; the rest of
    `before_user` is injected.
    """
    between = _before(_after(later, _ANSWER), _NEXT_USER)
    header = next(between[start:] for start in range(len(between) + 1) if before_user.endswith(between[start:]))
    return before_user.removesuffix(header).strip() or None


def _lacks_start(tokenizer: Tokenizer, template: Template) -> bool:
    """Whether the tokenizer begins a text with a start token that the template does not write."""
    if tokenizer.bos_token is None or tokenizer("a")["input_ids"][:1] != [tokenizer.bos_token_id]:
        return False
    with suppress(*RENDER_ERRORS):  # errors are reported when the template is probed or rows are rendered
        return not render(tokenizer, template, (_USER,), {}, opened=True).startswith(str(tokenizer.bos_token))
    return False


def _own_template(tokenizer: Tokenizer | None) -> str | None:
    source = None if tokenizer is None else tokenizer.chat_template
    if isinstance(source, dict):
        source = source.get("default")
    return source if isinstance(source, str) and source.strip() else None


def _read_template_file(choice: str) -> str:
    path = Path(choice).expanduser()
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise messages.template_file_encoding(path=choice) from error
        raise messages.template_file(path=choice, nearest=nearest(path.name, path.parent)) from error


def _check_tokens(template: Template, student: Tokenizer, teacher: Tokenizer, student_name: str) -> None:
    """Raises Refusal for a template that writes special tokens of the teacher that the student does not have."""
    written = ""
    for turns in ((_USER, _ANSWER, _NEXT_USER), (_SYSTEM, _USER)):
        # errors of a template without system turns, or that needs options, are reported when rows are rendered
        with suppress(*RENDER_ERRORS):
            written += render(student, template, turns, {}, opened=False) + "\n"
    special = {token.content for token in teacher.added_tokens_decoder.values() if token.special}
    split = sorted(token for token in special - student.get_vocab().keys() if token in written)
    if split:
        raise messages.template_token_split(origin=template.origin, tokens=split, student=student_name)
