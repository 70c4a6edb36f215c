"""A teacher behind any OpenAI-compatible chat endpoint: it writes answers, asked and paid once; it cannot score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from limbeck.errors import UsageError
from limbeck.http import approve_endpoint, plain_address
from limbeck.models.refs import ModelRef
from limbeck.teachers.calls import Calls, HostedSettings
from limbeck.teachers.ledger import NO_CAPS, ChatRequest, Ledger
from limbeck.teachers.reply import ChatAnswer, ChatFailure, parse_stored_reply

__all__ = ["ChatAnswer", "ChatFailure", "HostedSettings", "HostedTeacher"]

Turns = Sequence[Mapping[str, object]]

# What a server's chat template may add to the messages, in tokens; their text has at most as many as it has bytes.
_MAX_TEMPLATE_TOKENS = 256
_MAX_MESSAGE_TOKENS = 16


class HostedTeacher:
    """A model behind a chat endpoint, with the ledger of a workspace.

    `account` is what the budget is counted on, across restarts: the name of a run, for one. `environ` holds the key.
    A missing key or approval is told by `write`, if it has to ask.
    """

    def __init__(
        self,
        ref: ModelRef,
        settings: HostedSettings,
        *,
        workspace: Path,
        account: str,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        assert ref.kind == "hosted", "the caller tells hosted models from others"
        self.name = ref.text.partition(":")[2].strip()
        address = plain_address(settings.base_url)
        self.ledger = Ledger(workspace, address, settings.alias, account=account, caps=settings.caps())
        self._model = settings.answers_as or self.name
        self._settings = settings
        self._environ = environ

    def generate(
        self,
        asked: Sequence[tuple[Turns, int]],
        *,
        max_tokens: int,
        temperature: float | None = 1.0,
        seed: int | None = 0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Iterator[ChatAnswer | ChatFailure]:
        """An answer to each conversation with the number of a sample, in order.

        What the ledger holds is not asked again, nor are answers that ended under a smaller `max_tokens`. None leaves a
        setting out of the request; each sample has a seed of its own. `tell` hears from time to time how far it is.
        Raises Stopped (resumable), UsageError or Refusal.
        """
        drawn = {"temperature": None if temperature is None else float(temperature), "seed": seed}
        given = drawn | dict(self._settings.parameters)
        fixed = {name: value for name, value in given.items() if value is not None}
        questions = [self._question(messages, fixed, sample, max_tokens) for messages, sample in asked]
        missing = {each.key: each for each in questions if self.ledger.find(each.key, max_tokens) is None}
        with ExitStack() as stack:
            calls = stack.enter_context(self._start(missing.values(), tell)) if missing else None
            for each in questions:
                failure = calls.failure_of(each) if calls is not None and each.key in missing else None
                yield failure or self._answer(each)

    def _start(self, questions: Collection[ChatRequest], tell: Callable[[str], None]) -> Calls:
        endpoint = approve_endpoint(self._settings.base_url, self._environ)
        if not endpoint.is_local and self.ledger.caps == NO_CAPS:
            raise UsageError(
                "teacher.no-budget",
                given=f"No budget is set for {self.name} at {endpoint.url}.",
                needed="Answers from another machine may cost money, and a mistake would be paid for row by row.",
                fix="Set max_cost with both prices, max_total_tokens or max_calls.",
            )
        return Calls(questions, self._model, endpoint, self._settings, self.ledger, tell)

    def _question(self, messages: Turns, fixed: Mapping[str, object], sample: int, limit: int) -> ChatRequest:
        request: dict[str, object] = {"model": self.name, "messages": [dict(message) for message in messages], **fixed}
        if isinstance(seed := fixed.get("seed"), int):
            request["seed"] = seed + sample
        num_bytes = len(json.dumps(request["messages"], ensure_ascii=False).encode("utf-8", "surrogatepass"))
        input_tokens = num_bytes + _MAX_TEMPLATE_TOKENS + _MAX_MESSAGE_TOKENS * len(messages)
        return ChatRequest(request, sample, limit, self._settings.cost(input_tokens, limit))

    def _answer(self, question: ChatRequest) -> ChatAnswer:
        start = self.ledger.find(question.key, question.limit)
        assert start is not None, "a question that did not fail is in the ledger"
        label, body = self.ledger.read(start)
        return parse_stored_reply(body, self._model, label)
