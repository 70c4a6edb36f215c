"""Every message of the teachers."""

from __future__ import annotations

from limbeck.errors import Stopped, Text, UsageError, error, note

_CONTINUE = "Then run the same command again: answers that are stored are not requested again."

# ---------------------------------------------------------------------------------------- a hosted API refuses


@error(Stopped, "teacher.unauthorized")
def unauthorized(*, where: str, reply: str) -> Text:
    return Text(
        given="{where} rejects the API key: {reply}.",
        needed="Generation at a hosted API needs a valid key.",
        fix=f"Set the right key in the environment. {_CONTINUE}",
    )


@error(Stopped, "teacher.forbidden")
def forbidden(*, where: str, reply: str) -> Text:
    return Text(
        given="{where} denies access: {reply}.",
        needed="The key must be allowed to use this model.",
        fix=f"Ask the owner of the account for access, or choose another model. {_CONTINUE}",
    )


@error(Stopped, "teacher.unknown-model")
def unknown_model(*, where: str, reply: str) -> Text:
    return Text(
        given="{where} is not found: {reply}.",
        needed="The address must be that of the API, and the API must have a model of this name.",
        fix=f"Check the model name after openai: and the setting base_url, which usually ends in /v1. {_CONTINUE}",
    )


@error(Stopped, "teacher.quota")
def quota_used_up(*, where: str, reply: str) -> Text:
    return Text(
        given="The account for {where} has no quota left: {reply}.",
        needed="The API only answers accounts with quota.",
        fix=f"Add credit or raise the limit of the account. {_CONTINUE}",
    )


@error(Stopped, "teacher.redirected")
def redirected(*, where: str, reply: str) -> Text:
    return Text(
        given="{where} redirects to another address: {reply}.",
        needed="Redirects are not followed, so that prompts and keys reach approved endpoints only.",
        fix=f"If you trust the new address, approve it and use it as base_url. {_CONTINUE}",
    )


@error(Stopped, "teacher.unsupported")
def unsupported(*, where: str, reply: str) -> Text:
    return Text(
        given="{where} does not support chat completion requests: {reply}.",
        needed="The API must be compatible with OpenAI's chat completions.",
        fix=f"Check base_url and teacher_options. {_CONTINUE}",
    )


@error(Stopped, "teacher.rate-limited")
def rate_limited(*, where: str, reply: str, wait_s: float, deadline_s: float) -> Text:
    return Text(
        given="{where} limits the rate and requires a wait of {wait_s:.0f} s: {reply}.",
        needed="A request may take {deadline_s:.0f} s in all, waits included.",
        fix=f"Wait that long. {_CONTINUE}",
    )


@error(Stopped, "teacher.server-error")
def server_unavailable(*, where: str, reply: str, wait_s: float, deadline_s: float) -> Text:
    return Text(
        given="{where} is unavailable and requires a wait of {wait_s:.0f} s: {reply}.",
        needed="A request may take {deadline_s:.0f} s in all, waits included.",
        fix=f"Wait that long. {_CONTINUE}",
    )


@error(Stopped, "teacher.nothing-usable")
def nothing_usable(*, num: int, where: str) -> Text:
    return Text(
        given="{num:request|requests} in a row got no usable answer from {where}.",
        needed="That indicates a problem with the API or the settings, and further requests would only cost money.",
        fix=f"Check the labels and reasons of the last answers. {_CONTINUE}",
    )


# ---------------------------------------------------------------------------------------- budget


@error(UsageError, "teacher.no-budget")
def no_budget(*, model: str, url: str) -> Text:
    return Text(
        given="No budget is set for {model} at {url}.",
        needed="Requests to another machine may cost money, so a limit is required.",
        fix="Set max_cost and both prices, or max_total_tokens, or max_calls.",
    )


@error(Stopped, "teacher.budget")
def budget_used_up(*, account: str, calls: int, tokens: int, cost: float, where: str) -> Text:
    return Text(
        given="{account} has spent {calls:call|calls}, {tokens:token|tokens} and a cost of {cost:.6g}; its budget does "
        "not allow another call to {where}.",
        needed="A call is made only if its highest possible cost, from the prompt and the longest answer, fits the "
        "budget.",
        fix=f"Raise the limit. {_CONTINUE}",
    )


@note("teacher.spent")
def spent(*, calls: int, tokens: int) -> str:
    return "The teacher has cost the run {calls:call|calls} and {tokens:token|tokens} so far."


@note("teacher.spent-money")
def spent_money(*, calls: int, tokens: int, cost: float) -> str:
    return "The teacher has cost the run {calls:call|calls} and {tokens:token|tokens} so far, at a price of {cost:.6g}."


# ---------------------------------------------------------------------------------------- progress


@note("teacher.requests-finished")
def requests_finished(*, num: int, total: int, in_flight: int, longest_s: float) -> str:
    return "{num} of {total:request|requests} finished, {in_flight} in flight, the longest for {longest_s:.1f} s"


@note("teacher.generating")
def generating(*, progress: str) -> str:
    return "generating the teacher's answers: {progress}"


# ---------------------------------------------------------------------------------------- replies


@note("teacher.reply-compressed")
def reply_compressed() -> str:
    return "the body is compressed although the request did not accept that"


@note("teacher.reply-unreadable")
def reply_unreadable(*, why: str, reply: str) -> str:
    return "{why}: {reply}"


@note("teacher.reply-status")
def reply_status(*, status: int, reply: str) -> str:
    return "status {status}: {reply}"


@note("teacher.reply-redirect")
def reply_redirect(*, status: int, location: str) -> str:
    return "status {status}, redirect to {location}"


@note("teacher.reply-error")
def reply_is_error() -> str:
    return "status 200 with an error in the body"


@note("teacher.reply-choices")
def reply_without_choices() -> str:
    return "the reply has no choices"


@note("teacher.reply-message")
def reply_without_message() -> str:
    return "the reply has no message with content"


@note("teacher.reply-duplicate-key")
def reply_duplicate_key() -> str:
    return "an object contains the same key twice"


@note("teacher.reply-not-json")
def reply_not_json(*, why: str) -> str:
    return "the body is not valid JSON ({why})"


@note("teacher.reply-not-object")
def reply_not_object() -> str:
    return "the body is not a JSON object"


@note("teacher.attempt-failed")
def attempt_failed(*, kind: str, reply: str) -> str:
    return "{kind}: {reply}"


# ---------------------------------------------------------------------------------------- number format


@note("teacher.scores-in-bfloat16")
def scores_in_bfloat16(*, model: str, rounding_nats: float, student_nats: float) -> str:
    return (
        "The teacher scores in bfloat16: rounding changes {model} by {rounding_nats:.2g} nats per token, and the "
        "student is {student_nats:.2g} nats away from it."
    )


@note("teacher.scores-in-float32")
def scores_in_float32(*, model: str, rounding_nats: float, student_nats: float) -> str:
    return (
        "The teacher scores in float32: rounding to bfloat16 would change {model} by {rounding_nats:.2g} nats per "
        "token, and the student is only {student_nats:.2g} nats away from it."
    )
