"""Whether a run measured the server at all, or failures, nothing, or the client. Pure.

Reasons make a run invalid; remarks say how a valid one must be read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from extproc.bench.measure.metrics import is_failure
from extproc.bench.record import GIVE_UP_AFTER, INTERRUPTED, Record, RunInfo, RunResult, TokenSource
from extproc.bench.spec.tree import Limits

# The kinds of reasons.
PARTIAL = "partial"
FAILED = "requests failed"
NOTHING = "nothing measured"
TOO_FEW = "too few requests"
NO_TOKENS = "no first token"
MISSING = "share missing"
CLIENT_LIMITED = "client-limited"
NOT_OFFERED = "load not offered"
CLOCKS = "clocks apart"
VALID, DOUBTFUL, INVALID = "valid", "valid, with remarks", "invalid: "

# With fewer in flight on average the samples are too coarse to check anything.
_FEW_IN_FLIGHT = 1.0
# The share of the scheduled rate that must have been due: for a plain valid, and for a valid one at
# all.
DUE, _DUE_AT_ALL = 0.95, 0.8
# The share of answers without a first token up to which the others still stand for all.
_MOST_WORDLESS = 0.1
# Below this a p99 is no more than the largest value.
_FEW_REQUESTS = 100
# `Date` has whole seconds: two readings of it differ by up to one.
_CLOCKS_APART_S = 2.0
_APART_S = 0.001
_MOST_CAUSES = 4
_MOST_WORDS = 120


@dataclass(frozen=True, slots=True)
class VerdictInputs:
    """What a verdict was judged by; `None` where a run has no such figure.

    `cpu` is the busiest load process's share of a core. `cap_full` the longest share of time a
    process had no slot left. `asked_rps` is the rate of an even schedule, `offered_rps` what was
    due in the window: in sessions less, as later turns wait for answers. `littles_residual`
    compares the sampled mean in flight with rate times latency.
    """

    lag_p99_s: float | None = None
    loop_lag_p99_s: float | None = None
    cpu: float | None = None
    cap_full: float | None = None
    asked_rps: float | None = None
    offered_rps: float | None = None
    achieved_rps: float | None = None
    in_flight: float | None = None
    on_time_in_flight: float | None = None
    littles_residual: float | None = None


@dataclass(frozen=True, slots=True)
class FaultReason:
    """Why a run is no measurement: in one of a few words (`CLIENT_LIMITED` and so on), and in a sentence."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`valid`, `valid, with remarks`, or `invalid:` and of what kinds; the reasons; what it was judged by.

    `has_doubts`: valid, but of less load than scheduled, or of few requests.
    """

    is_valid: bool
    text: str
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    figures: VerdictInputs
    kinds: tuple[str, ...] = ()
    has_doubts: bool = False

    @property
    def is_client_limited_only(self) -> bool:
        """Whether nothing but the client's limits speaks against the run."""
        return self.kinds == (CLIENT_LIMITED,)

    def __str__(self) -> str:
        return self.text


def build_verdict(
    reasons: Iterable[FaultReason],
    remarks: Iterable[str],
    figures: VerdictInputs,
    doubts: Iterable[str] = (),
) -> RunVerdict:
    """A verdict is valid as long as nothing speaks against it; `doubts` are the first of its remarks."""
    against, doubts = tuple(reasons), tuple(doubts)
    kinds = tuple(dict.fromkeys(reason.kind for reason in against))
    text = f"{INVALID}{', '.join(kinds)}" if against else DOUBTFUL if doubts else VALID
    texts, has_doubts = tuple(reason.text for reason in against), bool(doubts) and not against
    return RunVerdict(not against, text, texts, (*doubts, *remarks), figures, kinds, has_doubts)


# When a run is a measurement of the server.
#
# The reason for all this is a published table (KubeAI's 8 x L4): asked for 800 requests a second,
# the client of its fast arms sent 75, had some 460 in flight where one on time would have had
# thousands, and the latencies of that small load stand beside those of a full one. Nothing in its
# report could show it. So a run is judged by what the client itself saw, and the report says so
# first.
#
# Against a run speaks (docs/why/benchmark.md has each in a sentence):
# - requests failed, of the whole run or of the window alone: failures at the end of a long run must
#   not hide in it;
# - nothing was measured, the run was broken off, a part is missing, machines' clocks differ;
# - the load was not offered. Random arrivals may be off by three deviations of a count (its root);
#   an even share of less is no chance;
# - the client was the limit: it began late, its event loop stood still, a process used up its core,
#   or fewer began than were due and no cap held them back. A full cap is no fault, the spec asked
#   for it: then the run reads as a closed loop, which is a remark.
#
# Little's law (mean in flight = rate x latency) is the witness that shares no code with the rest:
# the left side is sampled by the load processes, the right side comes from the records. Far apart,
# the window is not steady. That is a remark, too, as a queue that grows is a result.
#
# What must hold: each reason has a kind, and whether only the client's limits speak against a run
# is decided by kinds, never by texts, which hold names and a server's words. Thresholds are checked
# elsewhere: a run may be valid and miss them.
def judge(result: RunResult) -> RunVerdict:
    """Judges a run by the limits of its spec. Linear in records and samples."""
    limits = result.info.spec.limits
    figures = _measure(result)
    reasons = (
        *_find_part_faults(result.info),
        *_find_interruption(result.info),
        *_find_failures(result, limits.errors),
        *_find_nothing(result),
        *_find_few(result, limits.requests),
        *_find_wordless(result, _MOST_WORDLESS),
        *_find_missing_load(result, figures),
        *(FaultReason(CLIENT_LIMITED, text) for text in _name_client_limits(figures, limits)),
        *_find_clock_faults(result.info),
    )
    return build_verdict(
        reasons,
        (
            *(reason.text for reason in _find_wordless(result, 0.0)),
            *_find_guessed_tokens(result),
            *_find_remarks(figures, limits),
            *_find_short_windows(result),
            *_find_surprises(result),
        ),
        figures,
        _find_doubts(result, figures),
    )


def _find_part_faults(info: RunInfo) -> Iterator[FaultReason]:
    """A part of a load is another load: whatever the others measured, it was not the spec's load."""
    numbers = Counter(part.number for part in info.parts)
    for part in info.parts:
        if part.lost is not None:
            of = f" of {part.share}" if part.share else ""
            counted = f"; {part.records:,} of its requests are counted" if part.records else ""
            yield FaultReason(
                MISSING, f"part {part.number} of {part.count} is missing{of}: {part.lost}{counted}"
            )
    for number, times in numbers.items():
        if times > 1:
            yield FaultReason(MISSING, f"part {number} was given {times} times: parts overlap")


def _find_clock_faults(info: RunInfo) -> Iterator[FaultReason]:
    """Machines that do not begin together do not offer one schedule."""
    there = [part for part in info.parts if part.start_at]
    begun_s = _find_range([part.start_at for part in there])
    if begun_s > _APART_S:
        text = f"parts began {begun_s:.3f} s apart: their --start-at differs"
        yield FaultReason(CLOCKS, text)
    clocks_s = _find_range([p.clock_offset_s for p in there if p.clock_offset_s is not None])
    if clocks_s > _CLOCKS_APART_S:
        text = f"the parts' clocks are about {clocks_s:.0f} s apart, by the server's Date"
        yield FaultReason(CLOCKS, text)


def _find_range(values: list[float]) -> float:
    return max(values) - min(values) if values else 0.0


def _find_interruption(info: RunInfo) -> Iterator[FaultReason]:
    if info.interrupted_s is not None:
        yield FaultReason(
            PARTIAL, f"interrupted after {info.interrupted_s:.1f} s: the report holds what was done"
        )


def _find_failures(result: RunResult, limit: float) -> Iterator[FaultReason]:
    """Holds the failures of the whole run against the limit, then those of the window."""
    if any(client.has_given_up for client in result.info.clients):
        yield FaultReason(FAILED, f"stopped: {GIVE_UP_AFTER} requests in a row could not connect")
    for part, records in (("", result.records), (" in the window", _list_measured(result))):
        failed = [record for record in records if is_failure(record)]
        if failed and len(failed) > limit * len(records):
            share = f"{len(failed):,} of {len(records):,} requests{part} failed"
            yield FaultReason(
                FAILED,
                f"{share} ({len(failed) / len(records):.1%}, {limit:.1%} allowed): {name_causes(failed)}",
            )
            return


def name_causes(failed: Iterable[Record]) -> str:
    """The commonest causes with their counts and one of the server's own words for each."""
    records = list(failed)
    causes = Counter(str(record.failure) for record in records).most_common()
    named = [f"{cause} {count:,}{_quote(cause, records)}" for cause, count in causes[:_MOST_CAUSES]]
    rest = sum(count for _, count in causes[_MOST_CAUSES:])
    return ", ".join([*named, f"others {rest:,}"] if rest else named)


def _quote(cause: str, records: Iterable[Record]) -> str:
    details = Counter(record.failure_detail for record in records if record.failure == cause)
    detail = " ".join(details.most_common(1)[0][0].split())
    return f" ({detail[:_MOST_WORDS]})" if detail else ""


def _find_nothing(result: RunResult) -> Iterator[FaultReason]:
    traffic, window = result.info.spec.traffic, result.info.window
    if not traffic.is_queued and window.end_s <= window.start_s:
        yield FaultReason(
            NOTHING,
            f"warm-up ({traffic.warm_up:g} s) and cool-down ({traffic.cool_down:g} s) leave nothing of it",
        )
    elif not any(record.is_ok for record in _list_measured(result)):
        yield FaultReason(NOTHING, "no request was completed where it was measured")


def _find_few(result: RunResult, limit: int) -> Iterator[FaultReason]:
    """A handful of requests is an anecdote, however good each of them was."""
    count = sum(record.is_ok for record in _list_measured(result))
    if 0 < count < limit and result.info.interrupted_s is None:
        yield FaultReason(
            TOO_FEW,
            f"{count} requests were measured, {limit} are wanted: run longer, or ask for more",
        )


def _find_wordless(result: RunResult, limit: float) -> Iterator[FaultReason]:
    """Streamed answers without a first token are in no TTFT: what is left may be the quick ones."""
    if not result.info.spec.target.is_streaming:
        return
    answered = [record for record in _list_measured(result) if record.is_ok]
    count = sum(record.first_token_s is None for record in answered)
    if count > limit * len(answered):
        yield FaultReason(
            NO_TOKENS,
            f"{count:,} of {len(answered):,} answers had no first token: they are in no TTFT, TPOT or ITL",
        )


def _find_guessed_tokens(result: RunResult) -> Iterator[str]:
    answered = [record for record in _list_measured(result) if record.is_ok]
    count = sum(record.token_source is TokenSource.ESTIMATE for record in answered)
    if count:
        yield (
            f"guessed tokens: {count:,} of {len(answered):,} answers came without usage, and there is no "
            "tokenizer: tok/s, TPOT and time per token count four bytes as a token; set target.tokenizer"
        )


def _list_measured(result: RunResult) -> list[Record]:
    """The requests that figures are taken from: those of the window, or all where the schedule is a queue."""
    if result.info.spec.traffic.is_queued:
        return list(result.records)
    return [record for record in result.records if result.info.window.holds(record)]


def _find_missing_load(result: RunResult, figures: VerdictInputs) -> Iterator[FaultReason]:
    """A third of a load says nothing about the whole. Random arrivals may be off by three deviations."""
    asked, due = figures.asked_rps, figures.offered_rps
    if asked is None or not due or result.info.interrupted_s is not None:
        return
    window = result.info.window
    wanted = asked * (window.end_s - window.start_s)
    if due < _DUE_AT_ALL * asked and due * (window.end_s - window.start_s) < wanted - 3 * sqrt(
        wanted
    ):
        yield FaultReason(NOT_OFFERED, _name_shortfall(asked, due))


def _name_shortfall(asked: float, due: float) -> str:
    return (
        f"{asked:.2f} req/s asked for, {due:.2f} due in the window ({due / asked:.0%}): sessions had not all "
        "begun, or waited for answers and think time; warm up for two session lifetimes, or ask for less"
    )


def _find_doubts(result: RunResult, figures: VerdictInputs) -> Iterator[str]:
    """Says what a valid run is too little of: the scheduled load, or requests."""
    asked, due = figures.asked_rps, figures.offered_rps
    width_s = result.info.window.end_s - result.info.window.start_s
    # One request more or less is where the window's ends fall.
    if asked is not None and due is not None and asked - due > max((1 - DUE) * asked, 1 / width_s):
        yield _name_shortfall(asked, due)
    count = sum(record.is_ok for record in _list_measured(result))
    if result.info.spec.limits.requests <= count < _FEW_REQUESTS:
        yield f"few requests: {count} were measured, so that the p99 is about the largest"


# What a window may lose to answers that were not there at its beginning, as a share.
_LOST = 0.025


def find_short_warm_up(answer_s: float, warm_up_s: float, width_s: float) -> Iterator[str]:
    """Says that no answer ends in the first part of a window, and how long to warm up instead."""
    if answer_s - warm_up_s > _LOST * width_s:
        yield (
            f"short warm-up: it takes {warm_up_s:g} s, an answer about {answer_s:.1f} s, so that none ends "
            f"when the window begins: warm up for {ceil(1.2 * answer_s)} s"
        )


def _find_short_windows(result: RunResult) -> Iterator[str]:
    info, measured = result.info, [record for record in _list_measured(result) if record.is_ok]
    if not measured or info.spec.traffic.is_queued:
        return
    mean_s = sum((record.end_s or 0.0) - record.intended_s for record in measured) / len(measured)
    width_s = info.window.end_s - info.window.start_s
    if width_s < info.spec.limits.latencies * mean_s:
        yield (
            f"short window: its {width_s:.1f} s are {width_s / mean_s:.1f} times as long as a request takes; "
            "throughput counts what began before it"
        )
    own_s = [
        record.end_s - record.first_token_s
        for record in measured
        if record.end_s is not None and record.first_token_s is not None
    ]
    if own_s and not info.spec.traffic.is_closed:
        yield from find_short_warm_up(float(np.median(own_s)), info.window.start_s, width_s)


def _find_surprises(result: RunResult) -> Iterator[str]:
    """Says what the spec may not have meant: repeated prompts, an unused warm-up, broken-off ends."""
    info, traffic = result.info, result.info.spec.traffic
    if info.cut_lines:
        lines = "a line" if info.cut_lines == 1 else f"{info.cut_lines} lines"
        yield f"{lines} of the journal were cut off half-way, as of a process that is killed: left out"
    repeats = sum(
        info.prompts is not None and record.index >= info.prompts for record in result.records
    )
    if repeats:
        yield (
            f"the dataset's {info.prompts:,} prompts began again: {repeats / len(result.records):.0%} of the "
            "requests are repeats that a cache may have"
        )
    if traffic.is_queued and (traffic.warm_up or traffic.cool_down):
        yield "warm-up and cool-down are not used: with a cap the schedule is a queue, measured as a whole"
    broken = sum(record.failure == INTERRUPTED for record in result.records)
    if broken and info.interrupted_s is None:
        yield f"{broken:,} requests were cut off when graceful-stop was over"
    spike, end_s = traffic.traffic_spike, max(info.schedule_s, default=0.0)
    if spike is not None and spike.covers(end_s):
        yield "the traffic spike lasted the whole run: it is the same as a higher req-rate"


def _measure(result: RunResult) -> VerdictInputs:
    info = result.info
    records = [record for record in result.records if info.window.holds(record)]
    in_flight, residual = _check_littles_law(result)
    width_s = info.window.end_s - info.window.start_s
    started = sum(
        record.started_s is not None and info.window.start_s <= record.started_s < info.window.end_s
        for record in result.records
    )
    is_even = info.spec.traffic.shape.name == "constant" and info.spec.traffic.traffic_spike is None
    is_open = info.offered_rps is not None and width_s > 0
    return VerdictInputs(
        lag_p99_s=_p99([lag for record in records if (lag := record.lag_s) is not None]),
        loop_lag_p99_s=_p99([s.lag_s for client in info.clients for s in client.samples]),
        cpu=max((c.cpu_s / c.wall_s for c in info.clients if c.wall_s), default=None),
        cap_full=max(
            (c.cap_full_s / c.wall_s for c in info.clients if c.cap and c.wall_s), default=None
        ),
        asked_rps=info.offered_rps if is_even else None,
        offered_rps=len(records) / width_s if is_open else None,
        achieved_rps=started / width_s if is_open else None,
        in_flight=in_flight,
        littles_residual=residual,
    )


def _p99(values: list[float]) -> float | None:
    return float(np.percentile(values, 99)) if values else None


def _check_littles_law(result: RunResult) -> tuple[float | None, float | None]:
    """Returns the sampled mean in flight and how far rate times latency is from it, as a share."""
    window = result.info.window
    width_s = window.end_s - window.start_s
    seen = [
        [
            sample.in_flight
            for sample in client.samples
            if window.start_s <= sample.at_s < window.end_s
        ]
        for client in result.info.clients
    ]
    sampled = sum(sum(each) / len(each) for each in seen if each)
    latencies = [
        record.end_s - record.started_s
        for record in result.records
        if record.started_s is not None
        and record.end_s is not None
        and window.start_s <= record.started_s < window.end_s
    ]
    if width_s <= 0 or sampled < _FEW_IN_FLIGHT:
        return sampled, None
    return sampled, abs(sampled - sum(latencies) / width_s) / sampled


def _name_client_limits(figures: VerdictInputs, limits: Limits) -> Iterator[str]:
    lag, loop_lag, cpu = figures.lag_p99_s, figures.loop_lag_p99_s, figures.cpu
    if lag is not None and lag > limits.lag_p99:
        allowed = f"p99; {limits.lag_p99 * 1e3:.0f} ms allowed"
        yield f"requests began up to {lag * 1e3:.0f} ms late ({allowed}): this machine was too busy"
    if loop_lag is not None and loop_lag > limits.loop_lag_p99:
        allowed = f"p99; {limits.loop_lag_p99 * 1e3:.0f} ms allowed"
        yield f"a load process stood still for up to {loop_lag * 1e3:.0f} ms ({allowed}): add processes"
    if cpu is not None and cpu > limits.cpu:
        yield f"a load process used {cpu:.0%} of a core: add processes"
    offered, achieved = figures.offered_rps, figures.achieved_rps
    is_capped = (figures.cap_full or 0.0) > limits.cap_full
    if offered and achieved is not None and achieved < limits.achieved * offered and not is_capped:
        yield f"offered {offered:.2f} req/s, began {achieved:.2f}, and no cap held them back"


def _find_remarks(figures: VerdictInputs, limits: Limits) -> Iterator[str]:
    offered, achieved, full = figures.offered_rps, figures.achieved_rps, figures.cap_full
    if full is not None and full > limits.cap_full and offered:
        yield (
            f"the concurrency cap was full {full:.0%} of the time: {offered:.2f} req/s offered, "
            f"{achieved or 0.0:.2f} begun; read this as a closed loop"
        )
    residual = figures.littles_residual
    if residual is not None and residual > limits.littles_residual:
        yield f"not steady: in flight is {residual:.0%} off rate times latency (Little's law)"
