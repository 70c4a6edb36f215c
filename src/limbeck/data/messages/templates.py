"""Messages about chat templates and stop tokens."""

from __future__ import annotations

from limbeck.errors import FaultText, ModelError, RecipeError, Refusal, Text, error, fault, note

__all__: list[str] = []


@error(RecipeError, "recipe.template-missing")
def template_missing(*, choice: str, model: str) -> Text:
    return Text(
        given="template: {choice}, but {model} has no chat template (base models usually have none).",
        needed="A chat template turns a conversation into the text that both models get.",
        fix="Set template: FILE with a Jinja template, or template: none if each prompt is one plain text.",
    )


@error(RecipeError, "recipe.template-missing.other")
def template_missing_here(*, choice: str, model: str, other: str) -> Text:
    return Text(
        given="template: {choice}, but {model} has no chat template (base models usually have none).",
        needed="A chat template turns a conversation into the text that both models get.",
        fix="Set template: {other}, or template: FILE with a Jinja template, or template: none if each prompt is one "
        "plain text.",
    )


@error(RecipeError, "recipe.template-file")
def template_file(*, path: str, nearest: str) -> Text:
    return Text(
        given="template: {path} cannot be read{nearest}.",
        needed="template is student, teacher, none, or the path of a Jinja file in UTF-8.",
        fix="Fix the path, or set template: student.",
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
        given="template_options sets {options}, but the {origin} template does not use it.",
        needed="Limbeck rejects settings that have no effect.",
        fix="Remove it, or use the options of this template: {readable}.",
    )


@error(RecipeError, "recipe.template-option-unused.none")
def template_has_no_options(*, options: list[str], origin: str) -> Text:
    return Text(
        given="template_options sets {options}, but the {origin} template does not use it.",
        needed="Limbeck rejects settings that have no effect.",
        fix="Remove template_options. This template has no options.",
    )


@error(Refusal, "data.template-fails")
def template_fails(*, origin: str, reason: str) -> Text:
    return Text(
        given='The {origin} template cannot render a user turn and its answer. It fails with "{reason}".',
        needed="It must render at least these two turns.",
        fix="Set template: FILE with another template, or set the template_options that it needs.",
    )


@error(Refusal, "data.template-fails.user-missing")
def template_omits_user(*, origin: str) -> Text:
    return Text(
        given="The {origin} template leaves out the text of the user turn.",
        needed="A prompt must contain the text of its turns.",
        fix="Set template: FILE with another template, or set the template_options that it needs.",
    )


@error(Refusal, "data.template-no-generation-prompt")
def template_no_generation_prompt(*, origin: str, header: str) -> Text:
    return Text(
        given="The {origin} template ignores add_generation_prompt: prompts would end before {header}.",
        needed="A prompt must end where the answer begins, or the student would have to generate the header first.",
        fix="Save the template to a file, append {{% if add_generation_prompt %}}{{{{ {header} }}}}{{% endif %}}, and "
        "set template: FILE.",
    )


@error(Refusal, "data.template-no-generation-prompt.header-unknown")
def template_no_generation_prompt_header_unknown(*, origin: str) -> Text:
    return Text(
        given="The {origin} template ignores add_generation_prompt: prompts would end before the header of the "
        "assistant turn.",
        needed="A prompt must end where the answer begins, or the student would have to generate the header first.",
        fix="Save the template to a file, append {{% if add_generation_prompt %}}HEADER{{% endif %}} with the header "
        "of an assistant turn, and set template: FILE.",
    )


@error(Refusal, "data.template-token-split")
def template_token_split(*, origin: str, tokens: list[str], student: str) -> Text:
    return Text(
        given="The {origin} template writes {tokens}, for which {student} has no token: it would tokenise them as "
        "several pieces of text.",
        needed="A control token must be a single token, or the student cannot learn where a turn ends.",
        fix="Set template to one whose control tokens the student has, or choose another student.",
    )


@error(Refusal, "data.template-double-bos")
def template_double_bos(*, token: str, rows: str) -> Text:
    return Text(
        given="These prompts begin with two start tokens {token}: {rows}.",
        needed="The models were trained with one. A second one shifts every position and silently lowers quality.",
        fix="Remove one of them from the template or from the text of these rows.",
    )


@fault("data.template-refused")
def turn_refused(*, reason: str, origin: str) -> FaultText:
    return FaultText(
        given='the template fails with "{reason}"',
        expected="turns that the {origin} template can render, or template: FILE with one that renders these",
    )


@note("data.system-injected")
def system_injected(*, rows: str, text: str) -> str:
    return "The template adds a system message to {rows}: {text}."


@note("data.start-token-added")
def start_token_added() -> str:
    return (
        "The template does not write a start token. The tokenizer's own is put before each prompt and saved with the "
        "template."
    )


@note("data.answer-opened")
def answer_opened(*, text: str) -> str:
    return "The template opens each answer with {text}, which counts as part of the prompt."


@note("data.template-dated")
def template_dated() -> str:
    return "The template may write today's date. This run keeps its first date; template_options can set another."


@note("data.turns-changed")
def turns_changed(*, rows: str) -> str:
    return "The template changes the text of turns in {rows}. Both models get the changed text."


@note("data.start-token-missing")
def start_token_missing(*, token: str, rows: str) -> str:
    return "The tokenizer begins a text with {token}, but the template does not: {rows}."


@note("data.control-tokens")
def control_tokens_in_text(*, rows: str) -> str:
    return "The text of {rows} contains control tokens, so a turn may end early there."


@error(ModelError, "model.stop-missing")
def stop_missing() -> Text:
    return Text(
        given="The generation config, the tokenizer and the chat template specify no token that ends an answer.",
        needed="Without one, every answer runs to its token limit, and the student never learns to stop.",
        fix="Set template: FILE with a template that ends each turn with a token of the student's vocabulary.",
    )


@note("data.stop-from-tokenizer")
def stop_from_tokenizer(*, tokens: str) -> str:
    return "The model's configuration specifies no stop token. The tokenizer's is used: {tokens}."


@note("data.turn-ends-with-text")
def turn_ends_with_text(*, text: str, tokens: str) -> str:
    return "The template ends a turn with the text {text}, not with a token. Answers stop at {tokens}."


@note("data.stop-added")
def stop_added(*, own: str, added: str) -> str:
    return (
        "The student's own stop token is {own}, but the template ends a turn with {added}. Answers stop at either, and "
        "the final model is saved with both."
    )


@note("data.stop-from-template")
def stop_from_template(*, tokens: str) -> str:
    return "The model and its tokenizer specify no stop token. The template's end of a turn is used: {tokens}."


@note("data.teacher-ends-differently")
def teacher_ends_differently(*, teacher: str, token: str, student: str) -> str:
    return (
        "{teacher} ends a turn with {token}, but answers of {student} do not stop there and may run on to their token "
        "limit. To avoid this, set template: teacher."
    )


@note("data.student-ends-differently")
def student_ends_differently(*, token: str, teacher: str) -> str:
    return (
        "Answers end with {token}, but {teacher} does not stop there and may consider it unlikely. To avoid this, set "
        "template: teacher."
    )
