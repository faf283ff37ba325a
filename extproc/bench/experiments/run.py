"""A run from spec to result: builds the workload, drives the load processes, gathers what they noted."""

import asyncio
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime

import aiohttp

from extproc.bench.experiments.scrape import pair, scrape
from extproc.bench.load.driver import LoadError, drive
from extproc.bench.load.generator import Share
from extproc.bench.load.registry import Registry, build_registry
from extproc.bench.load.workload import Workload, build_workload
from extproc.bench.processors.client import Wiring
from extproc.bench.progress import Progress
from extproc.bench.record import Record, RunClock, RunInfo, RunResult, Window
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError


async def run(spec: Spec, *, progress: Progress) -> RunResult:
    """Runs a benchmark and returns what happened; cancelled, it still ends its processes.

    Raises `SettingsError` for a spec that cannot be run, `LoadError` if the client itself fails. What
    goes wrong at the server is in the records.
    """
    registry = build_registry(spec.plugins)
    await _check_target(spec, registry)
    workload = await asyncio.to_thread(build_workload, spec, registry)
    model = spec.target.model or await find_model(spec.base_url)
    before = await scrape(spec.scrape)
    started_at = datetime.now(UTC)
    done = await drive(share_out(spec, model, workload), workload.jobs, progress)
    scrapes = pair(spec.scrape, before, await scrape(spec.scrape))
    records = tuple(sorted((r for d in done for r in d.records), key=lambda record: record.index))
    duration_s = max((r.end_s for r in records if r.end_s is not None), default=0.0)
    info = RunInfo(
        spec=spec,
        model=model,
        started_at=started_at,
        duration_s=duration_s,
        window=find_window(spec, workload, records),
        schedule_s=workload.starts_s or (),
        offered_rps=workload.offered_rps,
        clients=tuple(d.stats for d in done),
        scrapes=scrapes,
    )
    return RunResult(info, records)


async def _check_target(spec: Spec, registry: Registry) -> None:
    """Builds a client as every process will: a spec's faults belong here, before there are processes."""
    target = spec.target
    if target.api_key_env and target.api_key_env not in os.environ:
        raise SettingsError(f"target.api-key-env: {target.api_key_env} is not set")
    wiring = Wiring(spec.base_url, target, None, RunClock())
    await registry.client(target.api.name)(wiring).close()


async def find_model(base_url: str) -> str:
    """Returns the first model of `/v1/models`; raises `LoadError` if there is none."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{base_url}/v1/models") as response:
            models = (await response.json())["data"]
            return str(models[0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise LoadError(f"give target.model: {base_url}/v1/models tells none ({error!r})") from None


def find_window(spec: Spec, workload: Workload, records: Sequence[Record]) -> Window:
    """Returns the run without warm-up and cool-down: from the schedule, or from what closed users did."""
    last_s = max((record.intended_s for record in records), default=0.0)
    end_s = workload.span_s or spec.traffic.duration or math.nextafter(last_s, math.inf)
    start_s = spec.traffic.warm_up
    return Window(start_s, max(start_s, end_s - spec.traffic.cool_down))


def share_out(spec: Spec, model: str, workload: Workload) -> list[Share]:
    """Cuts one schedule over the processes, every n-th start to each; so, too, the concurrency."""
    count = spec.processes
    numbered = tuple(enumerate(workload.starts_s or ()))
    concurrency = spec.traffic.concurrency
    caps = [None if concurrency is None else _part(concurrency, count, i) for i in range(count)]
    if concurrency is not None and concurrency < count:
        raise SettingsError(f"{count} processes cannot share a concurrency of {concurrency}")
    return [
        Share(
            process=i,
            spec=spec,
            model=model,
            conversations=workload.conversations,
            requests=workload.requests,
            starts=numbered[i::count],
            users=(caps[i] or 0) if spec.traffic.is_closed else 0,
            cap=caps[i],
        )
        for i in range(count)
    ]


def _part(whole: int, count: int, i: int) -> int:
    return whole // count + (i < whole % count)
