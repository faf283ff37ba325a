"""Cooling down: which endpoints of a pool get no picks for now, judged by what became of requests. Pure.

Why. An endpoint that fails at once is always the least loaded one, so the better a strategy
balances, the more requests it feeds to it: one of four that answered 500 got nine of ten requests
of `least_load`. Envoy's own outlier detection is no help: `override_host` tries our picks whether a
host is ejected or not.

The rules, and whose they are:

- **When.** `failures` of them in a row, 3 by default; an answer that was cut is one. Envoy counts
  in a row, too (`consecutive_5xx`, 5). A rate would need a window, and at one request a second a
  window says nothing for a minute; a row of three is wrong once in 8,000 answers where one in
  twenty fails. An answer ends it unless its first byte is older than the last failure: streams that
  began well before the endpoint broke, and end well after, prove nothing of it now.
- **Silence.** An endpoint that takes requests and never answers fails nobody: clients leave, and who
  leaves early says nothing of it. So a request that its client gave up is a failure only if the
  endpoint had all of it for `silence_s`, and no other request had an answer meanwhile either.
  Impatient clients of an endpoint that serves others change nothing, nor do uploads that stop.
- **How long.** 2 s, doubling up to 16 s, each 20 % more or less. Doubling is every back-off's rule;
  the jitter is gRPC's (`connection-backoff.md`), so that several gateways do not come back in step.
  The cap is far lower than Envoy's (300 s) or the kubelet's (5 min): one failed request every 16 s
  costs little, and an endpoint that was repaired is to have its share again within half a minute.
- **Coming back.** After the time, one request at a time: the half-open state of a circuit breaker
  (Nygard, "Release It!"). One success ends it, one failure doubles the time. A trial without an
  outcome after `patience_s` is over: its client may have left, or the access log was lost. Outcomes
  of requests that began before an endpoint cooled change nothing: a hundred requests that die
  together are one incident.
- **Memory.** The doubling forgets one step for each `calm_s` of service, as Envoy's does per
  interval; the kubelet's forgets all after ten minutes. An endpoint that fails half its requests so
  gets less and less.
- **Half.** Never more than half of the pool is shut, those that failed first: otherwise the rest
  would get double load and fail, too. (Envoy's panic threshold is the same half.) If all fail, none
  is shut: the requests or the network are at fault, and no choice of endpoint helps.
- **Busy.** 429 and 503 with `Retry-After` are load: no picks for that long, at most 30 s, and no
  trial afterwards. Those endpoints count towards the half, too, so a pool that is busy as a whole
  says so to its clients itself.
- **Unhealthy.** The same for endpoints that fail our health probes. Beyond the half, too, they are
  shown as unhealthy: they get picks for want of better ones. A good probe after the cooling's time
  clears the endpoint: it is shown as ready, since an idle pool sends no request that could prove
  it. But an engine that answers 500 may well have a healthy `/health`: a cleared endpoint still
  gets one request at a time until one succeeds, and a failure doubles the time.
- **Unknown.** Where we probe, an endpoint that never answered is shown as unknown; it gets its
  picks.

Each endpoint is in one of four states, by its case: taken (no case, or a row not yet complete),
cooling (until `until_s`), on trial (after that), and back (taken again, with a memory).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from extproc.router.feedback.outcome import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Rules:
    """Durations in seconds; the module's docstring has the reasons. `failures=None`: nothing is cooled down.

    `slack_s` is how late an outcome may come: Envoy sends its log in batches, by default a second
    apart. It is shorter than the shortest cooling, else old outcomes would pass for a trial's. Two
    times less than `order_s` apart have no certain order. `most` is the share of a pool that may be
    shut; 1: all of it, where others can do without.
    """

    failures: int | None = 3
    base_s: float = 2.0
    cap_s: float = 16.0
    jitter: float = 0.2
    calm_s: float = 60.0
    patience_s: float = 10.0
    retry_after_cap_s: float = 30.0
    slack_s: float = 1.0
    silence_s: float = 10.0
    order_s: float = 0.1
    most: float = 0.5


class Why(StrEnum):
    COOLING = "cooling"
    BUSY = "busy"
    UNHEALTHY = "unhealthy"


_AGAINST: Final = frozenset({Verdict.FAILED, Verdict.BROKEN, Verdict.BUSY})


class Change(StrEnum):
    COOLED = "cooled"
    BACK = "back"


@dataclass(slots=True)
class _Case:
    """The failures of one endpoint. Times are the clock's, `None`: not now."""

    row: int = 0
    failed_s: float = 0.0
    level: int = 0
    cooled_s: float | None = None
    until_s: float = 0.0
    trial_s: float | None = None
    back_s: float | None = None
    busy_until_s: float = 0.0
    is_unhealthy: bool = False
    is_cleared: bool = False

    def is_away(self, now_s: float) -> bool:
        return self.is_unhealthy or self.cooled_s is not None or now_s < self.busy_until_s

    def why(self, now_s: float) -> Why | None:
        """The reason that operators see."""
        if self.is_unhealthy:
            return Why.UNHEALTHY
        if self.cooled_s is not None and not self.is_cleared:
            return Why.COOLING
        return Why.BUSY if now_s < self.busy_until_s else None


# Of an endpoint that was not picked for so long nothing is expected. Envoy lets a request live no
# longer, as we ship it.
_UNASKED_S: Final = 300.0
# And one that was not picked in the last minute is silent because nobody asks.
_LATELY_S: Final = 60.0
# Fewer requests without an answer are long answers, which a log has only when they end.
_FEW_ASKED: Final = 5


@dataclass(slots=True)
class _Asked:
    """The picks of an endpoint since its last answer: the first, the last, how many."""

    since_s: float
    last_s: float
    count: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Which endpoints may not be picked, until `until_s` or the next outcome."""

    closed: frozenset[str] = frozenset()
    shut: Mapping[str, Why] = field(default_factory=dict)
    until_s: float = float("inf")


_ALL = View()


class Cooling:
    """The cases of one pool's endpoints, by name. Costs a pick one comparison while there is none."""

    def __init__(self, rules: Rules, *, clock: Callable[[], float], rng: Random) -> None:
        self.rules = rules
        self._clock = clock
        self._rng = rng
        self._members: frozenset[str] = frozenset()
        self._cases: dict[str, _Case] = {}
        self._asked: dict[str, _Asked] = {}
        self._away: dict[str, _Case] = {}  # those that are away, in the order in which they went
        self._unproved: frozenset[str] | None = None  # `None`: nobody probes
        self._view: View | None = _ALL

    def set_members(self, names: Iterable[str]) -> None:
        """Takes the names of the pool's endpoints; the cases of others are forgotten."""
        before, self._members = self._members, frozenset(names)
        members = self._members
        if self._unproved is not None:
            self._unproved = members & self._unproved | (members - before)
        self._cases = {name: case for name, case in self._cases.items() if name in members}
        self._away = {name: case for name, case in self._away.items() if name in members}
        self._asked = {name: asked for name, asked in self._asked.items() if name in members}
        self._view = None

    def closed(self) -> frozenset[str]:
        """The names that may not be picked now: at most half of the members, or `most` of them."""
        return self._look().closed

    def picked(self, name: str) -> None:
        """Notes that `name` got a request; an endpoint on trial gets only this one for now."""
        now_s, asked = self._clock(), self._asked.get(name)
        if asked is None or now_s - asked.last_s > _UNASKED_S:
            asked = self._asked[name] = _Asked(now_s, now_s)
        asked.last_s = now_s
        asked.count += 1
        case = self._away.get(name)
        if case is not None and case.cooled_s is not None and not self._is_closed(case, now_s):
            case.trial_s = now_s
            self._view = None

    def shut(self) -> Mapping[str, Why]:
        """Every endpoint that gets no picks now, is on trial, or is unhealthy, and why."""
        return self._look().shut

    def unknown(self) -> frozenset[str]:
        """Endpoints that have answered neither a probe nor a request yet."""
        return self._unproved or frozenset()

    def cooled_for_s(self, name: str) -> float:
        """Seconds until `name` gets its trial; 0 once it is on trial."""
        case = self._away.get(name)
        return 0.0 if case is None else max(0.0, case.until_s - self._clock())

    def silent_for_s(self, name: str) -> float:
        """Since when it was asked for answers and gave none, seconds; 0: it gave one, or hardly anybody asked."""
        now_s, asked = self._clock(), self._asked.get(name)
        if asked is None or asked.count < _FEW_ASKED or now_s - asked.last_s > _LATELY_S:
            return 0.0
        return now_s - asked.since_s

    def observe(self, name: str, outcome: Outcome) -> Change | None:
        if outcome.verdict is Verdict.ANSWERED:
            self._prove(name)
        now_s = self._clock()
        verdict = self._judge(name, outcome, now_s)
        case = self._cases.get(name)
        if case is None:
            if verdict not in _AGAINST or name not in self._members:
                return None
            case = self._cases[name] = _Case()
        match verdict:
            case Verdict.FAILED | Verdict.BROKEN:
                return self._fail(name, case, now_s - outcome.duration_s, now_s)
            case Verdict.ANSWERED:
                return self._answer(name, case, outcome, now_s)
            case Verdict.BUSY:
                until_s = now_s + min(outcome.retry_after_s, self.rules.retry_after_cap_s)
                case.busy_until_s = max(case.busy_until_s, until_s)
                self._file(name, case)
                return self._answer(name, case, outcome, now_s)
        if self._is_news(case, now_s - outcome.duration_s):
            # A trial that proved nothing: the next one may come.
            case.trial_s = None
            self._view = None
        return None

    def _judge(self, name: str, outcome: Outcome, now_s: float) -> Verdict:
        """The verdict, where silence is a failure, too; notes whether the endpoint still owes answers."""
        if outcome.verdict is not Verdict.UNKNOWN:
            self._asked.pop(name, None)
            return outcome.verdict
        asked, had_s = self._asked.get(name), outcome.had_s
        if asked is None:
            return Verdict.UNKNOWN
        if not had_s:
            asked.count -= 1  # for an answer: that request did not come whole
        is_long = outcome.is_aborted and had_s >= self.rules.silence_s
        is_silent = is_long and asked.since_s <= now_s - had_s
        return Verdict.FAILED if is_silent else Verdict.UNKNOWN

    def expect_probes(self) -> None:
        """Every endpoint will be probed from now on: until its first answer it is unknown."""
        self._unproved = self._members

    def set_health(self, name: str, *, is_healthy: bool) -> None:
        self._prove(name)
        case = self._cases.get(name)
        if name not in self._members or (case is None and is_healthy):
            return
        case = self._cases.setdefault(name, _Case()) if case is None else case
        case.is_unhealthy = not is_healthy
        case.is_cleared = is_healthy and (case.is_cleared or self._clock() >= case.until_s)
        self._file(name, case)

    def _prove(self, name: str) -> None:
        if self._unproved:
            self._unproved -= {name}

    def forget_health(self) -> None:
        """Nobody probes any more: the last results may not be true any longer."""
        self._unproved = None
        for name, case in list(self._cases.items()):
            case.is_unhealthy = False
            self._file(name, case)

    def _fail(self, name: str, case: _Case, began_s: float, now_s: float) -> Change | None:
        if self.rules.failures is None:
            return None
        if case.cooled_s is None:
            if case.back_s is not None and began_s < case.back_s:
                return None  # begun before it was well again
            case.row += 1
            case.failed_s = now_s
            if case.row < self.rules.failures:
                return None
            forgotten = 0 if case.back_s is None else int((now_s - case.back_s) / self.rules.calm_s)
            case.level = max(0, case.level - forgotten) + 1
        elif now_s >= case.until_s and self._is_news(case, began_s):
            case.level += 1
        else:
            return None
        self._cool(name, case, now_s)
        return Change.COOLED

    def _answer(self, name: str, case: _Case, outcome: Outcome, now_s: float) -> Change | None:
        answered_s = now_s - outcome.duration_s + (outcome.first_byte_s or 0.0)
        if case.cooled_s is None:
            if answered_s + self.rules.order_s >= case.failed_s:
                case.row = 0
            return None
        if not self._is_news(case, now_s - outcome.duration_s):
            return None
        case.row, case.cooled_s, case.trial_s = 0, None, None
        case.until_s, case.back_s = 0.0, now_s
        self._file(name, case)
        return Change.BACK

    def _is_news(self, case: _Case, began_s: float) -> bool:
        """Whether a request began after its endpoint was cooled down."""
        return case.cooled_s is not None and began_s - self.rules.slack_s > case.cooled_s

    def _cool(self, name: str, case: _Case, now_s: float) -> None:
        rules = self.rules
        # The exponent is bounded, too: an endpoint may fail its trials for years.
        steps = case.level = min(case.level, 32)
        delay_s = min(rules.cap_s, rules.base_s * 2.0 ** (steps - 1))
        case.cooled_s, case.trial_s, case.is_cleared = now_s, None, False
        case.until_s = now_s + delay_s * self._rng.uniform(1 - rules.jitter, 1 + rules.jitter)
        self._file(name, case)

    def _file(self, name: str, case: _Case) -> None:
        """Adds the case to `_away`, or removes it there; one that is there already keeps its place."""
        if case.is_away(self._clock()):
            self._away.setdefault(name, case)
        else:
            self._away.pop(name, None)
        self._view = None

    def _look(self) -> View:
        view = self._view
        if view is None or (view is not _ALL and self._clock() >= view.until_s):
            view = self._view = self._build_view()
        return view

    def _build_view(self) -> View:
        now_s = self._clock()
        for name in [name for name, case in self._away.items() if not case.is_away(now_s)]:
            del self._away[name]
        if not self._away:
            return _ALL
        ends = [end for case in self._away.values() for end in self._ends(case) if end > now_s]
        until_s = min(ends, default=float("inf"))
        limit = int(self.rules.most * len(self._members))
        if len(self._away) == len(self._members) and self.rules.most < 1:
            limit = 0
        first = dict(list(self._away.items())[:limit])
        whys = ((name, case.why(now_s)) for name, case in self._away.items())
        shut = {name: why for name, why in whys if why is Why.UNHEALTHY or (why and name in first)}
        closed = frozenset(name for name, case in first.items() if self._is_closed(case, now_s))
        return View(closed, shut, until_s)

    def _is_closed(self, case: _Case, now_s: float) -> bool:
        if case.is_unhealthy or now_s < case.busy_until_s or now_s < case.until_s:
            return True
        return case.trial_s is not None and now_s < case.trial_s + self.rules.patience_s

    def _ends(self, case: _Case) -> Iterable[float]:
        """Times at which the case changes by itself."""
        yield case.busy_until_s
        yield case.until_s
        if case.trial_s is not None:
            yield case.trial_s + self.rules.patience_s
