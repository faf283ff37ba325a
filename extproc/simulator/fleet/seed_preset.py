"""KubeAI's published benchmarks, simulated and printed beside what was published; at the end what they claim.

A gain is told in the documents' arithmetic, (old - new) / new: 39.16 s and 0.24 s are "164 times".
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from operator import attrgetter
from statistics import fmean, median
from types import MappingProxyType
from typing import Final

from msgspec import Struct, convert

from extproc.simulator.engine.profiles import Profile
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.report import flatten, lay_out
from extproc.simulator.fleet.summary import Summary, summarize
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import draw_sessions

PROFILE: Final = "l4-llama8b-fp8-fitted"
CEILING: Final = 83.0
"""What the old client can do per second at best; over a whole run, ramp and tail included, about 75."""

NOTE: Final = (
    "round_robin went through kube-proxy, which draws an endpoint per connection: simulated by `random`. "
    f"The ceiling: a client that can do {CEILING:.0f} requests per second, about 75 with ramp and tail."
)

_REQUESTS: Final = 8000
_ARMS: Final = {"round_robin": "random", "least_load": "least_load", "prefix_hash": "prefix_hash"}
_HEAD = ("cap, rate, strategy", "ceiling", "total tok/s", "published", "ratio")
_LATENCY_HEAD = ("TTFT mean", "published", "ratio", "ITL median", "published", "ratio", "hit rate")


@dataclass(frozen=True, slots=True)
class Published:
    """One cell of the published table."""

    cap: int
    rate: float
    strategy: str
    total_tok_per_s: float
    ttft_mean_ms: float
    itl_mean_ms: float
    itl_median_ms: float


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """A published cell and its simulation, with or without the client's ceiling."""

    published: Published
    has_ceiling: bool
    simulated: Summary


def read_published_cells() -> list[Published]:
    """Reads the 12 cells that come with the package."""
    text = files("extproc.simulator.fleet").joinpath("kubeai-8xl4.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    named = ({**row, "cap": row["max_concurrency"], "rate": row["request_rate"]} for row in rows)
    return [convert(row, Published, strict=False) for row in named]


def simulate_cells(profile: Profile, seed: int, *, has_ceiling: bool) -> Iterator[PublishedCell]:
    """Simulates all cells from one workload, with the same constants for each."""
    sessions = draw_sessions("replay", Demand(_REQUESTS), seed)
    for published in read_published_cells():
        traffic = Traffic(
            rate=published.rate, cap=published.cap, ceiling=CEILING if has_ceiling else None
        )
        routing = Routing(_ARMS[published.strategy])
        run = simulate_fleet(Setup([profile], 8, routing, traffic, seed=seed), sessions)
        # vLLM's script reports all of a run, its first request and its last.
        summary = summarize(run, published.strategy, is_whole=True)
        yield PublishedCell(published, has_ceiling, summary)


def render_cells(cells: Sequence[PublishedCell]) -> str:
    """Lays out the cells: simulated, published, and simulated over published; latencies in milliseconds.

    Of several seeds it shows the median.
    """
    groups: dict[tuple[Published, bool], list[PublishedCell]] = {}
    for cell in cells:
        groups.setdefault((cell.published, cell.has_ceiling), []).append(cell)
    return lay_out([(*_HEAD, *_LATENCY_HEAD), *map(_row, groups.values())])


def _row(seeds: Sequence[PublishedCell]) -> Sequence[str]:
    published, runs = seeds[0].published, [cell.simulated for cell in seeds]
    return (
        f"{published.cap}, {published.rate:.0f}, {published.strategy}",
        "yes" if seeds[0].has_ceiling else "no",
        *_compare((run.total_tok_per_s for run in runs), published.total_tok_per_s),
        *_compare((run.ttft.mean_ms for run in runs), published.ttft_mean_ms),
        *_compare((run.itl.median_ms for run in runs), published.itl_median_ms),
        f"{median(run.hit_rate for run in runs):.2f}",
    )


def _compare(simulated: Iterable[float], published: float) -> tuple[str, str, str]:
    value = median(simulated)
    return f"{value:.0f}", *(
        (f"{published:.0f}", f"{value / published:.2f}") if published else ("-", "-")
    )


_FIGURES = attrgetter("ttft.mean_ms", "total_tok_per_s", "itl.mean_ms")
_PUBLISHED_FIGURES = attrgetter("ttft_mean_ms", "total_tok_per_s", "itl_mean_ms")


def tell_cells(cells: Sequence[PublishedCell]) -> str:
    """A line for each load: what prefix_hash gains over least_load here (medians of the seeds), and as published."""
    loads: dict[str, dict[str, list[PublishedCell]]] = {}
    for cell in cells:
        client = "their client" if cell.has_ceiling else "a client on time"
        arms = loads.setdefault(f"{cell.published.cap:,} in flight, {client}", {})
        arms.setdefault(cell.published.strategy, []).append(cell)
    return "".join(
        f"{load}: prefix_hash against least_load: {_tell_gains(arms)}\n"
        for load, arms in loads.items()
    )


def _tell_gains(arms: Mapping[str, Sequence[PublishedCell]]) -> str:
    pair = [arms["least_load"], arms["prefix_hash"]]
    ours = [map(median, zip(*(_FIGURES(c.simulated) for c in arm), strict=True)) for arm in pair]
    theirs = [_PUBLISHED_FIGURES(arm[0].published) for arm in pair]
    told = []
    for (late_ms, few, long_ms), (soon_ms, many, short_ms) in (ours, theirs):
        ttft, itl = late_ms / soon_ms - 1, long_ms / short_ms - 1
        told.append(
            f"TTFT {ttft:.3g} times sooner, {many / few - 1:+.0%} tokens/s, ITL {itl:.0%} better"
        )
    return "; published ".join(told)


def list_rows(cells: Iterable[PublishedCell]) -> list[Mapping[str, object]]:
    """The simulated cells in the published columns, a row per seed: what `tests.benchmarks.published` draws."""
    return [_row_of(cell, cell.simulated) for cell in cells]


def _row_of(cell: PublishedCell, run: Summary) -> Mapping[str, object]:
    duration_s = run.end_s - run.start_s
    return {
        **flatten(run),
        "max_concurrency": cell.published.cap,
        "request_rate": cell.published.rate,
        "strategy": cell.published.strategy,
        "requests": run.requests - run.failed,
        "duration_s": duration_s,
        "input_tokens": round(run.total_tok_per_s * duration_s)
        - round(run.output_tok_per_s * duration_s),
        "output_tokens": round(run.output_tok_per_s * duration_s),
        "req_per_s": run.served_rps,
        "dataset": "published client's ceiling" if cell.has_ceiling else "client on time",
        "repeat": run.seed,
        # Whether a client with a ceiling was the limit is for the reader of its means to find.
        "verdict": "" if cell.has_ceiling else "valid",
    }


class ThreadsPreset(Struct, frozen=True):
    """KubeAI's k6 threads: so many users at a time; `published` has the mean time per token, milliseconds."""

    profile: str
    endpoints: int
    users: int
    published: Mapping[str, float]


THREADS: Final[Mapping[str, ThreadsPreset]] = MappingProxyType(
    {
        "seed-002": ThreadsPreset(
            "h100-llama70b-fp8-20k", 8, 320, {"least_load": 405.39, "prefix_hash": 361.07}
        ),
        "seed-004": ThreadsPreset(
            "l4-llama8b-fp8-22k", 2, 80, {"least_load": 712.11, "prefix_hash": 469.34}
        ),
    }
)
_THREADS_REQUESTS: Final = 7340


def render_threads(preset: ThreadsPreset, profile: Profile, seeds: Sequence[int]) -> str:
    """Lays out the time per token of all requests as k6 counts it: each answer's time over its tokens.

    The second of two runs is published, with caches that are warm; here the first fifth is left
    out.
    """
    found: dict[str, list[float]] = {
        strategy: [] for strategy in (*preset.published, "prefix_cache")
    }
    for strategy, seed in product(found, seeds):
        sessions = draw_sessions("k6-chat", Demand(_THREADS_REQUESTS), seed)
        setup = Setup(
            [profile], preset.endpoints, Routing(strategy), Traffic(users=preset.users), seed=seed
        )
        flights = [
            flight for flight in simulate_fleet(setup, sessions).flights if flight.is_answered
        ]
        times = [
            1000 * flight.e2e_s / flight.plan.output_tokens
            for flight in flights[len(flights) // 5 :]
        ]
        found[strategy].append(fmean(times))
    rows = [
        (name, *_compare(each, preset.published.get(name, 0.0)), f"{min(each):.0f}-{max(each):.0f}")
        for name, each in found.items()
    ]
    table = lay_out([("strategy", "ms per token", "published", "ratio", "range"), *rows])
    return table + "".join(_tell_threads(preset, found))


def _tell_threads(preset: ThreadsPreset, found: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """A line for each strategy: its time per token against that of least_load, here and as published."""
    then, told = found["least_load"], preset.published
    for name, now in list(found.items())[1:]:
        changes = [new / old - 1 for old, new in zip(then, now, strict=True)]
        published = (
            f"; published {told[name] / told['least_load'] - 1:+.0%}" if name in told else ""
        )
        yield (
            f"{name} against least_load: {median(now) / median(then) - 1:+.0%} time per token, "
            f"{min(changes):+.0%} to {max(changes):+.0%} by seed{published}\n"
        )
