"""One client for HTTP: a deadline for each whole exchange, no redirects, and keys that go to approved endpoints alone.

Who may be asked stands in the user's own file, `limbeck/endpoints` in the folder of settings (`$XDG_CONFIG_HOME`, else
`~/.config`): an address a line, then the environment variable that holds the key for it, if it takes one.

    https://api.example.com EXAMPLE_API_KEY
    http://10.0.0.5:8000

So no recipe of somebody else can send prompts or a key anywhere. https://api.openai.com with OPENAI_API_KEY needs no
line; nor does an address of this machine, which gets no key without one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, Self

import httpx2

from limbeck.errors import Refusal, UsageError

__all__ = ["Endpoint", "HttpClient", "NoReply", "Reply", "approve_endpoint", "plain_address", "retry_after_s"]

MAX_BODY_BYTES = 8 * 2**20
_APPROVED: dict[str, str | None] = {"https://api.openai.com:443": "OPENAI_API_KEY"}
_MIN_SECRET_LENGTH = 12  # a shorter key is a word like EMPTY that a good answer may hold
_KEPT_HEADERS = ("date", "location", "retry-after", "retry-after-ms", "content-encoding")


@dataclass(frozen=True)
class Endpoint:
    """An approved address without a slash at its end, and the key for it."""

    url: str
    is_local: bool
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Reply:
    """A whole reply. `body` is as it came; the key, where a server repeats it, is replaced by ***."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class NoReply:
    """No whole reply, and why. `sent`: the server may have read the request, and charged for it."""

    why: Literal["unreachable", "deadline", "oversize"]
    text: str
    sent: bool = True


def plain_address(url: str) -> str:
    """An address in the form that `Endpoint` has. Raises UsageError for one that is none, or that holds a secret."""
    return str(_parse(url)).rstrip("/")


def approve_endpoint(url: str, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint at `url` with its key from `environ`; nothing is sent.

    Raises UsageError for an address or a key that is none, Refusal for an address that the user has not approved.
    """
    parsed = _parse(url)
    folder = environ.get("XDG_CONFIG_HOME")
    path = (Path(folder) if folder else Path("~/.config").expanduser()) / "limbeck" / "endpoints"
    approved = _APPROVED | _read_approved(path)
    is_local = _is_this_machine(parsed.host)
    if _origin(parsed) not in approved and not is_local:
        raise Refusal(
            "http.not-approved",
            given=f"The endpoint {url} is not among those that you approved.",
            needed="Prompts and keys go only where the user of this machine allows it, whatever a recipe says.",
            fix=f"If you trust it, add a line to {path}: {_origin(parsed)}, and the name of the variable of its key.",
        )
    variable = approved.get(_origin(parsed))
    return Endpoint(plain_address(url), is_local, None if variable is None else _key(variable, url, environ))


def _parse(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
        is_plain = parsed.scheme in ("http", "https") and parsed.host != "" and parsed.port != 0
        if is_plain and (parsed.port or 0) < 2**16 and not (parsed.userinfo or parsed.query or parsed.fragment):
            return parsed
    except httpx2.InvalidURL:
        pass
    hidden = re.sub(r"//.*@", "//***@", re.split("[?#]", url)[0], flags=re.DOTALL)
    raise UsageError(
        "http.address",
        given=f"{hidden} is given as the address of an endpoint.",
        needed="It is http or https, a host and a path; a user, password or query would be saved with the run.",
        fix="Write for example https://api.example.com/v1, and put the key into the environment.",
    )


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.host}:{url.port or {'http': 80, 'https': 443}[url.scheme]}"


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_approved(path: Path) -> dict[str, str | None]:
    """From origin to the variable of its key, None for no key."""
    approved: dict[str, str | None] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines() if path.exists() else (), start=1):
        words = line.partition("#")[0].split()
        if len(words) > 2 or (len(words) == 2 and not words[1].isidentifier()):
            raise UsageError(
                "http.endpoints-file",
                given=f"Line {number} of {path} is no address with the name of a variable.",
                needed="A line is an address and, after a space, the name of the variable that holds its key.",
                fix="Write for example https://api.example.com EXAMPLE_API_KEY. The key itself does not belong there.",
            )
        if words:
            approved[_origin(_parse(words[0]))] = words[1] if len(words) == 2 else None
    return approved


def _key(variable: str, url: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "").strip()
    if re.fullmatch(r"[!-~]+", key):
        return key
    raise UsageError(
        "http.key",
        given=f"The environment variable {variable} {'holds spaces or odd characters' if key else 'is not set'}.",
        needed=f"It holds the key for {url}; keys are read from the environment and written nowhere.",
        fix=f"Set it in the shell that starts Limbeck: export {variable}=...",
    )


class HttpClient:
    """Posts to one endpoint, inside `async with`."""

    def __init__(self, endpoint: Endpoint, *, num_connections: int) -> None:
        headers = {"accept": "application/json", "accept-encoding": "identity", "content-type": "application/json"}
        if endpoint.key is not None:
            headers["authorization"] = f"Bearer {endpoint.key}"
        self._endpoint = endpoint
        self._client = httpx2.AsyncClient(
            headers={**headers, "user-agent": "limbeck"},
            follow_redirects=False,
            timeout=None,  # a limit for each read is no deadline: `post` holds one for the whole exchange
            trust_env=not endpoint.is_local,  # proxies
            limits=httpx2.Limits(max_connections=num_connections),
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: bytes, *, within_s: float) -> Reply | NoReply:
        """One exchange, which ends after `within_s` at the latest, whatever the server does."""
        try:
            async with (
                asyncio.timeout(within_s),
                self._client.stream("POST", self._endpoint.url + path, content=body) as response,
            ):
                received = bytearray()
                async for piece in response.aiter_raw():  # raw: a compressed body could grow without limit
                    received += piece
                    if len(received) > MAX_BODY_BYTES:
                        return NoReply("oversize", f"the reply is longer than {MAX_BODY_BYTES} bytes")
                secret = (self._endpoint.key or "").encode()
                if len(secret) >= _MIN_SECRET_LENGTH or (secret and response.status_code >= 300):
                    received = received.replace(secret, b"***")
                headers = {name: self._hidden(response.headers.get(name, "")) for name in _KEPT_HEADERS}
                return Reply(response.status_code, headers, bytes(received))
        except TimeoutError:
            return NoReply("deadline", f"no whole reply within {within_s:.3g} s")
        except httpx2.TransportError as error:  # its text alone: the error itself holds the request with the key
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            return NoReply("unreachable", self._hidden(f"{type(error).__name__}: {error}"), sent)

    def _hidden(self, text: str) -> str:
        return text.replace(self._endpoint.key, "***") if self._endpoint.key else text


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a reply asks to wait: `retry-after-ms`, or `retry-after` as seconds or as a date; None if it does not.

    A date is read against the server's own, so its clock may be wrong.
    """
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text, re.ASCII):
            return float(text) * unit_s
    wanted, now = _date(headers.get("retry-after", "")), _date(headers.get("date", "")) or datetime.now(UTC)
    return None if wanted is None else float(max(math.ceil((wanted - now).total_seconds()), 0))


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
