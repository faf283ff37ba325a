"""What hearing of a request costs: an access log message read, judged and counted, per request.

Reference in the same run: the pick of that request. `python -m tests.benchmarks.bench_feedback`.
"""

import gc
import random
from collections.abc import Callable, Sequence
from time import monotonic

from envoy_data_plane.envoy.data.accesslog.v3 import HttpAccessLogEntry

from extproc.router.feedback import access_log_pb2 as pb
from extproc.router.feedback.access_log import METHOD, AccessLogs
from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.outcome import Exchange, Outcome, Verdict, outcomes
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from tests.benchmarks.bench_pick import endpoints, picks
from tests.benchmarks.report import Row, report, time_us
from tests.router.feedback.access_logs import Client, entry, message

# What Envoy's 16 KiB buffer holds of the entries that a chat makes.
BATCH = 24
ENDPOINTS = 100
OUTSIDE = Outside(random.Random(1), monotonic)


def batch(entries: Sequence[HttpAccessLogEntry]) -> bytes:
    return message(*entries)


def answers() -> bytes:
    known = endpoints(ENDPOINTS)
    told = tuple(endpoint.address for endpoint in known[:3])
    return batch(
        [entry(address=(known[n].ip, known[n].port), destinations=told, pick="f" * 16) for n in range(BATCH)]
    )


def build_desk() -> PoolFeedback:
    rng = random.Random(1)
    cooling = Cooling(Rules(), clock=monotonic, rng=rng)
    pool = Pool("llama", PrefixHash(Outside(rng, monotonic)), gate=cooling)
    pool.replace(endpoints(ENDPOINTS))
    return PoolFeedback(pool, cooling)


def hearing(desk: PoolFeedback) -> Callable[[], None]:
    def take(exchange: Exchange) -> None:
        for outcome in outcomes(exchange, 0.0):
            desk.observe(outcome)

    stream = AccessLogs(take, lambda _: None).open(Client())
    log = answers()

    return lambda: stream.on_message(log)


def parsing() -> Callable[[], object]:
    log = answers()

    return lambda: pb.StreamAccessLogsMessage.FromString(log)


def cooled(desk: PoolFeedback) -> PoolFeedback:
    name = desk.pool.snapshot.names[-1]
    for _ in range(3):
        desk.cooling.observe(name, Outcome("", Verdict.FAILED))
    return desk


def picking(desk: PoolFeedback) -> Callable[[], None]:
    pool, reading = desk.pool, PrefixHash(OUTSIDE).reading(7)

    return lambda: pool.pick(reading).release()


def main() -> None:
    gc.freeze()  # as the service does when it has started
    each = [sample / BATCH for sample in time_us(hearing(build_desk()), 50)]
    native = [sample / BATCH for sample in time_us(parsing(), 50)]
    rows = [
        Row("the whole pick, 2 KB body, 100 endpoints", time_us(picks(100)), "µs"),
        Row(f"hear of one request ({METHOD.rpartition('/')[2]}, {BATCH} a message)", each, "µs"),
        Row("  of it: the native parser", native, "µs"),
        Row("pool.pick and release, 100 endpoints, nobody cools", time_us(picking(build_desk())), "µs"),
        Row("the same while one cools", time_us(picking(cooled(build_desk()))), "µs"),
    ]
    report("feedback", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
