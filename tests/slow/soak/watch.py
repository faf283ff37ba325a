"""How much memory and how many descriptors each process has, and when the machine starved it."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.slow.soak.books import Outage
from tests.stack.process import Process

# Between two looks. An Envoy passes a service whose health it has not seen for two seconds.
STARVED_S: Final = 1.0
# So long it does so, once it does.
PASSED_BY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    memory_mb: float
    descriptors: int
    waited_s: float = 0.0
    """How long it was ready to run and had no core, since its start."""


@dataclass(slots=True)
class Life:
    """One process from its start to its end."""

    name: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def memory(self) -> list[tuple[float, float]]:
        return [(sample.at_s, sample.memory_mb) for sample in self.samples]

    def starved(self) -> Iterator[Outage]:
        """Yields when it could not run for want of a core: that is the machine's doing, as good as a stop."""
        for before, after in pairwise(self.samples):
            if after.waited_s - before.waited_s >= STARVED_S:
                yield Outage(self.name, before.at_s, after.at_s + PASSED_BY_S)


class Watch:
    """Notes all processes' figures at each call."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, int], Life] = {}

    def look(self, processes: Mapping[str, Process]) -> None:
        for name, process in processes.items():
            if not process.is_running:
                continue
            if (sample := measure_parts(pid := process.pid)) is not None:
                self._lives.setdefault((name, pid), Life(name, pid)).samples.append(sample)

    def lives(self) -> list[Life]:
        """In the order of their beginnings."""
        return [*self._lives.values()]

    def latest(self) -> dict[str, Sample]:
        return {life.name: life.samples[-1] for life in self._lives.values()}


def measure_parts(pid: int) -> Sample | None:
    """Measures one process; `None` if it has just ended."""
    try:
        memory_mb = _resident_mb(pid)
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        _, waited_s = core_s(pid)
    except OSError:
        return None
    return Sample(time.time(), memory_mb, descriptors, waited_s)


def core_s(pid: int) -> tuple[float, float]:
    """How long a process has had a core since its start, and how long it has waited for one."""
    ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    _, _, rest = status.partition("VmRSS:")
    return int(rest.split()[0]) / 1_024 if rest else 0.0
