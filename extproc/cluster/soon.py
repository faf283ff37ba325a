"""One call for a burst of reasons."""

import asyncio
from collections.abc import Callable


class Soon:
    """Makes `call` on the running loop `delay_s` after the first request since the last call."""

    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self._delay_s = delay_s
        self._call = call
        self._timer: asyncio.TimerHandle | None = None

    def request(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._fire)

    def cancel(self) -> None:
        """Drops a request that has not become a call yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._call()
