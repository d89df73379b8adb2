"""A server that speaks the completions protocol of OpenAI, as vLLM and SGLang extend it.

Its model is a pure function: the next token, its logprob and whether it is the last follow from the
tokens before it, the seed of the request and the version of the weights. So a test can say of every
token of a response, however often it was aborted and continued, which weights must have made it.

Nothing in it waits for time unless told to. `hold_after` lets every request send so many tokens and
then wait; `held(n)` waits until n requests do. Faults are chosen by a function of the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from recollect import Rollout

VOCABULARY = 1000
END = 0  # the token after which a response stops


@dataclass(frozen=True)
class Model:
    """What weights of each version answer. `mean_length` sets how soon a response stops."""

    mean_length: int = 20
    min_length: int = 0

    def next(self, prefix: Sequence[int], seed: int, version: int) -> tuple[int, float]:
        """The token after a prefix, and its logprob."""
        text = f"{seed}/{version}/{','.join(map(str, prefix))}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        logprob = -(number % 997 + 1) / 128  # exact as float32
        if number % self.mean_length == 0:
            return END, logprob
        return 1 + (number // 7) % (VOCABULARY - 1), logprob

    def respond(self, prompt: Sequence[int], seed: int, version: int, most: int) -> list[int]:
        """A whole response."""
        tokens: list[int] = []
        while len(tokens) < most and (not tokens or tokens[-1] != END):
            tokens.append(self.next([*prompt, *tokens], seed, version)[0])
        return tokens

    def check(self, rollout: Rollout, seed: int) -> None:
        """Assert that each token and logprob is what the weights of its version give there."""
        assert rollout.prompt_ids is not None
        assert rollout.logprobs is not None
        assert rollout.versions is not None
        assert len(rollout.versions) == len(rollout.logprobs) == len(rollout.response_ids)
        prefix = rollout.prompt_ids.tolist()
        for token, logprob, version in zip(
            rollout.response_ids.tolist(),
            rollout.logprobs.tolist(),
            rollout.versions.tolist(),
            strict=True,
        ):
            assert (token, logprob) == self.next(prefix, seed, version)
            prefix.append(token)


@dataclass(frozen=True)
class Fault:
    """How a request goes wrong, after it has sent `after` tokens.

    `refuse` answers with `status`; `hang` sends nothing more, and nothing at all where `after` is
    None; `drop` closes the connection; `error` sends an error event in the stream; `nonsense` a
    line that is no JSON; `abort` ends with the finish reason `abort`, as an engine does whose
    requests somebody else aborted.
    """

    kind: str
    after: int | None = None
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Received:
    """A request that came, and what became of it."""

    body: dict[str, Any]
    headers: dict[str, str]
    sent: int = 0
    ended: str | None = None  # "finished", "gone" (the client left) or the kind of a fault


class OpenAIServer:
    """`async with OpenAIServer() as server:` serves `server.url` from the running event loop.

    Args:
        model: What answers.
        form: `vllm` gives token ids when asked; `strings` names tokens `token_id:5`; `plain` gives
            the text of tokens and nothing else.
        reports_versions: Whether each chunk says which weights made it.
        chunk: Tokens in a chunk.
        api_key: What a request must present, if anything.
        prompt_limit: Longer prompts are refused with status 400.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        form: str = "vllm",
        reports_versions: bool = False,
        chunk: int = 1,
        api_key: str | None = None,
        prompt_limit: int | None = None,
    ) -> None:
        self.model = model or Model()
        self.form = form
        self.reports_versions = reports_versions
        self.chunk = chunk
        self.api_key = api_key
        self.prompt_limit = prompt_limit
        self.version = 0
        self.delay = 0.0  # seconds before each token
        self.linger = False  # whether a stream stays open after its last token
        self.connections = 0  # that were made
        self.most_running = 0
        self.hold_after: int | None = None
        self.fault: Callable[[int, dict[str, Any]], Fault | None] = lambda number, body: None
        self.received: list[Received] = []
        self.posted: list[tuple[str, Any]] = []  # other paths than completions
        self._held: set[int] = set()
        self._changed = asyncio.Condition()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> OpenAIServer:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return sum(request.ended is None for request in self.received)

    @property
    def tokens_sent(self) -> int:
        return sum(request.sent for request in self.received)

    async def held(self, count: int) -> None:
        """Wait until so many requests wait for `release`."""
        await self._until(lambda: len(self._held) >= count)

    async def begun(self, count: int) -> None:
        """Wait until so many requests have come, in all."""
        await self._until(lambda: len(self.received) >= count)

    async def idle(self) -> None:
        """Wait until every request has ended, or its client has left."""
        await self._until(lambda: self.running == 0)

    async def release(self, hold_after: int | None = None) -> None:
        """Let those that are held go on, to the next hold where there is one."""
        self.hold_after = hold_after
        await self._tell()

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(holds)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        except asyncio.CancelledError:
            if self._server.is_serving():
                raise
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The first byte of the next request is read while this one is answered: that is how a
        # client that leaves is noticed at once.
        ahead = asyncio.create_task(reader.read(1))
        try:
            while first := await ahead:
                head = (first + await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split()
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                ahead = asyncio.create_task(reader.read(1))
                answer = asyncio.create_task(self._answer(method, path, headers, body, writer))
                try:
                    await asyncio.wait({ahead, answer}, return_when=asyncio.FIRST_COMPLETED)
                    if not answer.done():
                        answer.cancel()  # what came ahead can only be the end
                    keep = await answer
                except asyncio.CancelledError:
                    answer.cancel()
                    await asyncio.gather(answer, return_exceptions=True)
                    raise
                if not keep:
                    return
        finally:
            ahead.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await ahead

    async def _answer(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer one request; False where the connection ends with it."""
        content = json.loads(body) if body else None
        if path != "/v1/completions":
            self.posted.append((path, content))
            return await _plain(writer, 200, {"ok": True})
        number = len(self.received)
        request = Received(content, headers)
        self.received.append(request)
        self.most_running = max(self.most_running, self.running)
        await self._tell()
        try:
            return await self._complete(number, request, writer)
        except (asyncio.CancelledError, ConnectionError):
            request.ended = request.ended or "gone"
            return False
        finally:
            self._held.discard(number)
            request.ended = request.ended or "finished"
            await self._tell()

    async def _complete(self, number: int, request: Received, writer: asyncio.StreamWriter) -> bool:
        body = request.body
        if self.api_key is not None and request.headers.get("authorization") != (
            f"Bearer {self.api_key}"
        ):
            request.ended = "refused"
            return await _plain(writer, 401, _error("invalid api key"))
        prompt = body["prompt"]
        ids = tokens_of(prompt) if isinstance(prompt, str) else list(prompt)
        if self.prompt_limit is not None and len(ids) > self.prompt_limit:
            request.ended = "refused"
            return await _plain(writer, 400, _error(f"maximum context is {self.prompt_limit}"))
        fault = self.fault(number, body)
        if fault is not None and fault.kind == "refuse":
            request.ended = "refused"
            return await _plain(writer, fault.status, _error("on purpose"), fault.headers)
        if fault is not None and fault.kind == "hang" and fault.after is None:
            request.ended = None
            await asyncio.Event().wait()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        async for event in self._events(number, request, ids, fault):
            if event is None:  # drop: neither the last event nor the end of the body
                request.ended = "drop"
                writer.transport.abort()
                return False
            data = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _events(
        self, number: int, request: Received, ids: list[int], fault: Fault | None
    ) -> AsyncIterator[str | None]:
        body = request.body
        seed, most = int(body.get("seed", 0)), int(body.get("max_tokens", 16))
        made: list[int] = []
        first = True
        while True:
            chunk: list[tuple[int, float]] = []
            finish: str | None = None
            while len(chunk) < self.chunk and finish is None:
                if fault is not None and len(made) == fault.after:
                    break
                await self._pass(number, len(made))
                token, logprob = self.model.next([*ids, *made], seed, self.version)
                made.append(token)
                chunk.append((token, logprob))
                finish = "stop" if token == END else "length" if len(made) >= most else None
            broken = fault is not None and len(made) == fault.after and finish is None
            if broken and fault is not None and fault.kind == "abort":
                finish = "abort"
            if chunk or finish:
                request.sent = len(made)
                yield json.dumps(self._chunk(body, chunk, finish, ids if first else None))
                first = False
            if finish is not None:
                if self.linger:
                    await self._until_released()
                yield "[DONE]"
                return
            if broken and fault is not None:
                request.ended = fault.kind if fault.kind != "hang" else None
                if fault.kind == "hang":
                    await asyncio.Event().wait()
                elif fault.kind == "drop":
                    yield None
                elif fault.kind == "error":
                    yield json.dumps(_error("the engine is in trouble"))
                elif fault.kind == "nonsense":
                    yield "{not json"
                return

    async def _pass(self, number: int, made: int) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.hold_after is not None and made >= self.hold_after:
            async with self._changed:
                self._held.add(number)
                self._changed.notify_all()
                await self._changed.wait_for(
                    lambda: self.hold_after is None or made < self.hold_after
                )
                self._held.discard(number)

    async def _until_released(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self.linger)

    def _chunk(
        self,
        body: dict[str, Any],
        chunk: list[tuple[int, float]],
        finish: str | None,
        prompt: list[int] | None,
    ) -> dict[str, Any]:
        tokens = [token for token, _ in chunk]
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(map(text_of, tokens)),
            "logprobs": None,
            "finish_reason": finish,
        }
        if body.get("logprobs") is not None and chunk:
            named = self.form == "strings" and body.get("return_tokens_as_token_ids")
            choice["logprobs"] = {
                "tokens": [f"token_id:{t}" if named else text_of(t) for t in tokens],
                "token_logprobs": [logprob for _, logprob in chunk],
            }
        if self.form == "vllm" and body.get("return_token_ids"):
            choice["token_ids"] = tokens
            choice["prompt_token_ids"] = prompt
        event = {"id": "cmpl", "object": "text_completion", "model": body["model"]}
        if self.reports_versions:
            event["metadata"] = {"weight_version": str(self.version)}  # type: ignore[assignment]
        return {**event, "choices": [choice]}


async def _plain(
    writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None
) -> bool:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
    lines += [f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    await writer.drain()
    return True


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "code": None}}


def text_of(token: int) -> str:
    """A token as text: a word each, and nothing for the end."""
    return "" if token == END else f" w{token}"


def tokens_of(text: str) -> list[int]:
    return [int(word.removeprefix("w")) for word in text.split()]


def response_text(rollout: Rollout) -> str:
    """The text of a response, as its last turn has it."""
    last = rollout.turns[-1] if rollout.turns else None
    return str(last["content"]) if last and last.get("role") == "assistant" else ""
