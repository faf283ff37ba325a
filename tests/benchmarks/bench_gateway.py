"""What a request costs through a real Envoy: CPU of the service and of Envoy, rate, latency.

Arms: nobody asked, handlers that do nothing on two transports, the service with bodies and without
(round_robin), and the first release. A closed loop drives one arm after the other, in rounds. Then the same
with one request at a time.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.gateway_arms import ALONE, IDLE, SERVERS, Arm, Round, measure, run_arms
from tests.benchmarks.report import Row, report

LOADED = (("requests_per_s", "req/s"), ("envoy_us", "µs/req"), ("server_us", "µs/req"))
LONE = (("mean_ms", "ms"), ("p50_ms", "ms"), ("p99_ms", "ms"), ("server_us", "µs/req"))


def measure_all(arms: Sequence[Arm], rounds: int, total: int, clients: int) -> list[Round]:
    for arm in arms:
        measure(arm, total // 4, clients)  # warm-up
    return [
        measure(arm, total, clients)
        for number in range(rounds)
        for arm in (arms if number % 2 == 0 else list(reversed(arms)))
    ]


def rows_of(rounds: Sequence[Round], fields: Sequence[tuple[str, str]], how: str) -> list[Row]:
    return [
        Row(f"{arm}{how}: {field}", [getattr(one, field) for one in rounds if one.arm == arm], unit)
        for arm in dict.fromkeys(one.arm for one in rounds)
        for field, unit in fields
        if (arm, field) != (ALONE, "server_us")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4_000, help="per arm and round")
    parser.add_argument("--clients", type=int, default=64, help="each with one request at a time")
    options, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory, run_arms(Path(directory), list(SERVERS)) as arms:
        loaded = measure_all(arms, options.rounds, options.requests, options.clients)
        lone = measure_all(arms, options.rounds, options.requests // 8, 1)
    rows = [*rows_of(loaded, LOADED, ""), *rows_of(lone, LONE, ", one at a time")]
    report("a request through Envoy", rows, reference=f"{IDLE}: server_us")


if __name__ == "__main__":
    main()
