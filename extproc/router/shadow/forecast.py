"""What two pictures say: what routing would save, with its uncertainty, or that it does not pay, or nothing yet."""

# The rules:
#
# - Every figure is a ratio over batches of ten minutes, with a 95 % interval by Student's t of the
#   batches' own ratios (the ratio estimator of survey sampling). Requests of one batch hang
#   together; batches hardly do.
# - Nothing is said before there are `_BATCHES` batches and `_REQUESTS` requests in them. What came
#   before the caches were full does not count.
# - Switching pays where the prefill that is saved is at least `_WORTH` of the engines' time for
#   sure, or the first token comes sooner by a tenth for sure. It does not pay where for sure neither
#   is so. In between it is undecided, and more batches narrow the interval with their square root.
# - Nothing is guessed. If the proxy does not say who answered, or names somebody who is no endpoint
#   of the pool (a Service's address instead of Pods), the pictures would be wrong.

from collections.abc import Iterable, Sequence
from math import inf, sqrt
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from extproc.router.shadow.comparison import BATCH_S, WARM_S, PictureBatch, PoolShadow, Side

_BATCHES: Final = 3
_REQUESTS: Final = 300
_WORTH: Final = 0.02
_SOONER: Final = 0.1
# Of the responses, so many may have come from elsewhere: other pools, retries, endpoints just gone.
_STRANGE: Final = 0.1
# Less of the engines' prompts than this was seen: another replica or another Envoy has the rest.
_SEEN: Final = 0.9
# Student's 97.5 % quantiles by degrees of freedom, from 1 on; beyond, 1.96 + 2.6 / df is right to 0.01.
_STUDENT: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

Verdict = Literal["pays", "does_not_pay", "undecided", "too_early", "blind"]


class Estimate(Struct, frozen=True):
    """A figure, and between what it is with 95 % certainty."""

    value: float
    low: float
    high: float


class PictureFigures(Struct, frozen=True):
    """One picture: the share of prompt tokens found in caches, seconds to the first token, the busiest's share."""

    hit_rate: Estimate
    mean_s: Estimate
    p99_s: Estimate
    busiest: Estimate
    engines: Estimate


class BatchRow(Struct, frozen=True):
    """Ten minutes for a chart: hit rates, prefill in engines, and mean seconds to the first token."""

    begun_s: float
    served_hit_rate: float
    picked_hit_rate: float
    served_engines: float
    picked_engines: float
    served_mean_s: float
    picked_mean_s: float


class Forecast(Struct, frozen=True):
    """What is told of a pool. `is_watching`: others route it; else `as_served` is what least load would do.

    `saved` is prefill in engines: seconds of it a second. `measured_hit_rate` and `measured_mean_s`
    are what the engines themselves counted; `seen_share` is how much of their prompts came by here.
    `wait_s`: for how much longer it must watch before it says anything. `open_batch` is what the
    last minutes show, of which nothing is concluded yet.
    """

    pool: str
    verdict: Verdict
    sentence: str
    is_watching: bool
    watched_s: float
    counted_s: float
    requests: int
    endpoints: int
    wait_s: float | None = None
    as_served: PictureFigures | None = None
    as_picked: PictureFigures | None = None
    saved: Estimate | None = None
    measured_hit_rate: float | None = None
    measured_mean_s: float | None = None
    seen_share: float | None = None
    batches: Sequence[BatchRow] = ()
    open_batch: BatchRow | None = None


def estimate(pairs: Iterable[tuple[float, float]]) -> Estimate:
    """The sum of the first over the sum of the second values, and its 95 % interval over the pairs."""
    points = [(part, whole) for part, whole in pairs if whole > 0]
    total = sum(whole for _, whole in points)
    if not total:
        return Estimate(0.0, 0.0, 0.0)
    value, free = sum(part for part, _ in points) / total, len(points) - 1
    if not free:
        return Estimate(value, value, value)
    spread = sum((part - value * whole) ** 2 for part, whole in points) / free
    student = _STUDENT[free - 1] if free <= len(_STUDENT) else 1.96 + 2.6 / free
    half = student * sqrt(spread * len(points)) / total
    return Estimate(value, value - half, value + half)


def foretell(shadow: PoolShadow, now_s: float) -> Forecast:
    """Everything that can be told of a pool now."""
    batches = [*shadow.batches]
    requests = sum(batch.requests for batch in batches)
    told = Forecast(
        shadow.pool,
        "too_early",
        "",
        is_watching=shadow.is_watching,
        watched_s=round(now_s - shadow.since_s, 1),
        counted_s=len(batches) * BATCH_S,
        requests=requests,
        endpoints=shadow.endpoints,
        open_batch=_row(shadow.open_batch, shadow, now_s),
    )
    why = _blind(shadow)
    if why:
        return replace(told, verdict="blind", sentence=f"Nothing is foretold: {why}.")
    if len(batches) < _BATCHES or requests < _REQUESTS:
        wait_s = _wait_s(shadow, requests, now_s)
        return replace(told, wait_s=wait_s, sentence=_early(shadow, wait_s))
    return _tell(shadow, told, batches)


def _blind(shadow: PoolShadow) -> str:
    """Why the pictures would be guesses; empty if they are not."""
    seen = shadow.seen
    if not shadow.endpoints:
        return "the pool has no endpoint that is ready"
    if seen.nameless > _STRANGE * seen.watched:
        return (
            "the proxy does not say who answered. Its filter needs `response_attributes: [upstream.address]`"
            " and `response_header_mode: SEND`, or it must send its access log"
        )
    if seen.strangers > _STRANGE * seen.watched:
        return (
            f"{seen.strangers} of {seen.watched} requests were answered by others than the pool's endpoints, the"
            f" last by {seen.stranger}. If that is a Service's address, Envoy does not know the Pods behind it"
        )
    return ""


def _wait_s(shadow: PoolShadow, requests: int, now_s: float) -> float:
    """For how long to watch yet: until the caches are full, there are enough batches, and requests."""
    if shadow.warm_s is None:
        return max(0.0, shadow.since_s + WARM_S - now_s) + _BATCHES * BATCH_S
    counted_s = max(1.0, now_s - shadow.warm_s)
    rate = (requests + shadow.open_batch.requests) / counted_s
    by_requests_s = (_REQUESTS - requests) / rate - counted_s if rate else BATCH_S
    return max(60.0, _BATCHES * BATCH_S - counted_s, by_requests_s)


def _early(shadow: PoolShadow, wait_s: float) -> str:
    why = "there are too few requests"
    if shadow.warm_s is None:
        why = "the caches are still filling" if shadow.has_requests else "no request has come"
    return f"Too early to say: {why}. Watch for {wait_s / 60:.0f} more minutes."


def _tell(shadow: PoolShadow, told: Forecast, batches: Sequence[PictureBatch]) -> Forecast:
    sides = [_sides(one, shadow) for one in batches]
    served, picked = (_summarize(batches, each) for each in zip(*sides, strict=True))
    saved = estimate((one.work_s - two.work_s, BATCH_S) for one, two in sides)
    sooner = estimate((one.first_s - two.first_s, one.first_s) for one, two in sides)
    verdict, wait_s = _judge(saved, sooner, told.endpoints, told.counted_s)
    measured = shadow.measured
    told = replace(
        told,
        verdict=verdict,
        wait_s=wait_s,
        as_served=served,
        as_picked=picked,
        saved=saved,
        measured_hit_rate=_share(measured.found, measured.prompt),
        measured_mean_s=_share(measured.first_s, measured.answers),
        seen_share=_share(
            sum(one.prompt for one in (*batches, shadow.open_batch)), measured.prompt
        ),
        batches=[row for one in batches if (row := _row(one, shadow, inf))],
    )
    return replace(told, sentence=_say(told))


def _judge(
    saved: Estimate, sooner: Estimate, endpoints: int, counted_s: float
) -> tuple[Verdict, float | None]:
    """The verdict; if it is undecided, for how long to watch yet."""
    bounds = ((saved, _WORTH * endpoints), (sooner, _SOONER))
    if any(figure.low >= bound for figure, bound in bounds):
        return "pays", None
    if all(figure.high < bound for figure, bound in bounds):
        return "does_not_pay", None
    narrower = max(
        (figure.high - figure.value) / max(abs(figure.value - bound), 1e-3 * bound)
        for figure, bound in bounds
    )
    return "undecided", counted_s * max(1.0, min(narrower, 10.0) ** 2 - 1)


def _say(told: Forecast) -> str:
    served, picked, saved = told.as_served, told.as_picked, told.saved
    if served is None or picked is None or saved is None:
        return ""
    start = {
        "pays": "Switching pays" if told.is_watching else "Routing pays",
        "does_not_pay": "Switching does not pay here"
        if told.is_watching
        else "Routing does not pay here",
        "undecided": f"Undecided, watch for {(told.wait_s or 0) / 3600:.1f} more hours",
    }[told.verdict]
    of = "" if told.is_watching else " by least load"
    sentence = (
        f"{start}: {picked.hit_rate.value:.0%} of the prompt tokens would be found in caches instead of"
        f" {served.hit_rate.value:.0%}{of}, which saves {saved.value:.2f} ({saved.low:.2f} to {saved.high:.2f}) of"
        f" {told.endpoints} engines' time; the first token would come after {picked.mean_s.value * 1000:.0f} ms"
        f" instead of {served.mean_s.value * 1000:.0f} ms on average."
    )
    if told.seen_share is not None and told.seen_share < _SEEN:
        sentence += f" Only {told.seen_share:.0%} of the engines' prompts came by here."
    return sentence


def _sides(batch: PictureBatch, shadow: PoolShadow) -> tuple[Side, Side]:
    """As served, and as picked."""
    return (batch.went, batch.other) if shadow.is_watching else (batch.other, batch.went)


def _summarize(batches: Sequence[PictureBatch], sides: Sequence[Side]) -> PictureFigures:
    pairs = [*zip(batches, sides, strict=True)]
    return PictureFigures(
        hit_rate=estimate((one.found, batch.prompt) for batch, one in pairs),
        mean_s=estimate((one.first_s, batch.requests) for batch, one in pairs),
        p99_s=estimate((one.p99_s, 1) for _, one in pairs),
        busiest=estimate((one.busiest_s, one.work_s) for _, one in pairs),
        engines=estimate((one.work_s, BATCH_S) for _, one in pairs),
    )


def _row(batch: PictureBatch, shadow: PoolShadow, now_s: float) -> BatchRow | None:
    if not batch.prompt:
        return None
    served, picked = _sides(batch, shadow)
    seconds = min(BATCH_S, max(1.0, now_s - batch.begun_s))
    return BatchRow(
        batch.begun_s,
        served.found / batch.prompt,
        picked.found / batch.prompt,
        served.work_s / seconds,
        picked.work_s / seconds,
        served.first_s / batch.requests,
        picked.first_s / batch.requests,
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
