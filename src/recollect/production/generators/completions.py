"""The completions protocol of OpenAI, streamed: a request in, pieces of a response out.

What vLLM and SGLang add is used where it is there: `prompt` as token ids, and `return_token_ids`,
so that no token is guessed from text. Nothing here knows rollouts or weights.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.base.optional import optional
from recollect.errors import GenerationError, InvalidValue, shown

if TYPE_CHECKING:
    import aiohttp

PREFIX = "token_id:"  # how vLLM names a token when it is asked for ids in place of text


class Unavailable(Exception):
    """The request may succeed when it is sent again: no connection, too busy, or cut off."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after  # seconds that the server asked to wait


class Unacceptable(Exception):
    """The server refuses this request, and would refuse it again; others may be fine."""


@dataclass(frozen=True)
class Retries:
    """Wait, twice as long each time, and try again.

    Tries are counted from the last token that came: a request that was cut off after some tokens
    goes on from them and may fail as often again.

    >>> from recollect.production import Retries
    >>> [Retries(first=1.0, most=5.0).pause(failures) for failures in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]

    Args:
        attempts: How often a request is sent in all, before its rollout is FAILED.
        first: Seconds before the second attempt.
        most: The longest pause, in seconds. A server's `Retry-After` is followed up to here.
        jitter: A pause is lengthened by a random share of itself, up to this one, so that requests
            that failed together do not come again together.
    """

    attempts: int = 6
    first: float = 0.5
    most: float = 30.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or self.attempts != int(self.attempts):
            raise InvalidValue(f"attempts: expected a whole number, got {self.attempts!r}")
        if self.attempts < 1:
            raise InvalidValue(f"attempts: expected at least 1, got {self.attempts!r}")
        for name in ("first", "most", "jitter"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidValue(f"{name}: expected 0 or more, got {getattr(self, name)!r}")

    def pause(self, failures: int, asked: float | None = None) -> float:
        """Seconds to wait after so many failures, or as long as the server asked for."""
        pause = min(self.most, self.first * 2.0 ** (failures - 1))
        if asked is not None:
            pause = min(self.most, max(pause, asked))
        return pause * (1 + random.uniform(0, self.jitter)) if self.jitter else pause


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of a response, as they arrive."""

    tokens: list[int]
    logprobs: list[float] | None
    text: str
    finish_reason: str | None
    prompt_ids: list[int] | None
    version: int | None


@dataclass(eq=False)
class Endpoint:
    """One server. `async with endpoint.stream(body) as pieces: async for piece in pieces`.

    Leaving the block before the end closes the connection, and with it the engine drops the
    request: that is how vLLM and SGLang are told to abort one. `OpenAIGenerator` says what its
    arguments are.
    """

    url: str
    headers: Mapping[str, str]
    connect_timeout: float
    silence: float | None
    token_of: Callable[[str], int] | None
    version_of: Callable[[Mapping[str, Any]], int | None]

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise InvalidValue(
                f"url: expected one such as http://localhost:8000/v1, got {shown(self.url)}"
            )
        self.root = self.url.rstrip("/").removesuffix("/v1")
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that the session is in

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """The session, made in the event loop that uses it."""
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is not loop:
            raise GenerationError(
                f"{self.root}: it was used in another event loop; close() it there before"
            )
        if self._session is None:
            self._loop = loop
            http = optional("aiohttp", "openai")
            timeout = http.ClientTimeout(
                total=None, sock_connect=self.connect_timeout, sock_read=self.silence
            )
            # Connections are limited by the generator, which knows who waits for one.
            connector = http.TCPConnector(limit=0)
            self._session = http.ClientSession(
                connector=connector, timeout=timeout, headers=self.headers
            )
        session = self._session
        assert session is not None
        return session

    async def post(self, path: str, body: Any = None) -> Any:
        """Call another path of the server, such as `/sleep`, and return what it answers."""
        http = optional("aiohttp", "openai")
        url = f"{self.root}/{path.lstrip('/')}"
        try:
            async with self._open().post(url, json=body) as response:
                content = await response.read()
                if response.status >= 400:
                    raise GenerationError(f"{url}: status {response.status}, {_reason(content)}")
        except (http.ClientError, OSError, TimeoutError) as error:
            raise GenerationError(f"{url}: {_said(error)}") from error
        try:
            return json.loads(content)
        except ValueError:
            return content.decode(errors="replace")

    @asynccontextmanager
    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Piece]]:
        """Send a request; raises `Unavailable`, `Unacceptable` or `GenerationError`."""
        http = optional("aiohttp", "openai")
        asked = {**body, "stream": True}
        if self.token_of is None:  # servers that know no such fields may refuse them
            asked |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        url = f"{self.root}/v1/completions"
        try:
            async with self._open().post(url, json=asked) as response:
                if response.status != 200:
                    self._refuse(url, response.status, response.headers, await response.read())
                yield self._pieces(url, response, asked)
        except (http.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise Unavailable(f"{url}: {_said(error)}") from error

    def _refuse(self, url: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
        message = f"{url}: status {status}, {_reason(content)}"
        if status in (408, 409, 425, 429) or status >= 500:
            raise Unavailable(message, _seconds(headers.get("Retry-After")))
        if status in (400, 413, 422):
            raise Unacceptable(message)
        raise GenerationError(f"{message}; check url, model and api_key")

    async def _pieces(
        self, url: str, response: aiohttp.ClientResponse, asked: Mapping[str, Any]
    ) -> AsyncIterator[Piece]:
        with_logprobs = asked.get("logprobs") is not None
        async for data in _events(response):
            if data == b"[DONE]":
                # The end of the body follows; a connection that was read to its end is used again.
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await response.read()
                return
            try:
                event = json.loads(data)
            except ValueError:
                raise Unavailable(
                    f"{url}: an event of the stream is no JSON: {shown(data)}"
                ) from None
            if "error" in event:
                raise Unavailable(f"{url}: {_reason(data)}")
            for choice in event.get("choices", ()):
                yield self._piece(url, event, choice, with_logprobs)

    def _piece(
        self, url: str, event: Mapping[str, Any], choice: Mapping[str, Any], with_logprobs: bool
    ) -> Piece:
        told = choice.get("logprobs") or {}
        text = choice.get("text") or ""
        tokens = self._tokens(url, choice.get("token_ids"), told.get("tokens"), text)
        logprobs = None
        if with_logprobs:
            logprobs = told.get("token_logprobs") or []
            if len(logprobs) != len(tokens):
                raise GenerationError(
                    f"{url}: a chunk has {len(logprobs)} logprobs for {len(tokens)} tokens, where "
                    "each token was asked for with its own; sampling={'logprobs': None} goes "
                    "without them"
                )
        finish, prompt = choice.get("finish_reason"), choice.get("prompt_token_ids")
        return Piece(tokens, logprobs, text, finish, prompt, self.version_of(event))

    def _tokens(
        self, url: str, ids: list[int] | None, names: list[str] | None, text: str
    ) -> list[int]:
        """The ids of a chunk's tokens, in the best form that the server gives."""
        if ids is not None:
            return ids
        if self.token_of is not None:
            if names is None and text:
                raise GenerationError(
                    f"{url}: a chunk has text and no list of its tokens, so that token_of has "
                    "nothing to map; ask for logprobs"
                )
            return [self.token_of(name) for name in names or ()]
        if names is not None and all(name.startswith(PREFIX) for name in names):
            return [int(name.removeprefix(PREFIX)) for name in names]
        if not text and not names:
            return []
        raise GenerationError(
            f"{url}: it gives text and no token ids, and text does not say which tokens were "
            "sampled; use a server that knows `return_token_ids` (vLLM 0.10.2, SGLang 0.5.18, or "
            "later), or give token_of=, which maps the text of a token to its id"
        )


def reported_version(event: Mapping[str, Any]) -> int | None:
    """The version of the weights that a chunk names, if it does and if it is a number.

    Looked for as `weight_version`, in the chunk, in its `metadata` or in SGLang's `sglext`.

    >>> from recollect.production.generators.completions import reported_version
    >>> reported_version({"choices": [], "metadata": {"weight_version": "12"}})
    12
    """
    for place in (event, event.get("metadata"), event.get("sglext")):
        if isinstance(place, Mapping) and "weight_version" in place:
            told = str(place["weight_version"])
            return int(told) if told.isdecimal() else None
    return None


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of server-sent events: one line each, however the bytes are cut.

    Lines may be long, because the first one can hold the tokens of the whole prompt.
    """
    rest = b""
    async for data in response.content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _reason(content: bytes) -> str:
    """What an error's body says."""
    try:
        told = json.loads(content)
        error = told.get("error", told)
        message = error.get("message", error) if isinstance(error, Mapping) else error
    except (ValueError, AttributeError):
        message = content.decode(errors="replace")
    return " ".join(str(message).split())[:500] or "no reason given"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _seconds(header: str | None) -> float | None:
    """`Retry-After` in seconds; the form with a date is left to the usual pause."""
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None
