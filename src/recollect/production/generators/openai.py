"""`OpenAIGenerator`: groups from a server that speaks the completions protocol (vLLM, SGLang).

Every rollout of a group is a request of its own, streamed. So a pause can break them off at any
token and keep what came, and a later call goes on from there.

aiohttp is the client: a chunk costs it 11 µs with 64 streams and with 512, where httpx's successor
takes 27 and 54, and the standard library has no asynchronous client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from recollect.base.arguments import many
from recollect.errors import GenerationError, InvalidValue, shown
from recollect.production.generators.base import to_generate
from recollect.production.generators.completions import (
    Endpoint,
    Piece,
    Retries,
    Unacceptable,
    Unavailable,
    reported_version,
)
from recollect.production.generators.life_cycle import abort, begin, doubt, fail, grow, together
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout
from recollect.rollouts.values import tokens_of

Sampling = Mapping[str, Any] | Callable[[Group, Rollout], Mapping[str, Any]]

OWN = ("model", "prompt", "stream", "n", "best_of", "echo")  # fields that are not for sampling


@dataclass(frozen=True)
class Request:
    """A request that runs, or waits for a connection or for another try.

    Args:
        task: What it is for.
        group_id: The group.
        rollout_id: The rollout.
        tokens: Tokens that came so far, with this call.
        attempt: How often it failed since the last token, plus one.
        seconds: Since the rollout was begun.
        silent: Seconds since its last token, or since it was begun.
    """

    task: str
    group_id: str
    rollout_id: str
    tokens: int
    attempt: int
    seconds: float
    silent: float


class OpenAIGenerator:
    """Generates with an OpenAI-compatible server, such as vLLM or SGLang.

    Prompts are sent as token ids where a group has them, else as text, and tokens come back as ids:
    with `return_token_ids` (vLLM 0.10.2, SGLang 0.5.18, or later), or through `token_of`. Text is
    never tokenized again. The text of a response is the content of its last turn.

    A request that fails is sent again as `retries` says, and goes on from the tokens that came. A
    rollout is FAILED, with the error, when that was in vain, or when the server refuses its prompt.
    What no prompt could change (a wrong key, a model that isn't there, a server that gives no
    tokens) is raised.

    Args:
        url: Of the server, such as `http://localhost:8000/v1`.
        model: The name that the server knows it by.
        max_tokens: The most tokens of a response, over all its parts.
        sampling: More fields of a request, such as `{"temperature": 1.0, "top_p": 1.0}`, or a
            function of group and rollout that gives them. `max_tokens` there goes before the
            general one, `logprobs=None` goes without logprobs.
        api_key: Sent as a bearer token.
        headers: Sent with each request.
        tokenize: Token ids of `group.prompt`, for groups without `prompt_ids`; needed for messages.
        token_of: The id of a token from its text, for servers that give no ids.
        version_of: The version of the weights that made a chunk, from the chunk, None where it
            doesn't say. Tokens then take the version at which their request was sent.
        connections: Requests that run at the same time; others wait.
        retries: How often, and after what pause, a request is sent again.
        timeout: Seconds for one call of `generate` and each rollout in it, tries and pauses
            included; None: any.
        silence: Seconds without a byte after which a request counts as hanging, and is tried again.
        connect_timeout: Seconds until there is a connection.
        version: The version of the server's weights now.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tokenize: Callable[[Any], Any] | None = None,
        token_of: Callable[[str], int] | None = None,
        version_of: Callable[[Mapping[str, Any]], int | None] = reported_version,
        connections: int = 512,
        retries: Retries | None = None,
        timeout: float | None = None,
        silence: float | None = 600.0,
        connect_timeout: float = 10.0,
        version: int = 0,
    ) -> None:
        for name, number in (("max_tokens", max_tokens), ("connections", connections)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidValue(f"{name}: expected a whole number from 1, got {shown(number)}")
        self._sampling: Sampling = {} if sampling is None else sampling
        if not callable(self._sampling):
            _check_sampling(self._sampling)
            if "seed" in self._sampling:
                raise InvalidValue(
                    "sampling: a seed for all requests would make the responses of a group equal; "
                    "give a function of group and rollout"
                )
        if not isinstance(model, str) or not model:
            raise InvalidValue(
                f"model: expected the name that the server knows it by, got {shown(model)}"
            )
        bearer = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._endpoint = Endpoint(
            url,
            headers={**bearer, **(headers or {})},
            connect_timeout=connect_timeout,
            silence=silence,
            token_of=token_of,
            version_of=version_of,
        )
        self._model = model
        self._max_tokens = max_tokens
        self._tokenize = tokenize
        self._free = asyncio.Semaphore(connections)
        self._retries = Retries(jitter=0.5) if retries is None else retries
        self._timeout = timeout
        self._running: set[_Member] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._paused = False
        self.version = version

    def __repr__(self) -> str:
        running = many(len(self._running), "rollout")
        return f"OpenAIGenerator({self._endpoint.root!r}, {self._model!r}, {running} running)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Break off what runs and close the connections."""
        await self.pause()
        await self._endpoint.close()

    async def post(self, path: str, body: Any = None) -> Any:
        """Call another path of the server, such as `/sleep?level=1`, and return its answer."""
        return await self._endpoint.post(path, body)

    @property
    def requests(self) -> list[Request]:
        """What runs, the longest silent first: a request that hangs is at the head."""
        shown = [member.request() for member in self._running]
        return sorted(shown, key=lambda request: -request.silent)

    async def pause(self) -> None:
        """Break off all requests; returns when their connections are closed.

        Each rollout keeps its tokens, if its call was told to, and is ABORTED. Until `continue_`,
        `generate` returns at once.
        """
        self._paused = True
        for member in self._running:
            member.stop()
        await self._idle.wait()

    async def continue_(self, version: int) -> None:
        """Generate again, with weights of a version."""
        self.version = version
        self._paused = False

    async def set_version(self, version: int) -> None:
        """The server has other weights from now on. Nothing is broken off."""
        self.version = version

    async def generate(self, group: Group, *, keep_partial: bool) -> Group:
        """Generate the rollouts that are not finished, and return the group.

        Args:
            group: Changed in place.
            keep_partial: Go on from what rollouts have, and keep what they have when a pause
                breaks them off; else they start, and end, at their prompt.
        """
        members = [_Member(self, group, rollout, keep_partial) for rollout in to_generate(group)]
        await together([member.run() for member in members])
        return group

    def _fields(self, group: Group, rollout: Rollout) -> dict[str, Any]:
        """What a request asks for, but for prompt and budget."""
        if not callable(self._sampling):
            chosen = self._sampling
        else:
            chosen = self._sampling(group, rollout)
            _check_sampling(chosen)
        body = {"logprobs": 1, "max_tokens": self._max_tokens, **chosen, "model": self._model}
        return {name: value for name, value in body.items() if value is not None}

    def _prompt(self, group: Group, rollout: Rollout) -> list[int] | str:
        """Tokens of the prompt, or its text where they are not known yet."""
        ids = rollout.prompt_ids
        if ids is None or not len(ids):
            ids = group.prompt_ids
        if not len(ids) and self._tokenize is not None and group.prompt is not None:
            ids = tokens_of("tokenize", self._tokenize(group.prompt))
            _set_prompt(group, ids)
        if len(ids):
            return [int(token) for token in ids]
        if isinstance(group.prompt, str) and group.prompt:
            return group.prompt
        raise GenerationError(
            f"group {group.group_id!r} has no prompt_ids, and its prompt is no text: "
            f"{shown(group.prompt)}; give prompt_ids, or tokenize= that makes them of a prompt"
        )


class _Member:
    """One rollout of one call: its requests, until it is finished, broken off or failed."""

    def __init__(
        self, generator: OpenAIGenerator, group: Group, rollout: Rollout, keep_partial: bool
    ) -> None:
        self._generator = generator
        self._group = group
        self._rollout = rollout
        self._keep_partial = keep_partial
        self._failures = 0
        self._ended: str | None = None  # the finish reason that the server gave
        self._unsure = False  # whether tokens may be newer than their version says
        # What came with this call. The rollout gets it at the end, so that a call that is cancelled
        # leaves it as it was.
        self._tokens: list[int] = []
        self._logprobs: list[float] | None = []
        self._versions: list[int] = []
        self._text: list[str] = []

    def request(self) -> Request:
        now = asyncio.get_running_loop().time()
        return Request(
            task=self._group.task,
            group_id=self._group.group_id,
            rollout_id=self._rollout.rollout_id,
            tokens=len(self._tokens),
            attempt=self._failures + 1,
            seconds=now - self._begun,
            silent=now - self._heard,
        )

    def stop(self) -> None:
        """Break it off, wherever it waits."""
        if not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        generator, rollout = self._generator, self._rollout
        if generator._paused:
            begin(rollout, generator.version, self._keep_partial)
            abort(rollout, self._keep_partial)
            return
        self._begun = self._heard = asyncio.get_running_loop().time()
        begin(rollout, generator.version, self._keep_partial)
        # A pause makes this one expire at once. Unlike a cancelled task, that can't be mistaken for
        # a cancellation from outside.
        self._scope = asyncio.timeout(None)
        generator._running.add(self)
        generator._idle.clear()
        finish: str | None
        try:
            try:
                async with self._scope, asyncio.timeout(generator._timeout):
                    finish = await self._finish()
            except TimeoutError:
                finish = self._ended or ("abort" if self._scope.expired() else None)
        except Unacceptable as error:
            self._end("error", str(error))
        else:
            late = f"not finished after {generator._timeout:g} s" if finish is None else None
            self._end(finish or "error", late)
        finally:
            generator._running.discard(self)
            if not generator._running:
                generator._idle.set()

    async def _finish(self) -> str:
        """Send requests until one of them ends, or all tries were in vain; the finish reason."""
        retries = self._generator._retries
        while True:
            try:
                async with self._generator._free:
                    return await self._send()
            except Unavailable as error:
                self._failures += 1
                if self._failures >= retries.attempts:
                    raise Unacceptable(f"{error} (tried {self._failures} times)") from error
                await asyncio.sleep(retries.pause(self._failures, error.after))

    async def _send(self) -> str:
        generator, rollout = self._generator, self._rollout
        version = generator.version  # the newest, now that there is a connection for it
        if self._versions and not self._keep_partial and version != self._versions[-1]:
            self._forget()  # its call was not told to mix versions
        if not rollout.num_tokens and not self._tokens:
            rollout.dispatch_version = version
        body = generator._fields(self._group, rollout)
        done = rollout.num_tokens + len(self._tokens)
        left = int(body.pop("max_tokens")) - done
        if left <= 0:
            return "length"
        prompt = generator._prompt(self._group, rollout)
        if done and isinstance(prompt, str):
            raise Unacceptable("the tokens of the prompt are not known, so it can't go on")
        if not isinstance(prompt, str):
            prompt = [*prompt, *rollout.response_ids.tolist(), *self._tokens]
        if "min_tokens" in body:
            body["min_tokens"] = max(0, int(body["min_tokens"]) - done)
        asked = {**body, "prompt": prompt, "max_tokens": left}
        try:
            async with generator._endpoint.stream(asked) as pieces:
                async for piece in pieces:
                    self._take(piece, version)
        except Unavailable:
            if self._ended is None:
                raise  # else nothing is missing
        if self._ended is None:
            raise Unavailable(f"{generator._endpoint.root}: the stream ended in the middle")
        return self._ended

    def _take(self, piece: Piece, version: int) -> None:
        self._ended = self._ended or piece.finish_reason
        if piece.prompt_ids is not None and not len(self._group.prompt_ids):
            _set_prompt(self._group, tokens_of("prompt_token_ids", piece.prompt_ids))
        if not piece.tokens:
            return
        own = self._rollout.prompt_ids
        if not len(self._group.prompt_ids) and (own is None or not len(own)):
            raise GenerationError(
                f"{self._generator._endpoint.root}: it does not say which tokens the prompt has; "
                "give prompt_ids, or tokenize= that makes them of a prompt"
            )
        self._heard = asyncio.get_running_loop().time()
        self._failures = 0
        self._tokens += piece.tokens
        if piece.version is None and self._generator.version != version:
            self._unsure = True  # made by these weights or by those that came meanwhile
        told = version if piece.version is None else piece.version
        self._versions += [told] * len(piece.tokens)
        if piece.logprobs is None:
            self._logprobs = None
        elif self._logprobs is not None:
            self._logprobs += piece.logprobs
        self._text.append(piece.text)

    def _forget(self) -> None:
        self._tokens, self._logprobs, self._versions, self._text = [], [], [], []
        self._unsure = False

    def _end(self, finish: str, error: str | None = None) -> None:
        rollout = self._rollout
        if self._tokens:
            grow(rollout, self._tokens, self._logprobs, self._versions, "".join(self._text))
            if self._unsure:
                doubt(rollout)
        if finish == "abort":
            abort(rollout, self._keep_partial)
        elif finish == "error":
            fail(rollout, error or "the server says that it failed")
        else:
            rollout.finish_reason = finish


def _set_prompt(group: Group, ids: Any) -> None:
    group.prompt_ids = ids
    for rollout in group:
        if rollout.prompt_ids is None or not len(rollout.prompt_ids):
            rollout.prompt_ids = ids


def _check_sampling(sampling: Any) -> None:
    if not isinstance(sampling, Mapping):
        raise InvalidValue(
            f"sampling: expected a mapping or a function that gives one, got {shown(sampling)}"
        )
    for name in OWN:
        if name in sampling:
            raise InvalidValue(f"sampling: {name!r} is set by the generator; leave it out")
