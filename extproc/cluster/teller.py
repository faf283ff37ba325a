"""Telling a sink what is new, and nothing twice."""

from collections.abc import Sequence

from extproc.cluster.source import Sink
from extproc.routing.endpoint import Endpoint


class Teller:
    """Replaces the sink's list where a source's answer differs from the last one, else confirms it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._told: tuple[Endpoint, ...] | None = None

    @property
    def has_told(self) -> bool:
        return self._told is not None

    @property
    def has_endpoints(self) -> bool:
        """Whether the last list that was told has any."""
        return bool(self._told)

    def tell(self, endpoints: Sequence[Endpoint]) -> None:
        told = tuple(endpoints)
        if told == self._told:
            self._sink.confirm()
        else:
            self._told = told
            self._sink.replace(told)
