"""`POST /checkpoint`: a request by HTTP, answered when the checkpoint is committed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from recollect.base.arguments import whole
from recollect.errors import InvalidValue, shown

Request = Callable[[], "Future[Path]"]
LOOPBACK = "127.0.0.1"


class RequestServer:
    """Listens on one address; each request waits in a thread of its own."""

    def __init__(self, address: tuple[str, int], request: Request, timeout: float) -> None:
        class Handler(_Handler):
            asked, patience = staticmethod(request), timeout

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        try:
            self._server = Server(address, Handler)
        except OSError as error:
            raise InvalidValue(
                f"http: cannot listen on {address[0]}:{address[1]} ({error}); choose another port, "
                "or 0 for any"
            ) from error
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), daemon=True, name="recollect-http"
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    asked: Request
    patience: float

    def do_POST(self) -> None:
        if self.path.rstrip("/") != "/checkpoint":
            self._answer(404, {"error": f"there is no {self.path}; POST /checkpoint"})
            return
        if "Origin" in self.headers:  # a page in a browser has no business here
            self._answer(403, {"error": "requests of web pages are refused"})
            return
        try:
            path = self.asked().result(self.patience)
        except TimeoutError as error:
            text = str(error) or f"not committed within {self.patience:g} s"
            self._answer(504, {"error": text})
        except Exception as error:  # whatever went wrong, the one who asked is told
            self._answer(500, {"error": str(error)})
        else:
            self._answer(200, {"path": str(path), "committed": True})

    def do_GET(self) -> None:
        self._answer(405, {"error": "POST /checkpoint asks for a checkpoint"})

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what matters is logged where it happens."""


def address_of(http: Any, rank: int) -> tuple[str, int]:
    """Where a rank listens: a port alone is on loopback, and each rank has the next one."""
    host, port = LOOPBACK, http
    if isinstance(http, tuple | list) and len(http) == 2:
        host, port = http
    if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int):
        raise InvalidValue(
            f"http: expected a port, or (host, port), such as 8700, got {shown(http)}"
        )
    port = whole("http", port, 0, 65_535)
    return host, whole("http", port + rank, 0, 65_535) if port else 0
