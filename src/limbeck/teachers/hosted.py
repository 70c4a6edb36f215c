"""A teacher behind any OpenAI-compatible chat endpoint: it writes answers, asked and paid once; it cannot score."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from limbeck.errors import UsageError
from limbeck.http import approve_endpoint, plain_address
from limbeck.models.refs import ModelRef
from limbeck.teachers.calls import Calls, HostedSettings
from limbeck.teachers.ledger import Caps, Cost, Ledger, Question
from limbeck.teachers.reply import Answer, Failure, read_answer

__all__ = ["Answer", "Failure", "HostedSettings", "HostedTeacher"]

Message = Mapping[str, object]

# What a server's chat template may add to the messages, in tokens; their text has at most as many as it has bytes.
_MAX_TEMPLATE_TOKENS = 256
_MAX_MESSAGE_TOKENS = 16


class HostedTeacher:
    """A model behind a chat endpoint, with the ledger of a workspace.

    `account` is what the budget is counted on, across restarts: the name of a run, for one. `environ` holds the key.
    Raises UsageError for settings that cannot be meant; a missing key or approval is told by `write`, if it has to ask.
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
        self.ledger = Ledger(workspace, plain_address(settings.base_url), settings.alias)
        self._model = settings.answers_as or self.name
        self._settings = settings
        self._account = account
        self._environ = environ
        self._calls: Calls | None = None
        if settings.max_cost is not None and None in (settings.input_price, settings.output_price):
            raise UsageError(
                "teacher.price",
                given=f"max_cost is {settings.max_cost:g}, and a price of {self.name} is not given.",
                needed="The most that a call can cost is reserved before it is sent, which takes both prices.",
                fix="Give input_price and output_price per million tokens, or max_total_tokens instead of max_cost.",
            )

    def write(
        self,
        prompts: Sequence[Sequence[Message]],
        *,
        max_tokens: int,
        samples: int = 1,
        temperature: float | None = 1.0,
        seed: int | None = 0,
    ) -> Iterator[tuple[int, int, Answer | Failure]]:
        """Answers to each prompt, `samples` of each, in order: (index of the prompt, number of the sample, answer).

        What the ledger holds is not asked again, nor are answers that ended under a smaller `max_tokens`. An answer of
        the same text to the same messages as one before is labelled `duplicate`. None leaves a setting out of the
        request; each sample has a seed of its own. Raises Stopped (resumable), UsageError or Refusal.
        """
        drawn = {"temperature": None if temperature is None else float(temperature), "seed": seed}
        fixed = {name: value for name, value in drawn.items() if value is not None} | dict(self._settings.parameters)
        rows: list[tuple[int, int, Question]] = []
        for index, messages in enumerate(prompts):
            rows += [(index, sample, self._question(messages, fixed, sample, max_tokens)) for sample in range(samples)]
        missing = {asked.key: asked for _, _, asked in rows if self.ledger.find(asked.key, max_tokens) is None}
        with ExitStack() as stack:
            calls = stack.enter_context(self._start(missing.values())) if missing else None
            self._calls = calls
            seen: set[tuple[str, str]] = set()
            for index, sample, asked in rows:
                failure = calls.failure_of(asked) if calls is not None and asked.key in missing else None
                yield index, sample, failure or self._answer(asked, seen)

    def in_flight_s(self) -> list[float]:
        """How long each request that is in flight now has been so."""
        return self._calls.in_flight_s() if self._calls is not None else []

    def spent(self) -> Cost:
        """What the account has spent so far."""
        return self.ledger.spent(self._account)

    def _start(self, questions: Iterable[Question]) -> Calls:
        endpoint = approve_endpoint(self._settings.base_url, self._environ)
        if not endpoint.is_local and self._settings.caps() == Caps():
            raise UsageError(
                "teacher.no-budget",
                given=f"No budget is set for {self.name} at {endpoint.url}.",
                needed="Answers from another machine may cost money, and a mistake would be paid for row by row.",
                fix="Set max_cost with both prices, max_total_tokens or max_calls.",
            )
        return Calls(questions, self._model, endpoint, self._settings, self.ledger, self._account)

    def _question(self, messages: Sequence[Message], fixed: Mapping[str, object], sample: int, limit: int) -> Question:
        request: dict[str, object] = {"model": self.name, "messages": [dict(message) for message in messages], **fixed}
        if isinstance(seed := fixed.get("seed"), int):
            request["seed"] = seed + sample
        num_bytes = len(json.dumps(request["messages"], ensure_ascii=False).encode("utf-8", "surrogatepass"))
        input_tokens = num_bytes + _MAX_TEMPLATE_TOKENS + _MAX_MESSAGE_TOKENS * len(messages)
        return Question(request, sample, limit, self._settings.cost(input_tokens, limit))

    def _answer(self, question: Question, seen: set[tuple[str, str]]) -> Answer:
        start = self.ledger.find(question.key, question.limit)
        assert start is not None, "a question that did not fail is in the ledger"
        label, body = self.ledger.read(start)
        answer = read_answer(body, self._model, label=label, raw=f"{self.ledger.path}, byte {start}")
        text = (json.dumps(question.request["messages"]), answer.text)
        if answer.label == "ok" and text in seen:
            return replace(answer, label="duplicate")
        seen |= {text} if answer.label == "ok" else set()
        return answer
