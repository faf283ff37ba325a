"""The fleet: a client, gateways and endpoints on one virtual clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from extproc.errors import NoEndpoint
from extproc.routing.pool import Pick
from extproc.routing.strategies.base import Outside
from extproc.vllm.fleet.change import Change, Kind
from extproc.vllm.fleet.client import Client, Traffic
from extproc.vllm.fleet.flight import Flight
from extproc.vllm.fleet.gateway import Routing
from extproc.vllm.fleet.node import Node
from extproc.vllm.fleet.session import PlannedSession
from extproc.vllm.fleet.timeline import Timeline
from extproc.vllm.profiles import Profile


@dataclass(frozen=True, slots=True)
class Setup:
    """One run: `endpoints` alike, how they are routed to, how they are asked, what happens to them."""

    profile: Profile
    endpoints: int
    routing: Routing
    traffic: Traffic
    changes: Sequence[Change] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left behind: every request, and every endpoint that ever was."""

    setup: Setup
    flights: Sequence[Flight]
    nodes: Sequence[Node]


def simulate(setup: Setup, sessions: Sequence[PlannedSession]) -> Run:
    """Runs every session to its end. Deterministic: the same setup and sessions give the same run."""
    fleet = _Fleet(setup, sessions)
    return fleet.run()


class _Fleet:
    def __init__(self, setup: Setup, sessions: Sequence[PlannedSession]) -> None:
        # The client's draws do not depend on the strategy's: all strategies see the same arrivals.
        arrivals, ties = (Random(f"{use} {setup.seed}") for use in ("arrivals", "ties"))  # noqa: S311  # no secret
        self._setup = setup
        self._timeline = Timeline()
        self._flights: list[Flight] = []
        self._picks: dict[int, Pick] = {}
        self._client = Client(sessions, setup.traffic, self._timeline, arrivals, self._send)
        self._nodes = {name: self._build_node(name) for name in map(_name, range(setup.endpoints))}
        self._ready = list(self._nodes)
        outside = Outside(ties, lambda: self._timeline.now)
        self._gateways = setup.routing.build_gateways(self._ready, outside)

    def run(self) -> Run:
        for change in self._setup.changes:
            self._timeline.at(change.at_s, partial(self._change, change))
        self._client.start()
        self._timeline.run()
        return Run(self._setup, self._flights, [*self._nodes.values()])

    def _build_node(self, name: str) -> Node:
        read = self._client.read if self._setup.traffic.ceiling else None
        return Node(name, self._setup.profile, self._timeline, self._ended, read)

    def _send(self, flight: Flight) -> None:
        self._flights.append(flight)
        try:
            pick = self._connect(self._gateways.pick(flight.number, flight.session))
        except NoEndpoint:
            flight.is_failed = True
            self._timeline.at(self._timeline.now, partial(self._client.ended, flight))
            return
        flight.endpoint, flight.reason = pick.endpoint.name, str(pick.reason)
        self._picks[flight.number] = pick
        self._nodes[flight.endpoint].add(flight)

    def _connect(self, pick: Pick) -> Pick:
        """Tries the pick, then its fallbacks, as Envoy does where a connection is refused."""
        for endpoint in (pick.endpoint, *pick.fallbacks):
            if self._nodes[endpoint.name].is_up:
                return pick.pool.move(pick, endpoint.address)
        pick.release()
        raise NoEndpoint("every endpoint that was tried is down")

    def _ended(self, flight: Flight) -> None:
        pick = self._picks.pop(flight.number)
        delay_s = self._setup.routing.signal_delay_s
        if delay_s:
            self._timeline.at(self._timeline.now + delay_s, pick.release)
        else:
            pick.release()
        if flight.ended_at > self._timeline.now:
            self._timeline.at(flight.ended_at, partial(self._client.ended, flight))
        else:
            self._client.ended(flight)

    def _change(self, change: Change) -> None:
        name = _name(change.endpoint)
        node = self._nodes.get(name) or self._nodes.setdefault(name, self._build_node(name))
        if change.kind is Kind.SLOW:
            node.slow_down(change.factor)
            return
        if change.kind is Kind.JOIN:
            node.start()
        self._ready = [other for other in self._ready if other != name]
        if change.kind is Kind.JOIN:
            self._ready.append(name)
        heard_at = self._timeline.now + self._setup.routing.discovery_delay_s
        self._timeline.at(heard_at, partial(self._gateways.replace, tuple(self._ready)))
        if change.kind is Kind.CRASH:
            node.crash()


def _name(number: int) -> str:
    return f"endpoint-{number}"
