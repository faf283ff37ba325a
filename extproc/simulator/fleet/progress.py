"""How far a simulation is: on a terminal one line that changes, elsewhere a line now and then."""

from collections.abc import Callable
from typing import Final, TextIO

# Without a terminal, so much of the work at least between two lines.
_STEP: Final = 0.05


class ProgressLine:
    """Shows which share of `total` is done, and how long the rest takes at this pace."""

    def __init__(self, total: float, out: TextIO, clock: Callable[[], float]) -> None:
        self._total = total
        self._out, self._clock = out, clock
        self._is_live = out.isatty()
        self._begun_at = clock()
        self._shown = -1.0
        self._width = 0

    def show(self, done: float, what: str = "") -> None:
        """`done` of the total is done; `what` was last."""
        share = min(1.0, done / self._total) if self._total else 1.0
        if not self._is_live and share < 1 and share - self._shown < _STEP:
            return
        self._shown = share
        text = f"{share:4.0%}  {self._left(share)}  {what}".rstrip()
        if self._is_live:
            # What was longer before must not show behind this.
            self._out.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self._out.write(f"{text}\n")
        self._out.flush()

    def close(self) -> None:
        """Leaves a terminal's line."""
        if self._is_live and self._width:
            self._out.write("\n")
            self._out.flush()

    def _left(self, share: float) -> str:
        if not share:
            return "? left"
        minutes, seconds = divmod(round((self._clock() - self._begun_at) * (1 - share) / share), 60)
        return f"{minutes}:{seconds:02} left"
