"""What hearing of a request costs: an access log message read, judged and counted, per request.

Reference in the same run: the pick of that request. `python -m tests.benchmarks.bench_feedback`.
"""

import gc
import random
from collections.abc import Callable
from time import monotonic

from extproc.router.feedback.access_log import METHOD, AccessLogs
from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.outcome import Exchange, outcomes
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


def answers() -> bytes:
    known = endpoints(ENDPOINTS)
    told = tuple(endpoint.address for endpoint in known[:3])
    each = [entry(address=(one.ip, one.port), destinations=told, pick="f" * 16) for one in known[:BATCH]]
    return message(*each)


def build_desk() -> PoolFeedback:
    rng = random.Random(1)
    cooling = Cooling(Rules(), clock=monotonic, rng=rng)
    pool = Pool("llama", PrefixHash(Outside(rng, monotonic)), gate=cooling)
    pool.replace(endpoints(ENDPOINTS))
    return PoolFeedback(pool, cooling)


def hearing(feedback: PoolFeedback) -> Callable[[], None]:
    def take(exchange: Exchange) -> None:
        for outcome in outcomes(exchange, 0.0):
            feedback.observe(outcome)

    stream = AccessLogs(take, lambda _: None).open(Client())
    log = answers()

    return lambda: stream.on_message(log)


def main() -> None:
    gc.freeze()  # as the service does when it has started
    each = [sample / BATCH for sample in time_us(hearing(build_desk()), 50)]
    rows = [
        Row("the whole pick, 2 KB body, 100 endpoints", time_us(picks(100)), "µs"),
        Row(f"hear of one request ({METHOD.rpartition('/')[2]}, {BATCH} a message)", each, "µs"),
    ]
    report("feedback", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
