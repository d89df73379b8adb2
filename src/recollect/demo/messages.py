"""What a training process says to its parent, in lines of JSON, and hears: that it is to end."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any


def tell(kind: str, **facts: Any) -> None:
    """One line; `Life` has a method for each kind."""
    print(json.dumps({"kind": kind, "at": time.time(), **facts}), flush=True)


def stopping() -> asyncio.Event:
    """Set when the parent says so, by a line on standard input.

    A thread waits for it that nobody joins: a process that fails must not wait for its parent.
    """
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.readline()
        loop.call_soon_threadsafe(event.set)

    threading.Thread(target=wait, daemon=True).start()
    return event
