"""The chat template: which one is used, and what it does, found out by rendering conversations of marked turns.

A template is code that came with a model. It is chosen once, its text is frozen with a hash, and everything said about
it (what it injects, how it opens an answer, how it ends a turn) is read from what it writes, never from its source.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from limbeck.data.jsonl import nearest_names
from limbeck.data.rows import Message, as_dicts
from limbeck.errors import RecipeError, Refusal

__all__ = [
    "RENDER_ERRORS",
    "Template",
    "TemplateFacts",
    "check_options",
    "choose_template",
    "describe_refusal",
    "probe_template",
    "render",
]

RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What rendering raises when a template refuses a conversation or stumbles over it."""

_USER = Message("user", "QZUSERQZ")
_ANSWER = Message("assistant", "QZANSWERQZ")
_NEXT_USER = Message("user", "QZNEXTQZ")
_SYSTEM = Message("system", "QZSYSTEMQZ")

_BOUND_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_TOKEN_SHAPED = re.compile(r"<\|[^|<>\s]{1,60}\|>|<｜[^｜<>\s]{1,60}｜>|<(?:start|end)_of_turn>")
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


@dataclass(frozen=True)
class Template:
    """A chat template, frozen: its jinja text, where it is from ("student", "teacher" or a file path), its hash."""

    source: str
    origin: str
    sha256: str


@dataclass(frozen=True)
class TemplateFacts:
    """What a template does.

    Attributes:
        generation_prompt: the text that opens an answer; empty where an answer follows the user turn directly.
        injected_system: what is written before the first user turn of a conversation without system turn, beyond the
            header of the turn; None if nothing.
        turn_end: the text right after an answer.
    """

    generation_prompt: str
    injected_system: str | None
    turn_end: str


def choose_template(
    choice: str,
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase | None,
    *,
    student_name: str,
    teacher_name: str,
) -> Template:
    """The template that a recipe's `template` names: "student", "teacher", or a file of jinja text.

    Raises RecipeError when there is none, and Refusal when it needs tokens that the student reads as several pieces.
    """
    if choice == "student":
        source = _own_template(student_tokenizer)
    elif choice == "teacher":
        source = None if teacher_tokenizer is None else _own_template(teacher_tokenizer)
    else:
        source = _read_template_file(choice)
    if source is None:
        other = teacher_tokenizer if choice == "student" else student_tokenizer
        other_has_one = other is not None and _own_template(other) is not None
        other_choice = "teacher" if choice == "student" else "student"
        raise RecipeError(
            "recipe.template-missing",
            given=f"template: {choice}, but {student_name if choice == 'student' else teacher_name} has no chat "
            "template (base models come without one).",
            needed="A chat template turns a conversation into the text that both models read.",
            fix=f"Set template: {other_choice}, or template: FILE with a file of jinja text."
            if other_has_one
            else "Set template: FILE with a file of jinja text, for example chatml.jinja.",
        )
    _check_syntax(source, choice)
    if choice == "teacher" and teacher_tokenizer is not None:
        source = _bind_special_tokens(source, student_tokenizer, teacher_tokenizer)
    template = Template(source, choice, hashlib.sha256(source.encode("utf-8")).hexdigest())
    if choice != "student":
        _check_tokens(template, student_tokenizer, teacher_tokenizer, student_name=student_name)
    return template


def render(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    messages: Sequence[Message],
    options: Mapping[str, object],
    *,
    add_generation_prompt: bool,
) -> str:
    """The conversation as text. Raises one of RENDER_ERRORS when the template refuses it."""
    template_variables: dict[str, Any] = dict(options)
    text = tokenizer.apply_chat_template(
        as_dicts(messages),
        chat_template=template.source,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        **template_variables,
    )
    assert isinstance(text, str)
    return text


def describe_refusal(error: Exception) -> str:
    """What a template said when it refused a conversation."""
    text = str(error).strip() or type(error).__name__
    return f'the template says "{text}"' if isinstance(error, jinja2.TemplateError) else f"the template fails: {text}"


def check_options(template: Template, options: Mapping[str, object]) -> None:
    """Refuses template options that the template does not read, or that are not the template's to read."""
    if not options:
        return
    read = _variables(template.source)
    reserved = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {"messages"}
    for name in options:
        if name in read and name not in reserved:
            continue
        readable = sorted(read - reserved - set(_BOUND_TOKENS) - {"raise_exception", "strftime_now", "namespace"})
        near = difflib.get_close_matches(name, readable, n=1)
        raise RecipeError(
            "recipe.template-option-unused",
            given=f"template_options has {name}, which the {template.origin} template does not read.",
            needed="A setting that changes nothing is refused, so that nobody believes in it.",
            fix=(f"Is {near[0]} meant? " if near else "")
            + (f"The template reads {', '.join(readable)}." if readable else "Remove it: the template has no options."),
        )


def probe_template(
    tokenizer: PreTrainedTokenizerBase, template: Template, options: Mapping[str, object]
) -> TemplateFacts:
    """Renders marked conversations and reads off what the template does.

    Raises Refusal when prompts of this template would not be what the model answers to: the user's text is left out,
    or nothing opens the answer although answers have a header.
    """

    def rendered(*messages: Message, opened: bool = False) -> str:
        try:
            return render(tokenizer, template, messages, options, add_generation_prompt=opened)
        except RENDER_ERRORS as error:
            roles = ", ".join(message.role for message in messages)
            raise Refusal(
                "data.template-fails",
                given=f"The {template.origin} template cannot render a conversation of the turns {roles}: "
                f"{describe_refusal(error)}.",
                needed="It must write at least a user turn, the answer and the next user turn.",
                fix="Set template: FILE with another template, or template_options that it needs.",
            ) from error

    closed = rendered(_USER)
    if _USER.content not in closed:
        raise Refusal(
            "data.template-drops-user",
            given=f"The {template.origin} template does not write the text of the user turn.",
            needed="The model would answer a question that it never sees.",
            fix="Set template: FILE with another template.",
        )
    opened = rendered(_USER, opened=True)
    answered = rendered(_USER, _ANSWER)
    if opened == closed:
        _refuse_missing_header(template, closed, answered)
    return TemplateFacts(
        generation_prompt=opened.removeprefix(closed) if opened.startswith(closed) else _after(opened, _USER),
        injected_system=_injected(tokenizer, template, options, closed.partition(_USER.content)[0]),
        turn_end=_after(answered, _ANSWER),
    )


def _after(text: str, message: Message) -> str:
    return text.partition(message.content)[2]


def _refuse_missing_header(template: Template, closed: str, answered: str) -> None:
    """`add_generation_prompt` changes nothing: fine where an answer follows directly, wrong where it has a header."""
    header = None
    if answered.startswith(closed) and _ANSWER.content in answered:
        header = answered[len(closed) :].partition(_ANSWER.content)[0]
        if not header.strip():
            return
    line = json.dumps(header, ensure_ascii=False) if header is not None else "the header of an assistant turn"
    raise Refusal(
        "data.template-no-generation-prompt",
        given=f"The {template.origin} template ignores add_generation_prompt: prompts would end after the user turn"
        + (f", although it opens an answer with {line}." if header is not None else "."),
        needed="The prompt must end where the answer begins, or the student has to write the header first.",
        fix="Save the template to a file, append "
        f"{{% if add_generation_prompt %}}{{{{ {line} }}}}{{% endif %}}, and set template: FILE.",
    )


def _injected(
    tokenizer: PreTrainedTokenizerBase, template: Template, options: Mapping[str, object], before_user: str
) -> str | None:
    """What stands before the first user turn and does not stand before a later one.

    From an answer to the next user turn the template writes the end of the answer and the header of a user turn. What
    `before_user` shares with the end of that is the header; what is left, apart from the start token, is injected.
    """

    def without_start(text: str) -> str:
        return text.removeprefix(tokenizer.bos_token) if isinstance(tokenizer.bos_token, str) else text

    later = _rendered_or_none(tokenizer, template, [_USER, _ANSWER, _NEXT_USER], options)
    if later is None:
        return None  # a template for one turn has no later header to compare with
    between = _after(later, _ANSWER).partition(_NEXT_USER.content)[0]
    rest = without_start(before_user)
    num_same = 0
    while num_same < min(len(rest), len(between)) and rest[-1 - num_same] == between[-1 - num_same]:
        num_same += 1
    rest = rest[: len(rest) - num_same].strip()
    explicit = _rendered_or_none(tokenizer, template, [_SYSTEM, _USER], options)
    if not rest or explicit is None or _SYSTEM.content not in explicit:
        return rest or None
    # without the header and end of a system turn, unless the injected text is part of what precedes any system text
    header, _, end = without_start(explicit).partition(_SYSTEM.content)
    inner = without_start(before_user).removeprefix(header).removesuffix(end.partition(_USER.content)[0]).strip()
    return inner if inner and inner in rest else rest


def _rendered_or_none(
    tokenizer: PreTrainedTokenizerBase, template: Template, messages: Sequence[Message], options: Mapping[str, object]
) -> str | None:
    try:
        return render(tokenizer, template, messages, options, add_generation_prompt=False)
    except RENDER_ERRORS:
        return None


def _own_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = source.get("default")
    return source if isinstance(source, str) and source.strip() else None


def _read_template_file(choice: str) -> str:
    path = Path(choice).expanduser()
    if not path.is_file():
        raise RecipeError(
            "recipe.template-file-missing",
            given=f"template: {choice} is no file{nearest_names(path.name, path.parent)}.",
            needed="template is student, teacher, or the path of a file of jinja text.",
            fix="Correct the path, or set template: student.",
        )
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RecipeError(
            "recipe.template-file-invalid",
            given=f"template: {choice} is not UTF-8 (byte {error.start + 1}).",
            needed="A template is jinja text in UTF-8.",
            fix="Save the file as UTF-8.",
        ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])


def _variables(source: str) -> set[str]:
    """Names that the template takes from outside."""
    # {% generation %} is a tag of transformers, which plain jinja does not know
    return jinja2.meta.find_undeclared_variables(_environment().parse(_GENERATION_TAG.sub("", source)))


def _check_syntax(source: str, choice: str) -> None:
    try:
        _variables(source)
    except jinja2.TemplateSyntaxError as error:
        raise RecipeError(
            "recipe.template-syntax",
            given=f"template: {choice} is not a jinja template: {error.message} in line {error.lineno}.",
            needed="A chat template is jinja text that writes `messages`.",
            fix="Correct the template, or set template: student.",
        ) from error


def _bind_special_tokens(
    source: str, student_tokenizer: PreTrainedTokenizerBase, teacher_tokenizer: PreTrainedTokenizerBase
) -> str:
    """Writes the teacher's start and end tokens into its template, where the student's are others.

    A template that says `eos_token` means its own model's. Bound in the text, it means the same wherever the student
    is served later.
    """
    bindings = ""
    for name in _BOUND_TOKENS:
        own = teacher_tokenizer.special_tokens_map.get(name)
        if name in source and own != student_tokenizer.special_tokens_map.get(name):
            bindings += f"{{% set {name} = {json.dumps(own or '', ensure_ascii=False)} %}}"
    # the empty expression keeps a line feed that may follow: after a block it would be trimmed
    return f"{bindings}{{{{ '' }}}}{source}" if bindings else source


def _check_tokens(
    template: Template,
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase | None,
    *,
    student_name: str,
) -> None:
    """Refuses a template whose control tokens the student would read as several pieces of text."""
    # a template without system turns, or that needs options, is judged when rows are rendered, with the row
    text = ""
    for messages in ([_USER, _ANSWER, _NEXT_USER], [_SYSTEM, _USER]):
        text += _rendered_or_none(student_tokenizer, template, messages, {}) or ""
    added = teacher_tokenizer.added_tokens_decoder.values() if teacher_tokenizer is not None else ()
    tokens = {token.content for token in added if token.special}
    if template.origin != "teacher":
        tokens |= set(_TOKEN_SHAPED.findall(text))
    split = sorted(token for token in tokens if token in text and not _is_one_token(student_tokenizer, token))
    if not split:
        return
    known = [token for token in student_tokenizer.get_added_vocab() if token.strip()][:8]
    raise Refusal(
        "data.template-token-split",
        given=f"The {template.origin} template writes {', '.join(split)}, which {student_name} does not have as "
        f"{'a token' if len(split) == 1 else 'tokens'}: it would read several pieces of text.",
        needed="A control token must be one token of the student, or turns have no ends that it can learn to write.",
        fix="Use a template of the tokens that the student has"
        + (f" ({', '.join(known)})." if known else ", or another student."),
    )


def _is_one_token(tokenizer: PreTrainedTokenizerBase, token: str) -> bool:
    ids = tokenizer(token, add_special_tokens=False)["input_ids"]
    return len(ids) == 1 and tokenizer.convert_ids_to_tokens(ids[0]) == token
