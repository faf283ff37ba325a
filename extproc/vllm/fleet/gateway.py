"""Gateways: independent pickers in front of one fleet, each with its own idea of the load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from extproc.routing.endpoint import Endpoint
from extproc.routing.picker import Ask, Picker, Route
from extproc.routing.pool import Pick, Pool, Snapshot
from extproc.routing.strategies.base import Outside
from extproc.routing.strategies.factory import build_strategy
from extproc.vllm.fleet.session import PlannedSession

_PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Routing:
    """How the fleet is routed to; `options` are the strategy's settings.

    `gateways` pickers share the requests evenly and nothing else. They hear of a request's end
    `signal_delay_s` late, and of an endpoint that comes or goes `discovery_delay_s` late.
    """

    strategy: str = "prefix_hash"
    options: Mapping[str, object] = field(default_factory=dict)
    gateways: int = 1
    signal_delay_s: float = 0.0
    discovery_delay_s: float = 0.0

    def build_gateways(self, names: Sequence[str], outside: Outside) -> "Gateways":
        """Raises `SettingsError` for an unknown strategy or option."""
        pools = [
            Pool("fleet", build_strategy(self.strategy, self.options, outside)) for _ in range(self.gateways)
        ]
        gateways = Gateways(pools)
        gateways.replace(names)
        return gateways


class Gateways:
    """Takes requests in turns, each gateway with a pool of its own."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._pickers = [Picker([Route(pool)]) for pool in pools]

    def replace(self, names: Sequence[str]) -> None:
        """Routes to these endpoints; strategies of one kind place them alike, so once is enough."""
        first = self._pools[0]
        snapshot = Snapshot.build(build_endpoints(names), first.strategy, first.snapshot.placement)
        for pool in self._pools:
            pool.install(snapshot)

    def pick(self, number: int, session: PlannedSession) -> Pick:
        """Picks for request `number`; raises `NoEndpoint`."""
        picker = self._pickers[number % len(self._pickers)]
        return picker.pick(Ask("POST", _PATH, {}, _body(session))).pick


def _body(session: PlannedSession) -> bytes:
    """A chat whose first message stands for all that the session's requests have in common."""
    return b'{"messages":[{"role":"user","content":"%d"}]}' % session.key


def build_endpoints(names: Sequence[str]) -> list[Endpoint]:
    """Returns an endpoint per name; its address only has to be unique."""
    return [
        Endpoint(name, f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000")
        for number, name in ((int(name.rpartition("-")[2]), name) for name in names)
    ]
