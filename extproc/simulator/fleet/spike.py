"""A spike: for a while a client starts more sessions than before and after."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from extproc.errors import SettingsError

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_SPIKE: Final = re.compile(rf"{_NUMBER}:{_NUMBER}:{_NUMBER}")
SYNTAX: Final = "AFTER_S:BURST_S:TIMES"


@dataclass(frozen=True, slots=True)
class Spike:
    """From `after_s` on, for `burst_s` seconds, `times` as many sessions start as else."""

    after_s: float
    burst_s: float
    times: float

    @property
    def end_s(self) -> float:
        return self.after_s + self.burst_s

    def load_until(self, at_s: float) -> float:
        """Seconds of the usual load that have the sessions of the first `at_s` seconds with the spike."""
        return at_s + (self.times - 1) * min(max(0.0, at_s - self.after_s), self.burst_s)

    def time_of(self, load_s: float) -> float:
        """When a session starts that would start at `load_s` without the spike."""
        burst = min(max(0.0, load_s - self.after_s), self.burst_s * self.times)
        return load_s - burst + burst / self.times

    def squeeze(self, gaps: Iterable[float]) -> Iterator[float]:
        """Takes the times between sessions of an even load and yields those with the spike."""
        load_s = at_s = 0.0
        for gap in gaps:
            load_s += gap
            start_s = self.time_of(load_s)
            yield start_s - at_s
            at_s = start_s


def parse_spike(text: str) -> Spike:
    """Reads what `SYNTAX` says; raises `SettingsError`."""
    found = _SPIKE.fullmatch(text)
    if not found:
        raise SettingsError(f"{text!r} is no spike: write {SYNTAX}")
    spike = Spike(*map(float, found.groups()))
    if not spike.burst_s or spike.times <= 1:
        raise SettingsError(f"{text!r}: a spike takes a time, and more than 1 times the load")
    return spike
