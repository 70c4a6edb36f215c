"""The HTTP client: a deadline for each request, no redirects, and API keys for approved endpoints only.

Approved endpoints are listed in the user's file `limbeck/endpoints` in the configuration folder (`$XDG_CONFIG_HOME`, or
`~/.config`): one address per line, then the environment variable that holds its key, if it needs one.

    https://api.example.com EXAMPLE_API_KEY
    http://10.0.0.5:8000

So no recipe from elsewhere can send prompts or a key to an unknown server. https://api.openai.com with OPENAI_API_KEY
is always approved. Addresses of this machine are too, but without a line they get no key.
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

from limbeck import messages

__all__ = ["Endpoint", "HttpClient", "NoReply", "Reply", "approve_endpoint", "plain_address", "retry_after_s"]

MAX_BODY_BYTES = 8 * 2**20
_APPROVED: dict[str, str | None] = {"https://api.openai.com:443": "OPENAI_API_KEY"}
_MIN_SECRET_LENGTH = 12  # a shorter key is a word like EMPTY, which may occur in an answer
_KEPT_HEADERS = ("date", "location", "retry-after", "retry-after-ms", "content-encoding")


@dataclass(frozen=True)
class Endpoint:
    """An approved address without a trailing slash, and its key."""

    url: str
    is_local: bool
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Reply:
    """A complete reply. `body` is unchanged, except that the key, if the server repeats it, is replaced by ***."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class NoReply:
    """A request without a complete reply, and why. `sent`: the server may have received it and charged for it."""

    why: Literal["unreachable", "deadline", "oversize"]
    text: str
    sent: bool = True


def plain_address(url: str) -> str:
    """An address in the form of `Endpoint.url`. Raises UsageError if it is invalid or contains a secret."""
    return str(_parse(url)).rstrip("/")


def approve_endpoint(url: str, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint at `url` with its key from `environ`; nothing is sent.

    Raises UsageError for an invalid address or key, Refusal for an address that the user has not approved.
    """
    parsed = _parse(url)
    folder = environ.get("XDG_CONFIG_HOME")
    path = (Path(folder) if folder else Path("~/.config").expanduser()) / "limbeck" / "endpoints"
    approved = _APPROVED | _read_approved(path)
    is_local = _is_this_machine(parsed.host)
    if _origin(parsed) not in approved and not is_local:
        raise messages.endpoint_not_approved(url=url, origin=_origin(parsed), file=path)
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
    raise messages.invalid_address(url=hidden)


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.host}:{url.port or {'http': 80, 'https': 443}[url.scheme]}"


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_approved(path: Path) -> dict[str, str | None]:
    """Origins and the variable of each one's key, None for no key."""
    approved: dict[str, str | None] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines() if path.exists() else (), start=1):
        words = line.partition("#")[0].split()
        if len(words) > 2 or (len(words) == 2 and not words[1].isidentifier()):
            raise messages.invalid_endpoints_line(file=path, line=number)
        if words:
            approved[_origin(_parse(words[0]))] = words[1] if len(words) == 2 else None
    return approved


def _key(variable: str, url: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "").strip()
    if re.fullmatch(r"[!-~]+", key):
        return key
    raise (messages.key_invalid if key else messages.key_not_set)(variable=variable, url=url)


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
            timeout=None,  # httpx limits each read; `post` limits the whole request
            trust_env=not endpoint.is_local,  # proxies
            limits=httpx2.Limits(max_connections=num_connections),
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: bytes, *, within_s: float) -> Reply | NoReply:
        """One request, which ends after `within_s` at the latest, whatever the server does."""
        try:
            async with (
                asyncio.timeout(within_s),
                self._client.stream("POST", self._endpoint.url + path, content=body) as response,
            ):
                received = bytearray()
                async for piece in response.aiter_raw():  # raw: a compressed body could grow without limit
                    received += piece
                    if len(received) > MAX_BODY_BYTES:
                        return NoReply("oversize", messages.reply_too_long(max_bytes=MAX_BODY_BYTES))
                secret = (self._endpoint.key or "").encode()
                if len(secret) >= _MIN_SECRET_LENGTH or (secret and response.status_code >= 300):
                    received = received.replace(secret, b"***")
                headers = {name: self._hidden(response.headers.get(name, "")) for name in _KEPT_HEADERS}
                return Reply(response.status_code, headers, bytes(received))
        except TimeoutError:
            return NoReply("deadline", messages.no_reply_in_time(within_s=within_s))
        except httpx2.TransportError as error:  # keep only the text: the error object holds the request with its key
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            return NoReply("unreachable", self._hidden(f"{type(error).__name__}: {error}"), sent)

    def _hidden(self, text: str) -> str:
        return text.replace(self._endpoint.key, "***") if self._endpoint.key else text


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that a reply requests: `retry-after-ms`, or `retry-after` in seconds or as a date; None without them.

    A date is compared with the date of the reply, so the server's clock may be wrong.
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
