"""Real gateways that share their picks, that do not, and one alone: hit rate and TTFT of the same sessions.

Workload C as the fleet draws it, in the engines' time times `--speed`, through real Envoys and
services to simulated endpoints; each turn asks a gateway at random. `python -m
tests.benchmarks.bench_gateways`.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from extproc.bench.measure.words import markdown_table
from extproc.simulator.fleet.cell import MatrixCell
from tests.benchmarks.talk import Talk, Turn, plan_talk
from tests.slow.share.proxies import LONG_S, run_proxies
from tests.stack.client import connect
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.stack.simulators import Simulators

ENDPOINTS: Final = 4
HEADER: Final = ("gateways", "requests", "hit rate", "TTFT mean, ms", "p50", "p99", "mean to one")


# So many Envoys with so many services each.
ARMS: Final[dict[str, dict[str, Any]]] = {
    "one": {"gateways": 1},
    "two, mesh": {"gateways": 2, "carrier": "mesh"},
    "two, NATS": {"gateways": 2, "carrier": "nats"},
    "two with two services each, mesh": {"gateways": 2, "services": 2, "carrier": "mesh"},
    "two with two services each, NATS": {"gateways": 2, "services": 2, "carrier": "nats"},
    "two that do not share": {"gateways": 2},
    "two with two services each that do not share": {"gateways": 2, "services": 2},
}


def plan(options: argparse.Namespace) -> list[dict[str, Any]]:
    asked = {name: getattr(options, name) for name in ("load", "warmup_s", "measured_s", "seed")}
    cell = MatrixCell(arm="prefix_cache", workload="C", endpoints=ENDPOINTS, **asked)
    return plan_talk(cell)


async def talk(
    urls: Sequence[str], planned: Sequence[dict[str, Any]], options: argparse.Namespace
) -> Talk:
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(connect(url)) for url in urls]
        talking = Talk(sessions, options.speed, options.seed)
        await talking.ask_all(planned, options.warmup_s + options.measured_s)
    return talking


def measure_gateways(
    arm: dict[str, Any], planned: Sequence[dict[str, Any]], options: argparse.Namespace
) -> list[Turn]:
    """Returns the turns of the measured time."""
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        with Simulators(
            directory, free_ports(ENDPOINTS), "--speed", str(options.speed)
        ) as simulators:
            simulators.wait_until(simulators.is_ready, LONG_S)
            pools = [pool(simulators.addresses, {"name": "prefix_cache"})]
            with run_proxies(directory, pools, simulators.ports, **arm) as proxies:
                talking = asyncio.run(
                    talk([proxy.gateway.url for proxy in proxies], planned, options)
                )
        if late := simulators.log.read_text().count("the simulation is"):
            print(f"endpoints were {late} times late for their own time", file=sys.stderr)
    if talking.failed:
        print(f"sessions failed: {dict(talking.failed)}", file=sys.stderr)
    return [turn for turn in talking.turns if turn.at_s >= options.warmup_s]


def describe_gateways(measured: dict[str, list[Turn]]) -> Iterator[Sequence[str]]:
    base_s = mean(turn.ttft_s for turn in next(iter(measured.values())))
    for name, turns in measured.items():
        ttft_s = [turn.ttft_s for turn in turns]
        hits = sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)
        cuts = quantiles(ttft_s, n=100)
        figures = [f"{1000 * value:.0f}" for value in (mean(ttft_s), cuts[49], cuts[98])]
        yield name, str(len(turns)), f"{hits:.3f}", *figures, f"{mean(ttft_s) / base_s:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=[*ARMS], help="the first is the base"
    )
    parser.add_argument("--load", type=float, default=0.5, help="share of the workload's capacity")
    parser.add_argument("--speed", type=float, default=2.0, help="of the engines' time")
    parser.add_argument("--warmup-s", type=float, default=160.0, help="of the engines' time")
    parser.add_argument("--measured-s", type=float, default=200.0, help="of the engines' time")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    planned = plan(options)
    measured = {}
    for name in options.arms:
        measured[name] = measure_gateways(ARMS[name], planned, options)
        print(f"{name}: {len(measured[name])} requests", file=sys.stderr)
    table = [*describe_gateways(measured)]
    print(markdown_table(HEADER, table), end="")
    if options.json is not None:
        options.json.write_bytes(msgspec.json.encode([HEADER, *table]))


if __name__ == "__main__":
    main()
