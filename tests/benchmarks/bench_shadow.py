"""Foretold against simulated, in virtual time: `python -m tests.benchmarks.bench_shadow [WORKLOAD …]`.

Each workload is run round robin, its requests are shown to two pictures, and it is run again with
prefix_cache. Prints the table of docs/why/shadow.md. About ten seconds a workload.
"""

import sys
from random import Random

from extproc.calibrate.fit import USUAL_PROMPT
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import ClockAndRandom, EngineFigures
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.shadow.picture import Picture
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.fleet.session import write_body
from extproc.simulator.fleet.summary import summarize
from extproc.simulator.fleet.workloads import WORKLOADS

COLUMNS = (
    *("workload", "hits as served: foretold, simulated", "hits as picked", "prefill saved"),
    *("TTFT as served, ms", "TTFT as picked, ms"),
)


def foretell_cell(workload: str, load: float = 0.5) -> str:
    """One row: what the pictures say of a run round robin, and what the runs say."""
    went = MatrixCell(arm="round_robin", workload=workload, load=load).simulate()
    served = summarize(went)
    picked = MatrixCell(arm="prefix_cache", workload=workload, load=load).run()
    profile = went.setup.profiles[0]
    attention_ms = profile.attention_ns * USUAL_PROMPT / 2 / 1e6
    engine = {
        "prefill_ms_per_token": profile.prefill_ms_per_token + attention_ms,
        "step_ms": profile.base_ms,
        "kv_tokens": profile.kv_tokens,
        "context_us_per_token": profile.kv_us_per_ctx_token,
    }
    reader = PrefixCache(ClockAndRandom(Random(0), float), engine=engine)
    pool, names = Pool("x", reader), [node.name for node in went.nodes]
    pool.replace([Endpoint(name, f"10.0.0.{place}:80") for place, name in enumerate(names)])
    picker = Picker([Route(pool)])
    pictures = [Picture(Random(seed), {"engine": engine}) for seed in (1, 2)]
    size = tokens = 0
    found, work, firsts = [0, 0], [0.0, 0.0], [0.0, 0.0]
    count = 0
    for flight in sorted(went.flights, key=lambda one: one.sent_at):
        chain, _ = picker.find(_query(flight)).reading.content()
        if flight.ended_at < 0 or chain is None:
            continue
        size, tokens = size + chain.size, tokens + flight.plan.prompt_tokens
        per_token = size / tokens
        room = dict.fromkeys(names, int(profile.kv_tokens * per_token))
        figures = EngineFigures(
            engine["prefill_ms_per_token"] / per_token, profile.base_ms, per_token, {}, room
        )
        for picture in pictures:
            picture.follow(pool.snapshot, figures)
        one = pictures[0].place(flight.sent_at, chain, flight.endpoint)
        ended_s = max(one.first_s, flight.ended_at)
        pictures[0].end(one, ended_s)
        two = pictures[1].place(flight.sent_at, chain)
        pictures[1].end(two, two.first_s + ended_s - one.first_s)
        if served.start_s <= flight.sent_at <= served.end_s:
            count += chain.size
            for place, placed in enumerate((one, two)):
                found[place] += placed.found
                work[place] += placed.work_ms
                firsts[place] += placed.first_s - flight.sent_at
    hits = [f"{part / count:.1%}" for part in found]
    means = [f"{1000 * part / served.requests:.0f}" for part in firsts]
    saved = 1 - (1 - picked.hit_rate) / (1 - served.hit_rate)
    return (
        f"| `{workload}` | {hits[0]}, {served.hit_rate:.1%} | {hits[1]}, {picked.hit_rate:.1%} "
        f"| {1 - work[1] / work[0]:.0%}, {saved:.0%} "
        f"| {means[0]}, {served.ttft.mean_ms:.0f} | {means[1]}, {picked.ttft.mean_ms:.0f} |"
    )


def _query(flight: Flight) -> Query:
    return Query("POST", flight.plan.path, {}, write_body(flight.plan))


if __name__ == "__main__":
    print(f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|", sep="\n")
    for name in sys.argv[1:] or WORKLOADS:
        print(foretell_cell(name), flush=True)
