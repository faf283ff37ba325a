"""Admission: who is let into a full pool, by priority and by client. Pure: counts in, yes or a refusal out.

Why. A pool with `max_in_flight` answers 429 when it is full, to whoever comes next: a nightly batch
that fills it shuts out the people who wait for an answer, and one busy client shuts out all others.

The rules, and whose they are:

- **Full.** A pool is full when its endpoints have `max_in_flight` requests each on average. Until
  then nobody is refused or even looked at, so nothing of this costs anything. What runs is never
  broken off: "first" can only mean who is let in when there is no room by right.
- **Headroom.** Those who go first are let into a full pool, up to a quarter more than its limit (at
  least one request), and nobody beyond that. Ours: with a limit that nobody may pass, room for some
  would have to be denied to the others while it is not needed.
- **Objectives.** A request names an objective, the operator gives each one a priority
  (`spec.priority` of an InferenceObjective, Gateway API Inference Extension; or the settings). A
  client's word goes no further: a name that the operator did not give is priority 0, as is no name.
  Upstream's rule.
- **Negative** priorities are refused by a full pool, whoever fills it: upstream calls them
  sheddable.
- **Lower** ones do not count. A request of priority 0 or more is let into the headroom as long as
  those of its own priority and above would not fill the pool alone. So what is refused to a
  priority is refused to all below it, at any moment, and as the lower ones end, the higher take
  their places.
- **Shares.** A fairness id separates clients, among requests of one priority (upstream's rule,
  too). The room that higher priorities leave is divided by the clients that have a request in
  flight, with the one that asks; in a full pool a client is let into the headroom up to its share.
  Who has more waits until the pool is not full, so places that become free go to the others first.
  All without an id are one client.
- **Trust.** An id is a client's word: who makes up a new one for each request has a share for each.
  So shares are for operators whose gateway writes the id, and off unless they say so. More clients
  than places have no shares at all, so made-up ids fill the headroom at most.
- **Memory.** A client is remembered while it has requests in flight, of which a full pool has no
  more than its ceiling; as a number, however long the id. An id is never a label, never logged.
  Priorities are as many as the operator's objectives have. Requests that name neither are not
  counted here: they are the load book's rest.

Where a request may go to some of the endpoints only (a subset, an adapter), full and headroom are
those endpoints', and so are the counts of priorities; shares are the whole pool's.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from re import compile as compile_pattern
from typing import Final, TypeVar

from msgspec import Struct

from extproc.errors import Overloaded, OverShare, Sheddable

# Upstream's names, the newer one first (llm-d calls the other deprecated).
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")

TTL: Final = "x-llm-d-inference-ttl"

_NO_CLIENT: Final = 0
# The parts of Go's durations, as `1500ms` or `1m30s`.
_PART: Final = compile_pattern(r"([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_Key = TypeVar("_Key")


class RequestClass(Struct, frozen=True):
    """What a request counts as: its priority, and its client as a number, 0 for who names none."""

    priority: int = 0
    client: int = _NO_CLIENT


ORDINARY: Final = RequestClass()


class PoolLoad(Struct, frozen=True):
    """A full pool, as one request finds it.

    `each` is how many requests an endpoint may have. `names` are the endpoints that may take this
    one, `total` is what they have in flight; `pool_size` and `pool_total` are those of the whole
    pool.
    """

    pool: str
    each: int
    names: Collection[str]
    total: int
    pool_size: int
    pool_total: int

    @property
    def limit(self) -> int:
        return self.each * len(self.names)

    @property
    def ceiling(self) -> int:
        """What the endpoints may have with those who go first."""
        return _with_headroom(self.limit)


@dataclass(slots=True)
class _Level:
    by_endpoint: dict[str, int] = field(default_factory=dict)
    by_client: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def add(self, client: int, endpoint: str, step: int) -> None:
        _add(self.by_endpoint, endpoint, step)
        _add(self.by_client, client, step)
        self.total += step

    def on(self, names: Iterable[str]) -> int:
        return sum(map(self.by_endpoint.get, names, repeat(0)))


class Admission:
    """Counts the requests of one pool that are not ordinary, and decides which are let in when it is full.

    `priorities` are those of the operator's objectives, by name. `has_shares`: each client has its
    share.
    """

    __slots__ = ("_levels", "has_shares", "priorities")

    def __init__(
        self, priorities: Mapping[str, int] | None = None, *, has_shares: bool = False
    ) -> None:
        self.priorities: Mapping[str, int] = priorities or {}
        self.has_shares = has_shares
        self._levels: dict[int, _Level] = {}

    def __len__(self) -> int:
        return sum(level.total for level in self._levels.values())

    def ceiling(self, limit: int) -> int:
        """What a pool may have with those who go first, if there are any."""
        return _with_headroom(limit) if self.priorities or self.has_shares else limit

    def standing(self, headers: Mapping[str, str]) -> RequestClass | None:
        """What a request with these headers counts as; `None` for an ordinary one."""
        priority = self.priorities.get(objective_of(headers), 0) if self.priorities else 0
        name = _first(headers, FAIRNESS_ID) if self.has_shares else ""
        if not priority and not name:
            return None
        # Python's own hash has a random key: no client can find two ids with one hash.
        return RequestClass(priority, hash(name) if name else _NO_CLIENT)

    def acquire(self, standing: RequestClass, endpoint: str) -> None:
        level = self._levels.setdefault(standing.priority, _Level())
        level.add(standing.client, endpoint, 1)

    def release(self, standing: RequestClass, endpoint: str) -> None:
        """Ends what was taken; what was not is the caller's bug (`KeyError`)."""
        level = self._levels[standing.priority]
        level.add(standing.client, endpoint, -1)
        if not level.total:
            del self._levels[standing.priority]

    def admit(self, standing: RequestClass, crowd: PoolLoad) -> None:
        """Lets a request into a full pool, or raises `Overloaded`, of the kind that says why."""
        priority = standing.priority
        if priority < 0:
            raise Sheddable(
                f"pool {crowd.pool!r} is at its limit, and the request's priority is {priority}",
                pool=crowd.pool,
            )
        if crowd.total >= crowd.ceiling:
            raise _full(crowd)
        if self._at_least(priority, crowd) < crowd.limit:
            return
        if self._at_least(priority + 1, crowd) >= crowd.limit:
            raise _full(crowd)
        self._admit_by_share(standing, crowd)

    def _at_least(self, priority: int, crowd: PoolLoad) -> int:
        """In flight on the crowd's endpoints of this priority, 0 or more, and of those above."""
        if priority > 0:
            return sum(
                level.on(crowd.names) for other, level in self._levels.items() if other >= priority
            )
        return crowd.total - sum(
            level.on(crowd.names) for other, level in self._levels.items() if other < priority
        )

    def _admit_by_share(self, standing: RequestClass, crowd: PoolLoad) -> None:
        above = sum(
            level.total for other, level in self._levels.items() if other > standing.priority
        )
        own, others = self._clients(standing, crowd.pool_total)
        if not others:
            raise _full(crowd)
        if (own + 1) * (others + 1) > crowd.each * crowd.pool_size - above:
            if not own:
                raise _full(crowd)
            raise OverShare(
                f"pool {crowd.pool!r} is at its limit, and the client has its share of it",
                pool=crowd.pool,
            )

    def _clients(self, standing: RequestClass, pool_total: int) -> tuple[int, int]:
        """Requests in flight of the standing's client; how many other clients of its priority have some."""
        level = self._levels.get(standing.priority)
        by_client = dict[int, int]() if level is None else level.by_client
        own = by_client.get(standing.client, 0)
        others = len(by_client) - (standing.client in by_client)
        if standing.priority == 0:
            ordinary = max(0, pool_total - len(self))
            if standing.client == _NO_CLIENT:
                own += ordinary
            else:
                others += ordinary > 0 and _NO_CLIENT not in by_client
        return own, others


def objective_of(headers: Mapping[str, str]) -> str:
    """The objective that a request names; empty: none."""
    return _first(headers, OBJECTIVE)


def ttl_s(headers: Mapping[str, str]) -> float | None:
    """How long a request says that it may wait, seconds; `None`: nothing, or nothing above zero."""
    text = headers.get(TTL, "")
    parts = _PART.findall(text)
    is_whole = "".join(map("".join, parts)) == text
    return (
        (sum(float(number) * _SECONDS[unit] for number, unit in parts) or None)
        if is_whole
        else None
    )


def _with_headroom(limit: int) -> int:
    return limit + max(1, limit // 4)


def _full(crowd: PoolLoad) -> Overloaded:
    limit = f"its limit of {crowd.each} requests per endpoint"
    return Overloaded(f"pool {crowd.pool!r} is at {limit}", pool=crowd.pool)


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return ""


def _add(counts: dict[_Key, int], key: _Key, step: int) -> None:
    count = counts.get(key, 0) + step
    if count < 0:
        raise KeyError(key)
    if count:
        counts[key] = count
    else:
        del counts[key]
