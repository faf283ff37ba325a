"""Everything that is said of one run, as one value: what every format renders and `compare` reads back."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import msgspec
import yaml

from extproc.bench.judge.verdict import RunVerdict, judge
from extproc.bench.measure import metrics
from extproc.bench.measure.conversations import Conversations, count_conversations
from extproc.bench.measure.groups import Groups
from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.measure.phases import (
    Elasticity,
    LoadPhase,
    list_stretches,
    measure_elasticity,
    measure_phases,
)
from extproc.bench.record import CacheCounters, FleetSample, PartStats, RunInfo, RunResult
from extproc.bench.spec.thresholds import SHARES, Claim, parse_claim
from extproc.errors import ExtprocError


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """A threshold and the value that it was held against; without a value it is not met."""

    text: str
    value: float | None
    is_met: bool

    @property
    def fault(self) -> str:
        return f"threshold not met: {self.text}: it is {self.shown}"

    @property
    def shown(self) -> str:
        if self.value is None:
            return "unknown"
        is_share = parse_claim(self.text).figure in SHARES
        return f"{self.value:.2%}" if is_share else f"{self.value:,.4g}"


def check_thresholds(
    texts: Iterable[str], measured: RunMetrics, failed: float, hit_rate: float | None
) -> tuple[ThresholdResult, ...]:
    """Holds each threshold against the measured part; `failed` is a share of the whole run's requests."""
    claims = [(text, parse_claim(text)) for text in texts]
    values = [_read(claim, measured, failed, hit_rate) for _, claim in claims]
    return tuple(
        ThresholdResult(text, value, value is not None and claim.holds(value))
        for (text, claim), value in zip(claims, values, strict=True)
    )


def _read(
    claim: Claim, measured: RunMetrics, failed: float, hit_rate: float | None
) -> float | None:
    if claim.point is not None:
        return measured.latency(claim.figure, claim.point)
    flow = measured.throughput
    values = {
        "failed": failed,
        "hit_rate": hit_rate,
        "goodput": measured.good_share,
        "req_per_s": flow.requests_rps,
        "output_tok_per_s": flow.output_tps,
        "total_tok_per_s": flow.total_tps,
    }
    return values[claim.figure]


# Raised when a field changes its meaning or goes; new fields leave it alone.
SCHEMA = "extproc-bench-report/1"

# The words are in a file of their own.
DEFINITIONS: dict[str, str] = yaml.safe_load(
    files("extproc.bench.report").joinpath("definitions.yaml").read_text("utf-8")
)


class ReportError(ExtprocError):
    """A file is not a report of a schema that this version reads."""


@dataclass(frozen=True, slots=True)
class Cache:
    """An endpoint's prefix-cache hit rate during the run, from its own counters."""

    endpoint: str
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What the measured part's tokens cost, in dollars by the stack's price."""

    total_tok_per_dollar: float | None = None
    output_tok_per_dollar: float | None = None
    dollars: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `schedule` is a digest of the offered starts: equal digests, equal schedules.

    `server_hit_rate` is hit tokens per queried token over all scraped endpoints; `None` without
    scrapes. `groups` covers the steady window. `is_queued`: a concurrency cap, or an infinite rate,
    turned the schedule into a queue, so that its times say nothing about the load; the whole run is
    then measured. `thresholds` are the spec's, each with the value that it was held against.
    `phases` are the parts of a load that changes, `elasticity` how it was taken, `fleet` the
    endpoints every few seconds. `labels` and `stack` are the spec's, for a catalogue. `parts` are
    the shares of a run on several machines, `arm` is what was in force in a comparison.
    `conversations` is what became of them, where they have several turns.
    """

    schema: str
    definitions: dict[str, str]
    name: str
    model: str
    started_at: str
    seed: int
    schedule: str
    offered_rps: float | None
    is_queued: bool
    verdict: RunVerdict
    whole: RunMetrics
    steady: RunMetrics
    groups: Groups
    server_hit_rate: float | None
    caches: tuple[Cache, ...]
    spec: dict[str, Any]
    thresholds: tuple[ThresholdResult, ...] = ()
    phases: tuple[LoadPhase, ...] = ()
    elasticity: Elasticity | None = None
    fleet: tuple[FleetSample, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    stack: dict[str, Any] = field(default_factory=dict)
    spending: Spending = Spending()
    parts: tuple[PartStats, ...] = ()
    arm: str = ""
    conversations: Conversations | None = None

    @property
    def is_good(self) -> bool:
        """Whether the run is a measurement and meets every threshold."""
        return self.verdict.is_valid and all(outcome.is_met for outcome in self.thresholds)

    @property
    def title(self) -> str:
        """The verdict in a word or two, thresholds included."""
        unmet = sum(not outcome.is_met for outcome in self.thresholds)
        return (
            f"{self.verdict}; {unmet} of {len(self.thresholds)} thresholds not met"
            if unmet
            else str(self.verdict)
        )

    @property
    def faults(self) -> tuple[str, ...]:
        """All that speaks against the run: the verdict's reasons, then the thresholds that were not met."""
        return (
            *self.verdict.reasons,
            *(outcome.fault for outcome in self.thresholds if not outcome.is_met),
        )

    @property
    def measured(self) -> RunMetrics:
        """The part of the run that figures are taken from: the steady window if there is one."""
        return self.whole if self.is_queued else self.steady

    @property
    def hit_rate(self) -> float | None:
        """The servers' own count where it was scraped, else the one in the answers' usage."""
        return (
            self.measured.tokens.hit_rate if self.server_hit_rate is None else self.server_hit_rate
        )


def build(result: RunResult) -> Report:
    """Measures and judges a run: the one place where that is done, however many formats show it."""
    info, slo = result.info, result.info.spec.performance.slo
    stretches = list_stretches(info.spec.traffic, info.offered_until_s)
    starts = ",".join(f"{at_s:.6f}" for at_s in info.schedule_s)
    said = Report(
        schema=SCHEMA,
        definitions=DEFINITIONS,
        name=info.spec.name,
        model=info.model,
        started_at=info.started_at.isoformat(),
        seed=info.spec.seed,
        schedule=hashlib.sha256(starts.encode()).hexdigest()[:16],
        offered_rps=info.offered_rps,
        is_queued=info.spec.traffic.is_queued,
        verdict=judge(result),
        whole=metrics.measure(result.records, metrics.whole_run(result), slo),
        steady=metrics.measure(result.records, info.window, slo),
        groups=Groups.of([record for record in result.records if info.window.holds(record)]),
        server_hit_rate=_server_hit_rate(info),
        caches=tuple(Cache(scrape.endpoint, scrape.hit_rate) for scrape in info.scrapes),
        phases=measure_phases(result.records, stretches, slo, info.fleet),
        elasticity=measure_elasticity(result.records, stretches, slo, info.fleet, info.duration_s),
        fleet=info.fleet,
        spec=info.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        labels=dict(info.spec.labels),
        stack=info.spec.stack.model_dump(exclude_none=True),
        parts=info.parts,
        conversations=_follow_conversations(result),
    )
    failed = said.whole.counts.failed_share
    return replace(
        said,
        spending=_find_spending(said, info),
        thresholds=check_thresholds(info.spec.thresholds, said.measured, failed, said.hit_rate),
    )


def _follow_conversations(result: RunResult) -> Conversations | None:
    wanted = result.info.spec.traffic.total_conversations
    is_each_a_request = wanted is None and not any(record.turn for record in result.records)
    return None if is_each_a_request else count_conversations(result.records, wanted)


def _find_spending(said: Report, info: RunInfo) -> Spending:
    price, flow = info.spec.stack.price_per_hour, said.measured.throughput
    if price is None:
        return Spending()
    per_dollar = 3600 / price
    dollars = price * info.duration_s / 3600
    return Spending(flow.total_tps * per_dollar, flow.output_tps * per_dollar, dollars)


def _server_hit_rate(info: RunInfo) -> float | None:
    rises = [scrape.rise for scrape in info.scrapes]
    return CacheCounters(sum(r.queries for r in rises), sum(r.hits for r in rises)).hit_rate


def encode_report(value: object) -> bytes:
    """Writes a report of any kind as indented JSON; an unbounded number becomes null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def decode_report(text: bytes) -> Report:
    """Reads what `encode_report` wrote; raises `ReportError` for anything else, saying where it differs."""
    try:
        report = msgspec.json.decode(text, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"not a benchmark report: {error}") from None
    if report.schema != SCHEMA:
        raise ReportError(
            f"the report's schema is {report.schema!r}; this version reads {SCHEMA!r}"
        )
    return report


def json_schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    return msgspec.json.schema(Report)
