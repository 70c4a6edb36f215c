"""A teacher at an OpenAI-compatible hosted API: it generates answers, each paid for once; it cannot score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from limbeck.http import approve_endpoint, plain_address
from limbeck.models.refs import ModelRef
from limbeck.teachers import messages
from limbeck.teachers.calls import Calls, HostedSettings
from limbeck.teachers.ledger import NO_CAPS, Ledger, LedgerRequest
from limbeck.teachers.reply import ChatFailure, ParsedReply, parse_stored_reply

__all__ = ["ChatFailure", "HostedSettings", "HostedTeacher", "ParsedReply"]

Turns = Sequence[Mapping[str, object]]

# Tokens that a server's chat template may add. The text of the messages has at most as many tokens as bytes.
_MAX_TEMPLATE_TOKENS = 256
_MAX_MESSAGE_TOKENS = 16


class HostedTeacher:
    """A model of a hosted API, with the ledger of a workspace.

    `account` is what the budget belongs to, across restarts, such as the name of a run. `environ` has the API key. A
    missing key or approval is an error of `generate`, if it has to send a request.
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
        assert ref.kind == "hosted", "only for hosted models"
        self.name = ref.text.partition(":")[2].strip()
        address = plain_address(settings.base_url)
        self.ledger = Ledger(workspace, address, settings.alias, account=account, caps=settings.caps())
        self._model = settings.answers_as or self.name
        self._settings = settings
        self._environ = environ

    def generate(
        self,
        samples: Sequence[tuple[Turns, int]],
        *,
        max_tokens: int,
        temperature: float | None = 1.0,
        seed: int | None = 0,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> Iterator[ParsedReply | ChatFailure]:
        """One answer per pair of a conversation and the index of a sample, in order.

        Answers in the ledger are not requested again, nor are those that fit a smaller `max_tokens`. A setting of
        None is left out of the request; each sample has a seed of its own. `on_progress` is called with a text every
        few seconds. Raises Stopped (resumable), UsageError or Refusal.
        """
        drawn = {"temperature": None if temperature is None else float(temperature), "seed": seed}
        given = drawn | dict(self._settings.parameters)
        fixed = {name: value for name, value in given.items() if value is not None}
        requests = [self._request(turns, fixed, sample, max_tokens) for turns, sample in samples]
        missing = {each.key: each for each in requests if self.ledger.find(each.key, max_tokens) is None}
        with ExitStack() as stack:
            calls = stack.enter_context(self._start(missing.values(), on_progress)) if missing else None
            for each in requests:
                failure = calls.failure_of(each) if calls is not None and each.key in missing else None
                yield failure or self._answer(each)

    def _start(self, requests: Collection[LedgerRequest], on_progress: Callable[[str], None]) -> Calls:
        endpoint = approve_endpoint(self._settings.base_url, self._environ)
        if not endpoint.is_local and self.ledger.caps == NO_CAPS:
            raise messages.no_budget(model=self.name, url=endpoint.url)
        return Calls(requests, self._model, endpoint, self._settings, self.ledger, on_progress)

    def _request(self, turns: Turns, fixed: Mapping[str, object], sample: int, limit: int) -> LedgerRequest:
        body: dict[str, object] = {"model": self.name, "messages": [dict(turn) for turn in turns], **fixed}
        if isinstance(seed := fixed.get("seed"), int):
            body["seed"] = seed + sample
        num_bytes = len(json.dumps(body["messages"], ensure_ascii=False).encode("utf-8", "surrogatepass"))
        input_tokens = num_bytes + _MAX_TEMPLATE_TOKENS + _MAX_MESSAGE_TOKENS * len(turns)
        return LedgerRequest(body, sample, limit, self._settings.cost(input_tokens, limit))

    def _answer(self, request: LedgerRequest) -> ParsedReply:
        start = self.ledger.find(request.key, request.limit)
        assert start is not None, "a request that did not fail is in the ledger"
        label, body = self.ledger.read(start)
        return parse_stored_reply(body, self._model, label)
