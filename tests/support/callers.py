"""Calls that wait: made in threads of their own, so that a test can see whether they do."""

import threading
import time

SOON = 5.0  # seconds in which what must happen has happened, on any machine
MOMENT = 0.1  # seconds in which what must not happen would have happened


class Caller:
    """A call in a thread of its own, and what became of it."""

    def __init__(self, call):
        self.result = self.error = None
        self._thread = threading.Thread(target=self._run, args=[call], daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            self.result = call()
        except BaseException as error:
            self.error = error

    def done(self, within=SOON):
        self._thread.join(within)
        assert not self._thread.is_alive(), "still waiting"
        if self.error is not None:
            raise self.error
        return self.result

    def waits(self):
        self._thread.join(MOMENT)
        return self._thread.is_alive()


def until(condition, within=SOON):
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)
