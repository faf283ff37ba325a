"""The metrics of several processes as those of one. Pure: scrapes come in, families go out."""

# The rules:
#
# - A sum must never go back while its series is there, not by the last bit: Prometheus would take that for a
#   restart and count all of it once more. So of a worker that has gone, that began again, or that does not
#   answer now, what it counted last stays in the sum.
# - A worker began again where it tells another start, or where a count of its went back, as with another
#   strategy. Counts that stand together, as the buckets of a histogram, are one series here.
# - A worker that is started again has the name that it had; its names are few, and each is remembered.
# - A series that no worker has any more is forgotten, with what was kept of it: the next time that it comes
#   it begins anew, as it does with one process. So endpoints that come and go take no memory.
# - A copy of what all count alike is followed at one worker, and at another one when that is silent: what
#   it grows by is what counts.
# - Gauges are of those that answer now.

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar, Sample

from extproc.router.gauges import Rule, rule_of

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A family, and labels but the bounds of buckets."""
Place = tuple[str, str]
"""Which of a series' samples: its name and its bound."""
Values = Mapping[Place, float]

_START: Final = "process_start_time_seconds"
_BOUNDS: Final = ("le", "quantile")


@dataclass(frozen=True, slots=True)
class _Told:
    """What a worker told: when it was started, what it counted, and its copies of what all do."""

    start_s: float | None
    sums: Mapping[Series, Values]
    copies: Mapping[Series, Values]


@dataclass(slots=True)
class _Copy:
    """A copied counter as it is told: who is followed, what that one read, and what became of it."""

    leader: str
    read: Values
    total: Values


class Totals:
    """Remembers what is needed for sums that never go back."""

    def __init__(self) -> None:
        self._last: dict[str, _Told] = {}
        self._gone: dict[Series, Values] = {}
        self._copies: dict[Series, _Copy] = {}
        self._shown: dict[Series, Values] = {}

    def __repr__(self) -> str:
        return f"<Totals of {len(self._last)} workers, {len(self._gone)} series of others>"

    def merge(self, told: Mapping[str, Sequence[Metric]]) -> list[Metric]:
        """Returns the families of all; `told` are those of the workers that answered now, by name."""
        now = {worker: _read(families) for worker, families in told.items()}
        for worker, one in now.items():
            if worker in self._last:
                self._bury(_ended(self._last[worker], one))
            self._last[worker] = one
        if now:
            self._follow(now)
            self._forget()
        return [*self._families(told)]

    def _bury(self, sums: Mapping[Series, Values]) -> None:
        for series, values in sums.items():
            self._gone[series] = _add([self._gone.get(series, {}), values])

    def _follow(self, now: Mapping[str, _Told]) -> None:
        for series in dict.fromkeys(series for one in now.values() for series in one.copies):
            reading = {worker: one.copies[series] for worker, one in now.items() if series in one.copies}
            copy = self._copies.get(series)
            leader = copy.leader if copy and copy.leader in reading else min(reading)
            read = reading[leader]
            total = read if copy is None else _grow(copy, read, is_same=leader == copy.leader)
            self._copies[series] = _Copy(leader, read, total)

    def _forget(self) -> None:
        sums = {series for one in self._last.values() for series in one.sums}
        copies = {series for one in self._last.values() for series in one.copies}
        self._gone = {series: values for series, values in self._gone.items() if series in sums}
        self._copies = {series: copy for series, copy in self._copies.items() if series in copies}
        self._shown = {series: values for series, values in self._shown.items() if series in sums}

    def _families(self, told: Mapping[str, Sequence[Metric]]) -> Iterator[Metric]:
        kept: dict[str, dict[Series, None]] = defaultdict(dict)
        for series in (series for one in self._last.values() for series in (*one.sums, *one.copies)):
            kept[series[0]][series] = None
        alike: dict[str, list[Metric]] = defaultdict(list)
        for family in (family for families in told.values() for family in families):
            alike[family.name].append(family)
        for name, families in alike.items():
            first = families[0]
            merged = Metric(name, first.documentation, first.type, first.unit)
            merged.samples = [*_gauges(families), *self._counted(kept[name], _exemplars(families))]
            yield merged

    def _counted(
        self, kept: Iterable[Series], exemplars: Mapping[tuple[Series, Place], Exemplar]
    ) -> Iterator[Sample]:
        for series in kept:
            for place, value in self._value(series).items():
                labels = dict(series[1])
                if place[1]:
                    labels["quantile" if place[0] == series[0] else "le"] = place[1]
                yield Sample(place[0], labels, value, None, exemplars.get((series, place)))

    def _value(self, series: Series) -> Values:
        if series in self._copies:
            return self._copies[series].total
        parts = [one.sums[series] for one in self._last.values() if series in one.sums]
        total, shown = _add([*parts, self._gone.get(series, {})]), self._shown.get(series, {})
        # What is kept of several that have gone is rounded.
        self._shown[series] = {place: max(value, shown.get(place, 0.0)) for place, value in total.items()}
        return self._shown[series]


def _read(families: Iterable[Metric]) -> _Told:
    start_s = None
    sums: dict[Series, dict[Place, float]] = {}
    copies: dict[Series, dict[Place, float]] = {}
    for family, sample, rule in _samples(families):
        if sample.name == _START:
            start_s = sample.value
        if _is_counted(family):
            series, place = _place(family, sample)
            kind = copies if rule is Rule.COPY else sums
            kind.setdefault(series, {})[place] = sample.value
    return _Told(start_s, sums, copies)


def _samples(families: Iterable[Metric]) -> Iterator[tuple[Metric, Sample, Rule]]:
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                yield family, sample, rule_of(family.name, family.type, sample.labels.get("state", ""))


def _is_counted(family: Metric) -> bool:
    return family.type in {"counter", "histogram", "summary"}


def _place(family: Metric, sample: Sample) -> tuple[Series, Place]:
    labels, bound = sample.labels, ""
    if family.type != "counter":
        bound = next((labels[name] for name in _BOUNDS if name in labels), "")
        labels = {name: value for name, value in labels.items() if name not in _BOUNDS}
    return (family.name, tuple(labels.items())), (sample.name, bound)


def _ended(before: _Told, now: _Told) -> Mapping[Series, Values]:
    """What was counted before and is not in the counts of now."""
    if before.start_s != now.start_s:
        return before.sums
    return {
        series: values
        for series, values in before.sums.items()
        if any(now.sums.get(series, {}).get(place, -1) < value for place, value in values.items())
    }


def _grow(copy: _Copy, read: Values, *, is_same: bool) -> Values:
    """What a copied counter is after another reading, of who was followed or of somebody else."""
    total = {}
    for place, value in read.items():
        step = value - copy.read.get(place, 0.0)
        if step < 0:
            step = value if is_same else 0.0
        total[place] = copy.total.get(place, 0.0) + step
    return total


def _add(parts: Sequence[Values]) -> Values:
    """Sums that do not depend on the order of what is added."""
    places = dict.fromkeys(place for values in parts for place in values)
    return {place: fsum(values.get(place, 0.0) for values in parts) for place in places}


def _gauges(families: Sequence[Metric]) -> Iterator[Sample]:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
    rules: dict[tuple[str, tuple[tuple[str, str], ...]], Rule] = {}
    for family, sample, rule in _samples(families):
        if not _is_counted(family):
            key = (sample.name, tuple(sample.labels.items()))
            found[key].append(sample.value)
            rules[key] = rule
    for (name, labels), values in found.items():
        yield Sample(name, dict(labels), _joined(rules[name, labels], values))


def _joined(rule: Rule, values: Sequence[float]) -> float:
    if rule is Rule.SUM:
        return fsum(values)
    return min(values) if rule is Rule.LEAST else max(values)


def _exemplars(families: Sequence[Metric]) -> Mapping[tuple[Series, Place], Exemplar]:
    """One of each sample's, the same whatever the order."""
    found: dict[tuple[Series, Place], Exemplar] = {}
    for family, sample, _ in _samples(families):
        if sample.exemplar is not None and _is_counted(family):
            key = _place(family, sample)
            found[key] = max(found.get(key, sample.exemplar), sample.exemplar, key=_latest)
    return found


def _latest(exemplar: Exemplar) -> tuple[float, list[tuple[str, str]]]:
    return float(exemplar.timestamp or 0.0), sorted(exemplar.labels.items())
