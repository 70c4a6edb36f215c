"""What is said about chat templates and stop tokens."""

from __future__ import annotations

from limbeck.errors import FaultText, ModelError, RecipeError, Refusal, Text, error, fault, note

__all__: list[str] = []


@error(RecipeError, "recipe.template-missing")
def template_missing(*, choice: str, model: str, alternatives: str) -> Text:
    return Text(
        given="template: {choice}, but {model} has no chat template (base models come without one).",
        needed="A chat template turns a conversation into the text that both models read.",
        fix="Set {alternatives}.",
    )


@error(RecipeError, "recipe.template-file")
def template_file(*, path: str, nearest: str) -> Text:
    return Text(
        given="template: {path} cannot be read{nearest}.",
        needed="template is student, teacher, none, or the path of a Jinja file in UTF-8.",
        fix="Correct the path, or set template: student.",
    )


@error(RecipeError, "recipe.template-file.encoding")
def template_file_encoding(*, path: str) -> Text:
    return Text(
        given="template: {path} is not UTF-8.",
        needed="template is student, teacher, none, or the path of a Jinja file in UTF-8.",
        fix="Save the file as UTF-8, or set template: student.",
    )


@error(RecipeError, "recipe.template-option-unused")
def template_option_unused(*, options: list[str], origin: str, readable: list[str]) -> Text:
    return Text(
        given="template_options has {options}, which the {origin} template does not read.",
        needed="A setting without any effect is refused, so that nobody relies on it.",
        fix="Remove it, or use one that the template reads: {readable}.",
    )


@error(RecipeError, "recipe.template-option-unused.none")
def template_has_no_options(*, options: list[str], origin: str) -> Text:
    return Text(
        given="template_options has {options}, and the {origin} template reads no options.",
        needed="A setting without any effect is refused, so that nobody relies on it.",
        fix="Remove template_options.",
    )


@error(Refusal, "data.template-fails")
def template_fails(*, origin: str, reason: str) -> Text:
    return Text(
        given="The {origin} template cannot render a question and its answer: {reason}.",
        needed="It must render at least these two turns.",
        fix="Set template: FILE with another template, or the template_options that it needs.",
    )


@error(Refusal, "data.template-no-generation-prompt")
def template_no_generation_prompt(*, origin: str, header: str) -> Text:
    return Text(
        given="The {origin} template ignores add_generation_prompt: prompts would end before {header}.",
        needed="A prompt must end where the answer begins, or the student would have to generate the header first.",
        fix="Save the template to a file, append {{% if add_generation_prompt %}}{{{{ {header} }}}}{{% endif %}}, and "
        "set template: FILE.",
    )


@error(Refusal, "data.template-token-split")
def template_token_split(*, origin: str, tokens: list[str], student: str) -> Text:
    return Text(
        given="The {origin} template writes {tokens}, for which {student} has no token: it would read several pieces "
        "of text.",
        needed="A control token must be a single token, or turns have no end that the student can learn.",
        fix="Set template to one whose control tokens the student has, or choose another student.",
    )


@error(Refusal, "data.template-double-bos")
def template_double_bos(*, token: str, rows: str) -> Text:
    return Text(
        given="These prompts begin with two start tokens {token}: {rows}.",
        needed="The models were trained with one; a second shifts every position and silently lowers quality.",
        fix="Remove it from the template or from the text of these rows.",
    )


@fault("data.template-refused")
def template_refused(*, reason: str, origin: str) -> FaultText:
    return FaultText(
        given="{reason}",
        expected="turns that the {origin} template can render, or template: FILE with one that renders these",
    )


@note("data.template-says")
def template_says(*, text: str) -> str:
    return 'the template says "{text}"'


@note("data.template-error")
def template_error(*, text: str) -> str:
    return "the template fails: {text}"


@note("data.system-injected")
def system_injected(*, rows: str, text: str) -> str:
    return "The template adds a system message to {rows}: {text}."


@note("data.start-token-added")
def start_token_added() -> str:
    return "The template writes no start token; the tokenizer's is put before each prompt, and saved with the template."


@note("data.answer-opened")
def answer_opened(*, text: str) -> str:
    return "The template opens each answer with {text}; that belongs to the prompt."


@note("data.template-dated")
def template_dated() -> str:
    return "The template may write today's date, which stays fixed for this run; see template_options."


@note("data.turns-changed")
def turns_changed(*, rows: str) -> str:
    return "The template changes the text of turns in {rows}; both models read what it writes."


@note("data.start-token-missing")
def start_token_missing(*, token: str, rows: str) -> str:
    return "The tokenizer begins a text with {token}, the template does not: {rows}."


@note("data.control-tokens")
def control_tokens_in_text(*, rows: str) -> str:
    return "The text of {rows} contains control tokens: a turn may end early there."


@error(ModelError, "model.stop-missing")
def stop_missing() -> Text:
    return Text(
        given="Neither the generation config, nor the tokenizer, nor the chat template names a token that ends an "
        "answer.",
        needed="Without one, every answer runs to its limit, and the student never learns to stop.",
        fix="Set template: FILE with a template that ends each turn with a token of the student's vocabulary.",
    )


@note("data.stop-from-tokenizer")
def stop_from_tokenizer(*, tokens: str) -> str:
    return "The model's configuration names no stop token; its tokenizer does: {tokens}."


@note("data.turn-ends-with-text")
def turn_ends_with_text(*, text: str, tokens: str) -> str:
    return "The template ends a turn with the text {text}; answers stop at {tokens}."


@note("data.stop-added")
def stop_added(*, own: str, added: str) -> str:
    return (
        "The student's own stop token is {own}, but the template ends a turn with {added}: answers stop at either, and "
        "the final model is saved with both."
    )


@note("data.teacher-ends-otherwise")
def teacher_ends_otherwise(*, teacher: str, token: str, student: str) -> str:
    return (
        "{teacher} ends a turn with {token}, where answers of {student} do not stop, so they may drift towards the "
        "limit; template: teacher avoids this."
    )


@note("data.student-ends-otherwise")
def student_ends_otherwise(*, token: str, teacher: str) -> str:
    return (
        "Answers end with {token}, where {teacher} does not stop, so it may rate ending there as unlikely; template: "
        "teacher avoids this."
    )
