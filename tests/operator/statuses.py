"""Benchmarks in every way to be, and what the operator serves of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.status_server import RunStatus
from extproc.operator.watches import WatchHealth
from extproc.operator.web import build_web
from tests.hosting import hosting
from tests.operator.world import SPEC, World, brief_json

Body = dict[str, Any]
EVIL = "<img src=x onerror=alert(1)>\"'&"
ORDER = ("namespace", "benchmark", "mode", "model", "phase", "figure", "resource")


Bodies = Mapping[tuple[str, str], Body]


def benchmark_named(world: World, name: str, namespace: str = "default") -> Body:
    body = world.body()
    return body | {"metadata": body["metadata"] | {"name": name, "namespace": namespace}}


def nightly(rates: list[float], *, words: str = "", model: str = "llama") -> World:
    """A Benchmark that ran once for each rate, an hour apart; then, with `words`, once more to that end."""
    spec = {**SPEC, "schedule": "0 * * * *", "target": {"model": model}}
    world = World(spec=spec)
    ends = [
        brief_json(req_per_s=r, ttft_median_ms=2000 / r, ttft_p95_ms=5000 / r, failed=0)
        for r in rates
    ]
    for line in [*ends, *([words] if words else [])]:
        world.after(hours=1)
        world.settle()
        world.end(line)
        world.settle()
    return world


def running_world() -> World:
    world = World()
    world.settle()
    (leader,) = world.active()
    world.notices[leader.run] = RunStatus("b", "45%", 450, 1000)
    world.settle()
    return world


def searching() -> World:
    world = running_world()
    (leader,) = world.active()
    world.notices[leader.run] = RunStatus("3.38 req/s", "run 3 of at most 12")
    world.settle()
    return world


def everything() -> dict[tuple[str, str], Body]:
    """A Benchmark in every way to be; two of one name; one that nobody has looked at."""
    refused = World(spec={**SPEC, "schedule": "never"})
    refused.settle()
    invalid = brief_json(
        is_good=False, title="invalid: partial", faults=["interrupted after 3.0 s"]
    )
    bodies = [
        benchmark_named(nightly([10, 10.2, 9.9, 10.1]), "chat"),
        benchmark_named(nightly([10, 10.2, 9.9, 5]), "slower"),
        benchmark_named(nightly([9], words=invalid), "cut-short", "other"),
        benchmark_named(
            nightly([8, 8], model=EVIL, words=brief_json(title=EVIL, faults=[EVIL])), "hostile"
        ),
        benchmark_named(running_world(), "chat", "other"),
        benchmark_named(refused, "refused"),
        benchmark_named(World(), "new"),
    ]
    return {(body["metadata"]["namespace"], body["metadata"]["name"]): body for body in bodies}


@asynccontextmanager
async def serving_bodies(
    bodies: Bodies, reports: Path | None = None, *healths: WatchHealth
) -> AsyncIterator[str]:
    async with hosting(build_web(bodies, healths, reports)) as address:
        yield f"http://{address}"


async def fetch_text(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def scrape_operator(bodies: Bodies, *healths: WatchHealth) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and its labels' values."""
    async with serving_bodies(bodies, None, *healths) as url:
        _, text = await fetch_text(f"{url}/metrics")
    return {
        (
            sample.name,
            *(sample.labels[name] for name in ORDER if name in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def write_report(root: Path, body: Body, run: str) -> Path:
    metadata = body["metadata"]
    claim = body["status"]["report"].partition("/")[0]
    folder = root.joinpath(metadata["namespace"], claim, metadata["name"], run)
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<h1>the report</h1><script>alert(1)</script>")
    return folder
