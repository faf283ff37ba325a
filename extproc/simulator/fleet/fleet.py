"""The fleet: a client, gateways and endpoints on one virtual clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Final

from extproc.errors import NoEndpoint, Overloaded, SettingsError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pick
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import ClockAndRandom, RequestResult
from extproc.simulator.engine.profiles import Profile
from extproc.simulator.fleet.autoscaler import Autoscaler, Scaling
from extproc.simulator.fleet.bus import Bus
from extproc.simulator.fleet.changes import FleetChange, Kind, check_changes, steps_of
from extproc.simulator.fleet.flight import Flight, Leg
from extproc.simulator.fleet.gateway import EndpointNames, Routing
from extproc.simulator.fleet.node import Gaps, Node
from extproc.simulator.fleet.session import PlannedSession, write_body
from extproc.simulator.fleet.timeline import VirtualTimeline
from extproc.simulator.fleet.traffic import SessionClient, Traffic
from extproc.simulator.peers.signals import CallSignals, Signals, SignalScraper


@dataclass(frozen=True, slots=True)
class Setup:
    """One run: how many `endpoints`, how they are routed to, what is sent to them, what happens to them.

    `profiles` are given out in turns, so that one is enough where all endpoints are alike. What
    comes before `warmup_s` is not measured. With `scaling`, `endpoints` are those at the start. A
    request is good if its first token came within `slo_ttft_s` of when it was due. Another number
    of `ties` draws anew what strategies leave to chance: which of equal endpoints takes a request.
    """

    profiles: Sequence[Profile]
    endpoints: int
    routing: Routing
    traffic: Traffic
    changes: Sequence[FleetChange] = ()
    seed: int = 0
    ties: int = 0
    warmup_s: float = 0.0
    scaling: Scaling | None = None
    slo_ttft_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Headcount:
    """From `at_s` on so many endpoints were `ready`; `held` has those too that started or drained."""

    at_s: float
    ready: int
    held: int


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What a run left behind: every request, every endpoint that ever was, the gaps between tokens."""

    setup: Setup
    flights: Sequence[Flight]
    nodes: Sequence[Node]
    gaps: Gaps
    headcounts: Sequence[Headcount]


Watch = Callable[[float], None]
"""Hears which share of a run is done, every fiftieth."""

_FIFTIETHS: Final = 50


def simulate_fleet(
    setup: Setup, sessions: Sequence[PlannedSession], watch: Watch | None = None
) -> FleetRun:
    """Runs the sessions. Deterministic: the same setup and sessions give the same run.

    Raises `SettingsError` for a strategy, an option, a change or an autoscaler that cannot be.
    """
    return _Fleet(setup, sessions, watch).run()


class _Fleet:
    def __init__(
        self, setup: Setup, sessions: Sequence[PlannedSession], watch: Watch | None
    ) -> None:
        check_changes(setup.changes, setup.endpoints)
        _check_scaling(setup)
        _check_split(setup)
        self._setup = setup
        self._timeline = VirtualTimeline()
        self._watch, self._turns = watch, sum(len(session.turns) for session in sessions)
        self._every = max(1, self._turns // _FIFTIETHS)
        self._flights: list[Flight] = []
        self._picks: dict[int, Pick] = {}
        self._gaps = Gaps()
        self._longest = max(
            turn.prompt_tokens + turn.output_tokens for s in sessions for turn in s.turns
        )
        # The client's draws do not depend on the strategy's: all strategies see the same arrivals.
        self._client = SessionClient(
            sessions, setup.traffic, self._timeline, self._draw("arrivals"), self._send
        )
        self._names = EndpointNames(self._draw("names"))
        self._keep_s: float | None = None
        self._past: list[Node] = []
        self._nodes = {
            self._names[place].name: self._build_node(place) for place in range(setup.endpoints)
        }
        split = setup.routing.split
        answering = setup.endpoints - (split.prefill if split else 0)
        self._ready = [self._names[place] for place in range(answering)]
        gateways = setup.routing.gateways
        ties = f".{setup.ties}" if setup.ties else ""
        outsides = [
            ClockAndRandom(self._draw(f"ties {place}{ties}"), self._now)
            for place in range(gateways)
        ]
        self._spread, self._gateway_count = self._draw("spread"), gateways
        scrapes = [partial(self._scrape, place) for place in range(gateways)]
        self._gateways = setup.routing.build_gateways(
            self._ready, outsides, scrapes, self._read_signals
        )
        self._strangers = Routing("round_robin").build_gateways(
            self._ready, outsides[:1], scrapes[:1], self._read_signals
        )
        if split:
            helpers = [self._names[place] for place in range(answering, setup.endpoints)]
            strategy = setup.routing.build_helper(outsides[0], scrapes[0])
            self._gateways.add_stage(helpers, strategy, split)
        self._foreign = 0.0
        self._numbers = count(setup.endpoints)
        self._starting: list[int] = []
        self._draining: dict[str, Node] = {}
        self._headcounts: list[Headcount] = []
        self._count_heads()
        sharing = setup.routing.sharing
        self._bus = sharing and Bus(
            sharing, self._gateways.pools, self._timeline, self._draw("bus"), self._gateways.restart
        )

    def run(self) -> FleetRun:
        if self._setup.warmup_s:
            self._timeline.at(self._setup.warmup_s, self._gaps.clear)
        if self._setup.traffic.until_s < inf:
            self._timeline.at(self._setup.traffic.until_s, self._gaps.close)
        if self._watch and self._setup.traffic.until_s < inf:
            for count in range(1, _FIFTIETHS):
                self._timeline.at(
                    self._setup.traffic.until_s * count / _FIFTIETHS,
                    self._watch,
                    count / _FIFTIETHS,
                )
        for change in steps_of(self._setup.changes):
            self._timeline.at(change.at_s, self._change, change)
        if self._setup.scaling:
            self._autoscale(self._setup.scaling)
        self._client.start()
        self._timeline.run()
        nodes = [*self._past, *self._nodes.values()]
        return FleetRun(self._setup, self._flights, nodes, self._gaps, self._headcounts)

    def _draw(self, use: str) -> Random:
        return Random(f"{use} {self._setup.seed}")  # noqa: S311  # no secret

    def _now(self) -> float:
        return self._timeline.now

    def _scrape(self, gateway: int, every_s: float) -> Signals:
        if not every_s:
            return CallSignals(lambda name: self._nodes[name].signal_for(self._flights[-1]))
        self._keep_signals(every_s)
        rng, nodes = self._draw(f"scrapes {gateway}"), self._nodes
        return SignalScraper(
            every_s, rng, self._now, lambda name, at_s: nodes[name].signal_at(at_s)
        )

    def _read_signals(self, name: str) -> EndpointSignals:
        return self._nodes[name].read_signals()

    def _keep_signals(self, seconds: float) -> None:
        self._keep_s = max(self._keep_s or 0.0, seconds)
        for node in self._nodes.values():
            node.keep_signals(self._keep_s)

    def _build_node(self, number: int) -> Node:
        profiles = self._setup.profiles
        profile = profiles[number % len(profiles)]
        # Operators with such prompts set vLLM's limit so.
        try:
            profile = replace(profile, max_model_len=max(profile.max_model_len, self._longest))
        except ValueError as fault:
            raise SettingsError(f"a request has {self._longest} tokens: {fault}") from None
        read = self._client.read if self._setup.traffic.ceiling else None
        node = Node(
            self._names[number].name,
            profile,
            self._timeline,
            self._ended,
            gaps=self._gaps,
            read=read,
        )
        if self._keep_s is not None:
            node.keep_signals(self._keep_s)
        return node

    def _send(self, flight: Flight) -> None:
        self._flights.append(flight)
        if (
            self._watch
            and self._setup.traffic.until_s == inf
            and not len(self._flights) % self._every
        ):
            self._watch(len(self._flights) / self._turns)
        if self._gateway_count > 1:
            flight.gateway = self._spread.randrange(self._gateway_count)
        is_foreign = flight.session.owner % 10 < 10 * self._foreign
        try:
            if is_foreign:
                pick = self._strangers.pick(0)
            else:
                body = write_body(flight.plan) if self._gateways.needs_body else None
                pick = self._gateways.pick(flight.gateway, flight.plan.path, body)
        except (NoEndpoint, Overloaded):
            flight.is_failed = True
            self._timeline.at(self._timeline.now, self._client.ended, flight)
            return
        self._post(flight)
        flight.endpoint, flight.reason = pick.endpoint.name, str(pick.reason)
        self._picks[flight.number] = pick
        if pick.prefill is None:
            self._nodes[flight.endpoint].add(flight)
        else:
            flight.leg = Leg.PREFILL
            self._nodes[pick.prefill.endpoint.name].add(flight)

    def _move(self, flight: Flight) -> None:
        """A sidecar's second step: a prompt's keys and values go to who answers."""
        split, node = self._setup.routing.split, self._nodes[flight.endpoint]
        flight.leg, flight.first_at, flight.ended_at = Leg.DECODE, -1.0, -1.0
        way_s = split.transfer.way_ms(node.missing_tokens(flight)) / 1000 if split else 0.0
        self._timeline.at(self._timeline.now + way_s, self._load, flight)

    def _load(self, flight: Flight) -> None:
        prefill = self._picks[flight.number].prefill
        assert prefill is not None  # noqa: S101  # it computed the prompt
        prefill.release()
        self._nodes[flight.endpoint].add(flight)

    def _ended(self, flight: Flight) -> None:
        if flight.leg is Leg.PREFILL:
            self._move(flight)
            return
        pick = self._picks.pop(flight.number)
        if self._draining:
            self._let_go(flight.endpoint)
        pick.release()
        self._post(flight)
        if flight.is_answered:
            pick.learn(RequestResult(200))
        if flight.ended_at > self._timeline.now:
            self._timeline.at(flight.ended_at, self._client.ended, flight)
        else:
            self._client.ended(flight)

    def _post(self, flight: Flight) -> None:
        if self._bus:
            self._bus.post(flight.gateway)

    def _change(self, change: FleetChange) -> None:
        endpoint = self._names[change.endpoint]
        match change.kind:
            case Kind.SLOW:
                self._nodes[endpoint.name].slow_down(change.amount)
            case Kind.FLUSH:
                self._nodes[endpoint.name].forget()
            case Kind.FOREIGN:
                self._foreign = change.amount
            case Kind.JOIN:
                self._join(change.endpoint)
            case _:
                self._leave(endpoint)
        if change.kind is Kind.CRASH:
            self._nodes[endpoint.name].crash()

    def _join(self, number: int) -> None:
        """An endpoint comes, or comes back, with an empty cache."""
        endpoint = self._names[number]
        # The old endpoint of this name finishes its requests.
        if endpoint.name in self._nodes:
            self._past.append(self._nodes[endpoint.name])
        self._nodes[endpoint.name] = self._build_node(number)
        self._update_gateways(
            [other for other in self._ready if other is not endpoint] + [endpoint]
        )

    def _leave(self, endpoint: Endpoint) -> None:
        """An endpoint gets no new requests once the gateways have the new list."""
        self._draining[endpoint.name] = self._nodes[endpoint.name]
        self._update_gateways([other for other in self._ready if other is not endpoint])
        self._let_go(endpoint.name)

    def _update_gateways(self, ready: list[Endpoint]) -> None:
        self._ready = ready
        self._gateways.replace(tuple(ready))
        self._strangers.replace(tuple(ready))
        self._count_heads()

    def _let_go(self, name: str) -> None:
        """What has drained is gone."""
        if name in self._draining and not self._draining[name].in_flight:
            del self._draining[name]
            self._count_heads()

    def _count_heads(self) -> None:
        ready = len(self._ready)
        total = ready + len(self._starting) + len(self._draining)
        self._headcounts.append(Headcount(self._timeline.now, ready, total))

    def _autoscale(self, scaling: Scaling) -> None:
        """Looks every so often from now on, and acts on what it saw a little later."""
        self._keep_signals(0.0)
        autoscaler = Autoscaler(scaling, self._setup.endpoints, self._timeline.now)
        self._timeline.at(scaling.every_s, self._look, scaling, autoscaler)

    def _look(self, scaling: Scaling, autoscaler: Autoscaler) -> None:
        now = self._timeline.now
        said = {
            each.name: self._nodes[each.name].read_metric(scaling.metric) for each in self._ready
        }
        self._timeline.at(now + scaling.lag_s, self._scale, scaling, autoscaler, said)
        self._timeline.at(now + scaling.every_s, self._look, scaling, autoscaler)

    def _scale(self, scaling: Scaling, autoscaler: Autoscaler, said: Mapping[str, float]) -> None:
        values = [said[endpoint.name] for endpoint in self._ready if endpoint.name in said]
        current = len(self._ready) + len(self._starting)
        wanted = autoscaler.decide(values, current, self._timeline.now)
        for _ in range(wanted - current):
            self._order(scaling.start_s)
        for _ in range(current - wanted):
            self._dismiss()

    def _order(self, start_s: float) -> None:
        number = next(self._numbers)
        self._starting.append(number)
        self._count_heads()
        self._timeline.at(self._timeline.now + start_s, self._open, number)

    def _open(self, number: int) -> None:
        if number in self._starting:
            self._starting.remove(number)
            self._join(number)

    def _dismiss(self) -> None:
        """As a ReplicaSet does: first what is not ready, then what became ready last."""
        if self._starting:
            self._starting.pop()
            self._count_heads()
        else:
            self._leave(self._ready[-1])


def _check_scaling(setup: Setup) -> None:
    scaling = setup.scaling
    if scaling is None:
        return
    if not scaling.min <= setup.endpoints <= scaling.max:
        raise SettingsError(
            f"{setup.endpoints} endpoints at the start are not within {scaling.min} to {scaling.max}"
        )
    if setup.traffic.until_s == inf:
        raise SettingsError(
            "an autoscaler needs a measured time: a number of requests has no end to wait for"
        )
    if moved := [change for change in setup.changes if change.kind not in {Kind.SLOW, Kind.FLUSH}]:
        raise SettingsError(
            f"{moved[0].kind}: where an autoscaler decides who is there, nobody else does"
        )


def _check_split(setup: Setup) -> None:
    split = setup.routing.split
    if split is None:
        return
    if not 0 < split.prefill < setup.endpoints:
        raise SettingsError(f"of {setup.endpoints} endpoints {split.prefill} cannot only prefill")
    if setup.changes or setup.scaling or setup.routing.gateways > 1:
        raise SettingsError("with prefill endpoints there are no changes, and one gateway")
