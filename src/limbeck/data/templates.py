"""The chat template: which one is used, and what it does, found out by rendering conversations of marked turns.

A template is code that came with a model. It is chosen once, and its text is frozen with a hash. What is reported about
it (what it injects, how it opens an answer, how it ends a turn) is read from its output, never from its source.
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

from limbeck.data.faults import nearest
from limbeck.data.messages import templates as messages
from limbeck.data.prompt import Message

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

# What rendering raises when a template refuses a conversation or stumbles over it.
RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Stands before a template that writes no start token, where the tokenizer begins each text with one.
START = "{{ bos_token }}"
_NO_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != ['user', 'assistant'][loop.index0] %}"
    "{{ raise_exception('without a template a prompt is one text, as it stands') }}{% endif %}"
    "{{ message['content'] }}{% endfor %}"
)

# Variables for a template, by the recipe.
Options = Mapping[str, Any]

_USER = Message("user", "QZUSERQZ")
_ANSWER = Message("assistant", "QZANSWERQZ")
_NEXT_USER = Message("user", "QZNEXTQZ")
_SYSTEM = Message("system", "QZSYSTEMQZ")

# What a template can read without being given it.
_TOKENS = {"bos_token", "eos_token", "unk_token", "pad_token"}
_ALWAYS_GIVEN = {"messages", "add_generation_prompt", "raise_exception", "strftime_now", *_TOKENS}
_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


@dataclass(frozen=True)
class Template:
    """A chat template, frozen: its jinja text, where it is from ("student", "teacher" or a file path), its hash.

    `read_at` (ISO 8601) is what it takes for now, None for the clock's time; `start_added` says that START stands
    before the text that came with the model.
    """

    source: str
    origin: str
    sha256: str
    read_at: str | None = None
    start_added: bool = False

    @cached_property
    def dated_source(self) -> str:
        """The text with the date of `read_at` where it asks for today's."""
        if self.read_at is None:
            return self.source
        now = datetime.fromisoformat(self.read_at)
        return _TODAY.sub(lambda found: json.dumps(now.strftime(found[2])), self.source)


@dataclass(frozen=True)
class TemplateFacts:
    """What a template writes: what opens an answer (may be empty), what it adds to a conversation without system turn
    (None if nothing), and what follows an answer."""

    generation_prompt: str
    injected_system: str | None
    turn_end: str


def choose_template(
    choice: str, student: Tokenizer, teacher: Tokenizer | None, *, student_name: str, teacher_name: str
) -> Template:
    """The template that a recipe's `template` names: "student", "teacher", "none", or a file of jinja text.

    With "none" a prompt is one plain text, as a base model reads it. A template that writes no start token gets the
    one with which the tokenizer begins any text.

    Raises RecipeError when there is none, and Refusal when it needs tokens that the student reads as several pieces.
    """
    own = {"student": _own_template(student), "teacher": _own_template(teacher), "none": _NO_TEMPLATE}
    source = own[choice] if choice in own else _read_template_file(choice)
    if source is None:
        alternatives = [f"template: {other}" for other in ("student", "teacher") if own[other]]
        alternatives += ["template: FILE with a Jinja template", "template: none if each prompt is one plain text"]
        model = student_name if choice == "student" else teacher_name
        raise messages.template_missing(choice=choice, model=model, alternatives=", or ".join(alternatives))
    lacks_start = _lacks_start(student, Template(source, choice, ""))
    source = START * lacks_start + source
    content = hashlib.sha256(source.encode("utf-8")).hexdigest()
    template = Template(source, choice, content, start_added=lacks_start)
    if choice != "student" and teacher is not None:
        _check_tokens(template, student, teacher, student_name)
    return template


def render(
    tokenizer: Tokenizer, template: Template, messages: Sequence[Message], options: Options, *, opened: bool
) -> str:
    """The conversation as text, the answer to it `opened` or not. Raises one of RENDER_ERRORS when it is refused."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    text = tokenizer.apply_chat_template(
        turns, chat_template=template.dated_source, tokenize=False, add_generation_prompt=opened, **options
    )
    assert isinstance(text, str)
    return text


def describe_refusal(error: Exception) -> str:
    """Why a template refused a conversation, as part of a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, jinja2.TemplateSyntaxError):
        text += f" in line {error.lineno}"
    says = messages.template_says if isinstance(error, jinja2.TemplateError) else messages.template_error
    return says(text=text)


def check_options(template: Template, options: Options) -> None:
    """Raises RecipeError for an option that the template does not read, or that is not the template's to read."""
    if not options:
        return
    # {% generation %} is a tag of transformers, which plain jinja does not know
    source = _GENERATION_TAG.sub("", template.source)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    readable = sorted(jinja2.meta.find_undeclared_variables(environment.parse(source)) - _ALWAYS_GIVEN)
    unread = [name for name in options if name not in readable]
    if unread:
        if not readable:
            raise messages.template_has_no_options(options=unread, origin=template.origin)
        raise messages.template_option_unused(options=unread, origin=template.origin, readable=readable)


def probe_template(tokenizer: Tokenizer, template: Template, options: Options) -> TemplateFacts:
    """Renders marked conversations and reads off what the template does.

    Raises Refusal when it cannot render a user turn and its answer, or does not open an answer that has a header.
    """

    def rendered(*messages: Message, opened: bool = False) -> str:
        text = render(tokenizer, template, messages, options, opened=opened)
        if _USER.content not in text:
            raise LookupError("it leaves out the text of the user turn")
        return text

    try:
        closed, opened, answered = rendered(_USER), rendered(_USER, opened=True), rendered(_USER, _ANSWER)
    except RENDER_ERRORS as error:
        raise messages.template_fails(origin=template.origin, reason=describe_refusal(error)) from error
    if opened == closed:
        _refuse_missing_header(template, closed, answered)
    injected = None
    with suppress(*RENDER_ERRORS):  # a template for one turn has no later header to compare with
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
    """`add_generation_prompt` changes nothing: fine where an answer follows directly, wrong where it has a header."""
    line = "the header of an assistant turn"
    if answered.startswith(closed) and _ANSWER.content in answered:
        header = _before(answered.removeprefix(closed), _ANSWER)
        if not header.strip():
            return
        line = json.dumps(header, ensure_ascii=False)
    raise messages.template_no_generation_prompt(origin=template.origin, header=line)


def _injected(before_user: str, later: str) -> str | None:
    """What stands before the first user turn and does not stand before a later one.

    Between an answer and the next user turn the template writes the end of the answer and the header of a user turn.
    What `before_user`, without the start token, shares with the end of that is the header; the rest is injected.
    """
    between = _before(_after(later, _ANSWER), _NEXT_USER)
    header = next(between[start:] for start in range(len(between) + 1) if before_user.endswith(between[start:]))
    return before_user.removesuffix(header).strip() or None


def _lacks_start(tokenizer: Tokenizer, template: Template) -> bool:
    """Whether the tokenizer begins a text with a start token, and the template does not write it."""
    if tokenizer.bos_token is None or tokenizer("a")["input_ids"][:1] != [tokenizer.bos_token_id]:
        return False
    with suppress(*RENDER_ERRORS):  # what it cannot write is told with the rows, or when it is probed
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
    """Refuses a template that writes special tokens of the teacher which the student does not have."""
    written = ""
    for turns in ((_USER, _ANSWER, _NEXT_USER), (_SYSTEM, _USER)):
        # a template without system turns, or that needs options, is judged when rows are rendered, with the row
        with suppress(*RENDER_ERRORS):
            written += render(student, template, turns, {}, opened=False) + "\n"
    special = {token.content for token in teacher.added_tokens_decoder.values() if token.special}
    split = sorted(token for token in special - student.get_vocab().keys() if token in written)
    if split:
        raise messages.template_token_split(origin=template.origin, tokens=split, student=student_name)
