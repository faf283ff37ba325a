"""What the service tells of its work while it works. Called once a request: an observer returns at once."""

from typing import Protocol

from extproc.router.routing.picker import Decision
from extproc.router.stream.events import Answer, Routed


class Observer(Protocol):
    """Hears what became of streams and requests. Names of pools are configured ones, or empty."""

    def opened(self) -> None:
        """A stream is open."""

    def closed(self) -> None:
        """It is over, however it ended."""

    def routed(self, decision: Decision, elapsed_s: float) -> None:
        """A request has its endpoint; `elapsed_s` after the message that decided it."""

    def traced(self, reply: Routed | Answer, elapsed_s: float, trace_id: str) -> None:
        """What was told just now, of a routed or an answered request, is a span of this trace."""

    def answered(self, pool: str, outcome: str) -> None:
        """A request was answered by us: refused, or told the models."""

    def served_elsewhere(self, pool: str) -> None:
        """Another endpoint than the pick answered."""

    def failed(self, why: str) -> None:
        """A stream ended with a fault: `protocol` is the proxy's, `internal` and `unready` are ours."""
