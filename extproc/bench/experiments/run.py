"""A run from spec to result: builds the workload, drives the load processes, gathers what they noted."""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import ValidationError
from rich.console import Console

from extproc.bench.experiments.watch import FleetWatch, scrape
from extproc.bench.load.driver import LoadError, drive, start_soon
from extproc.bench.load.generator import LoadShare
from extproc.bench.load.journal import clip, close_journal, find_end, open_journal
from extproc.bench.load.parts import Part, find_clock_offset
from extproc.bench.load.registry import Registry, open_registry
from extproc.bench.load.workload import Workload, build_workload
from extproc.bench.processors.http import Keys, NoToken, name_fault
from extproc.bench.processors.processor import NotJson, Wiring, parse_json
from extproc.bench.progress import Goal, Pace, Progress, watching
from extproc.bench.record import (
    EndpointScrape,
    PartStats,
    Record,
    RunClock,
    RunInfo,
    RunResult,
    Window,
)
from extproc.bench.spec.section import list_faults
from extproc.bench.spec.tree import Spec
from extproc.bench.status_server import StatusServer
from extproc.documents import printable
from extproc.errors import ExtprocError, SettingsError

Run = Callable[[Spec, str], Awaitable[RunResult]]
"""Runs a spec; the text says on the terminal what is running."""


# What clients of other tools are given, and here is put behind the server's address.
_API_PATHS = ("/completions", "/responses", "/messages", "/models")
# A list of models is short, whatever a server sends.
_MOST_BYTES = 1 << 20


class Interrupted(ExtprocError):
    """A run was ended before its first request."""


async def run(
    spec: Spec,
    *,
    progress: Progress,
    stop: asyncio.Event | None = None,
    journal: Path | None = None,
    part: Part | None = None,
) -> RunResult:
    """Runs a benchmark and returns what happened; cancelled, it still ends its processes.

    Set `stop`, and the run ends early: the result says so. `journal` is a file that keeps every
    request as it ends. Of a `part` only its share is offered, from its start on, with the spec's
    processes in each part. Raises `SettingsError` for a spec that cannot be run, `LoadError` if the
    client itself fails, `Interrupted` if it was stopped before it began. What goes wrong at the
    server is in the records.
    """
    stop = stop or asyncio.Event()
    machines = 1 if part is None else part.count
    spec = split_over_machines(spec, machines)
    registry = open_registry(spec)
    await check_target(spec, registry)
    workload = await asyncio.to_thread(build_workload, spec, registry)
    model = await find_model(spec)
    before = await scrape(spec.scrape)
    if stop.is_set():
        raise Interrupted("interrupted before the first request")
    info = _describe(spec, model, workload)
    endpoint = await find_direct(spec.base_url)
    shares = split_schedule(
        spec, model, workload, journal=journal, endpoint=endpoint, machines=machines
    )
    if part is not None:
        shares = shares[part.number :: part.count]
        info = replace(info, parts=(await _describe_part(part, shares, spec.base_url),))
    if journal is not None:
        open_journal(journal, info)
    watch = None if spec.watch is None else FleetWatch(spec.watch, spec.scrape)
    async with _watched(watch):
        try:
            agree = start_soon if part is None else part.agree(stop)
            start_s, done = await drive(shares, find_goal(spec, workload), progress, stop, agree)
        except LoadError as error:
            if journal is not None and part is not None:
                open_journal(
                    journal, replace(info, parts=(replace(info.parts[0], lost=str(error)),))
                )
            raise
    scrapes = tuple(map(EndpointScrape, spec.scrape, before, await scrape(spec.scrape)))
    found = (record for each in done for record in each.records)
    records = tuple(sorted(found, key=lambda record: record.index))
    clients = tuple(each.stats for each in done)
    fleet = () if watch is None else watch.samples(start_s)
    info = replace(info, scrapes=scrapes, fleet=fleet, clients=clients)
    ended = _end(info, find_window(spec, workload, records), records, is_stopped=stop.is_set())
    if journal is not None:
        close_journal(journal, ended)
    return RunResult(ended, records)


async def _describe_part(part: Part, shares: Sequence[LoadShare], base_url: str) -> PartStats:
    return PartStats(
        part.number,
        part.count,
        sum(len(share.starts) for share in shares),
        sum(share.users for share in shares),
        part.start_at,
        await find_clock_offset(base_url),
    )


def _describe(spec: Spec, model: str, workload: Workload) -> RunInfo:
    """The facts of a run that begins now."""
    return RunInfo(
        spec=spec,
        model=model,
        started_at=datetime.now(UTC),
        window=find_window(spec, workload, ()),
        schedule_s=workload.starts_s or (),
        offered_rps=workload.offered_rps,
        prompts=workload.prompts,
    )


def _end(info: RunInfo, window: Window, records: Sequence[Record], *, is_stopped: bool) -> RunInfo:
    # A signal at the very end finds nothing left to break off.
    interrupted_s = max(client.wall_s for client in info.clients) if is_stopped else None
    return replace(
        info,
        duration_s=find_end(records),
        window=window if interrupted_s is None else clip(window, interrupted_s),
        interrupted_s=interrupted_s,
    )


def split_over_machines(spec: Spec, machines: int) -> Spec:
    """The spec with the processes of all machines; raises `SettingsError` if they cannot share its load."""
    if machines == 1:
        return spec
    try:
        tree = spec.model_dump(by_alias=True, exclude_defaults=True)
        return Spec.model_validate({**tree, "processes": spec.processes * machines})
    except ValidationError as error:
        raise SettingsError(list_faults(error)) from None


@asynccontextmanager
async def _watched(watch: FleetWatch | None) -> AsyncIterator[None]:
    """Has the endpoints watched for as long as the context lasts."""
    task = None if watch is None else asyncio.create_task(watch.run())
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def find_goal(spec: Spec, workload: Workload) -> Goal:
    """What ends a run: an open loop its schedule's last answer, a closed one its time or its requests."""
    if spec.traffic.is_closed:
        return Goal(workload.requests, spec.traffic.duration)
    return Goal(requests=workload.total)


def show_runs(
    stop: asyncio.Event, pace: Pace, *, quiet: bool, board: StatusServer | None = None
) -> Run:
    """Returns what runs the runs of an experiment and shows each on the terminal, and on a board."""

    async def run_one(spec: Spec, title: str) -> RunResult:
        pace.begin()
        if board is not None:
            board.begin(title, pace)
        with watching(title, Console(stderr=True), board, quiet=quiet, pace=pace) as progress:
            return await run(spec, progress=progress, stop=stop)

    return run_one


async def check_target(spec: Spec, registry: Registry) -> None:
    """Builds a client as every process will: a spec's faults belong here, before there are processes.

    Raises `SettingsError`.
    """
    target = spec.target
    if spec.base_url.endswith(_API_PATHS):
        raise SettingsError(f"endpoint: {spec.base_url}: leave the path out: the API adds its own")
    if target.api_key_env and target.api_key_env not in os.environ:
        raise SettingsError(f"target.api-key-env: {target.api_key_env} is not set")
    clock = RunClock()
    await registry.client(target.api.name)(Wiring(spec.base_url, target, None, clock)).close()
    try:
        Keys(target, None, clock).get()
    except NoToken as error:
        raise SettingsError(f"target: {error}") from None


async def find_model(spec: Spec) -> str:
    """Asks the server before the schedule does; returns the target's model, else the first of `/v1/models`.

    Raises `LoadError` if nobody is there, or it lists no model. Any answer shows that somebody is.
    """
    url = f"{spec.base_url}/v1/models"
    try:
        timeout = aiohttp.ClientTimeout(total=60)  # for a gateway that wakes a server up
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if spec.target.model:
                return spec.target.model
            listed: Any = parse_json(await _read_some(response.content))
            return printable(str(listed["data"][0]["id"]))
    except aiohttp.ClientConnectorError as error:
        raise LoadError(f"{url}: {name_fault(error)}: no request was sent") from None
    except aiohttp.ClientError as error:
        fault = name_fault(error)
    except (TimeoutError, NotJson, LookupError, TypeError):
        fault = "lists no model"
    if spec.target.model:
        return spec.target.model
    raise LoadError(f"give target.model: {url}: {fault}")


async def _read_some(content: aiohttp.StreamReader) -> bytes:
    """A body, or its first `_MOST_BYTES`."""
    text = b""
    while len(text) < _MOST_BYTES and (data := await content.read(_MOST_BYTES)):
        text += data
    return text


async def find_direct(base_url: str) -> str | None:
    """Returns the target's `host:port` if its `/metrics` are a vLLM's: no gateway has these."""
    (counters,) = await scrape([base_url])
    return urlsplit(base_url).netloc if counters is not None else None


def find_window(spec: Spec, workload: Workload, records: Sequence[Record]) -> Window:
    """Returns the run without warm-up and cool-down: from the schedule, or from what closed users did."""
    last_s = max((record.intended_s for record in records), default=0.0)
    is_counted_out = workload.requests is not None and len(records) >= workload.requests
    duration_s = None if is_counted_out and spec.traffic.is_closed else spec.traffic.duration
    end_s = workload.span_s or duration_s or math.nextafter(last_s, math.inf)
    start_s = spec.traffic.warm_up
    return Window(start_s, max(start_s, end_s - spec.traffic.cool_down))


def split_schedule(
    spec: Spec,
    model: str,
    workload: Workload,
    *,
    journal: Path | None = None,
    endpoint: str | None = None,
    machines: int = 1,
) -> list[LoadShare]:
    """Cuts one schedule over the processes, every n-th start to each; so, too, the concurrency.

    Processes go round `machines`; a closed loop's conversations, too, as machines share no counter.
    """
    count = spec.processes
    numbered = tuple(enumerate(workload.starts_s or ()))
    concurrency = spec.traffic.concurrency
    caps = [
        None if concurrency is None else concurrency // count + (i < concurrency % count)
        for i in range(count)
    ]
    return [
        LoadShare(
            process=i,
            spec=spec,
            model=model,
            conversations=workload.conversations,
            requests=workload.requests,
            starts=numbered[i::count],
            users=(caps[i] or 0) if spec.traffic.is_closed else 0,
            numbers=range(
                i % machines, sys.maxsize if workload.jobs is None else workload.jobs, machines
            ),
            cap=caps[i],
            journal=journal,
            endpoint=endpoint,
        )
        for i in range(count)
    ]
