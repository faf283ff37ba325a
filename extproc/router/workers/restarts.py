"""When a worker that ended is started again. Pure: times come in."""

from typing import Final

# One that is killed now and then is back at once; one that ends as soon as it begins is not tried for ever.
_FIRST_S: Final = 0.5
_LONGEST_S: Final = 10.0
_LIVED_S: Final = 10.0


class Restarts:
    """Of one worker: how long to wait before each start."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __repr__(self) -> str:
        return f"<Restarts, the next after {self._next_s} s>"

    def wait_s(self, lived_s: float) -> float:
        """Returns the seconds to wait, of one that has lived for `lived_s`."""
        if lived_s >= _LIVED_S:
            self._next_s = 0.0
        wait_s = self._next_s
        self._next_s = min(_LONGEST_S, max(_FIRST_S, 2 * wait_s))
        return wait_s
