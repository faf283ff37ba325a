"""What a request costs through a real Envoy: CPU of the service and of Envoy, rate, latency.

Arms: nobody asked, handlers that do nothing on two transports, the service on both of its transports with
bodies and without (round_robin), and the first release. A closed loop drives one arm after the other, in
rounds; a round yields one ratio. Then the same with one request at a time.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.benchmarks.gateway_arms import (
    ALONE,
    FIRST,
    FIRST_BODILESS,
    GRPCIO,
    GRPCIO_BODILESS,
    IDLE,
    IDLE_NATIVE,
    NATIVE,
    NATIVE_BODILESS,
    SERVERS,
    Arm,
    Round,
    measure,
    run_arms,
)

# Figure, arm, reference arm, field, what was aimed at.
RATIOS = (
    ("service CPU", NATIVE, IDLE, "server_us", "<= 0.35, then 0.22"),
    ("service CPU", NATIVE_BODILESS, IDLE, "server_us", "<= 0.20, then 0.12"),
    ("service CPU", IDLE_NATIVE, IDLE, "server_us", "<= 0.12"),
    ("service CPU", GRPCIO, IDLE, "server_us", ""),
    ("service CPU", GRPCIO_BODILESS, IDLE, "server_us", ""),
    ("service CPU", NATIVE, FIRST, "server_us", ""),
    ("requests/s", NATIVE, FIRST, "requests_per_s", ">= 2.5"),
    ("requests/s", NATIVE_BODILESS, FIRST_BODILESS, "requests_per_s", ""),
    ("requests/s", NATIVE, ALONE, "requests_per_s", ""),
)

Figure = tuple[str, list[float], str]


def of(rounds: Sequence[Round], arm: str, field: str) -> list[float]:
    return [float(getattr(one, field)) for one in rounds if one.arm == arm]


def loaded_figures(rounds: Sequence[Round]) -> Iterator[Figure]:
    arms = list(dict.fromkeys(one.arm for one in rounds))
    for arm in arms:
        yield f"{arm}: requests/s", of(rounds, arm, "requests_per_s"), "req/s"
        yield f"{arm}: Envoy CPU", of(rounds, arm, "envoy_us"), "us/req"
        if arm != ALONE:
            yield f"{arm}: server CPU", of(rounds, arm, "server_us"), "us/req"
    for name, arm, reference, field, aim in RATIOS:
        if {arm, reference} <= set(arms):
            pairs = zip(of(rounds, arm, field), of(rounds, reference, field), strict=True)
            text = f"{name}, {arm} / {reference}" + (f" (aim {aim})" if aim else "")
            yield text, [one / other for one, other in pairs], ""


def lone_figures(rounds: Sequence[Round]) -> Iterator[Figure]:
    alone = of(rounds, ALONE, "mean_ms")
    for arm in dict.fromkeys(one.arm for one in rounds):
        for field, name in (("mean_ms", "mean"), ("p50_ms", "p50"), ("p99_ms", "p99")):
            yield f"{arm}, one at a time: {name}", of(rounds, arm, field), "ms"
        if arm != ALONE:
            added = [mine - envoys for mine, envoys in zip(of(rounds, arm, "mean_ms"), alone, strict=True)]
            aim = " (aim <= 0.9)" if arm == NATIVE else ""
            yield f"{arm}, one at a time: added to Envoy alone{aim}", added, "ms"
            yield f"{arm}, one at a time: server CPU", of(rounds, arm, "server_us"), "us/req"


def measure_all(arms: Sequence[Arm], rounds: int, total: int, clients: int) -> list[Round]:
    for arm in arms:
        measure(arm, total // 4, clients)  # warm-up
    return [
        measure(arm, total, clients)
        for number in range(rounds)
        for arm in (arms if number % 2 == 0 else list(reversed(arms)))
    ]


def show(title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=title)
    for heading in ("", "min", "median", "max", "unit"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values, unit in figures:
        table.add_row(name, *(f"{value:,.2f}" for value in (min(values), median(values), max(values))), unit)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4_000, help="per arm and round")
    parser.add_argument(
        "--clients", type=int, default=64, help="connections, each with one request at a time"
    )
    parser.add_argument("--arms", help="names between semicolons; else all")
    arguments = parser.parse_args()
    names = arguments.arms.split(";") if arguments.arms else list(SERVERS)
    with tempfile.TemporaryDirectory() as directory, run_arms(Path(directory), names) as arms:
        loaded = measure_all(arms, arguments.rounds, arguments.requests, arguments.clients)
        lone = measure_all(arms, arguments.rounds, arguments.requests // 8, 1)
    figures = [*loaded_figures(loaded), *lone_figures(lone)]
    show("a request through Envoy", figures)
    if arguments.json:
        values = {
            name: {"min": min(v), "median": median(v), "max": max(v), "unit": u} for name, v, u in figures
        }
        rounds = {"loaded": [asdict(one) for one in loaded], "lone": [asdict(one) for one in lone]}
        report = {"benchmark": "gateway", "figures": values, "rounds": rounds}
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
