"""What there is of a Benchmark: Jobs, Pods and ConfigMaps as the API server has them; what Pods report.

Everything is read anew for each look, Jobs before Pods: a Job that says that it ended has Pods that
say why. The Pods of a run have no credentials to write to the API server: the operator fetches
their progress.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import aiohttp

from extproc.bench.status_server import RunStatus, decode_status
from extproc.operator.calls import KubeCalls
from extproc.operator.objects import (
    BENCHMARK_LABEL,
    BOARD_PORT,
    DUE_ANNOTATION,
    MAIN,
    PART_LABEL,
    RUN_LABEL,
    Object,
    is_owned,
)
from extproc.operator.resource import (
    LONGEST_NAME,
    Benchmark,
    SpecRefused,
    parse_benchmark,
    read_time,
)
from extproc.operator.router import SWITCHED_LABEL, read_switch
from extproc.operator.state import JobState, Key, LastWords, Observation, PodStart, Seen

_ANSWER_S: Final = 2.0
_LONGEST: Final = 65_536


async def observe(key: Key, calls: KubeCalls) -> Seen:
    """Reads a Benchmark and what there is of its runs; of one that is gone, the routers it has changed."""
    namespace, name = key
    body = await calls.get("Benchmark", namespace, name)
    # A longer name is no label, and nothing was ever made for it.
    is_label = len(name) <= LONGEST_NAME
    seen = Seen(body, Observation(switched=await _find_switched(key, calls) if is_label else ()))
    if body is None or seen.is_gone:
        return seen
    if is_label:
        jobs = await _find_jobs(key, body["metadata"]["uid"], calls)
        seen = replace(seen, observed=replace(seen.observed, jobs=jobs))
    try:
        benchmark = parse_benchmark(body)
    except SpecRefused as refused:
        return replace(seen, refused=str(refused))
    return replace(
        seen, benchmark=benchmark, observed=await _observe_pods(benchmark, seen.observed, calls)
    )


async def _find_jobs(key: Key, uid: str, calls: KubeCalls) -> tuple[JobState, ...]:
    """The Jobs of a Benchmark's runs; what only looks like one is nobody's."""
    found = await calls.list("Job", key[0], f"{BENCHMARK_LABEL}={key[1]}")
    return tuple(read_job(job) for job in found if is_owned(job, uid) and _is_of_a_run(job))


async def _find_switched(key: Key, calls: KubeCalls) -> tuple[Object, ...]:
    """The ConfigMaps that a Benchmark of that name has, or had before it was gone."""
    found = await calls.list("ConfigMap", key[0], f"{SWITCHED_LABEL}={key[1]}")
    # Objects of a list come without their kind.
    return tuple(
        {**each, "apiVersion": "v1", "kind": "ConfigMap"} for each in found if read_switch(each)
    )


async def _observe_pods(
    benchmark: Benchmark, observed: Observation, calls: KubeCalls
) -> Observation:
    """Adds the Pods of runs, what they report, and the router."""
    found = await calls.list("Pod", benchmark.namespace, f"{BENCHMARK_LABEL}={benchmark.name}")
    pods = [pod for pod in found if _is_of_a_run(pod)]
    main = [pod for pod in pods if pod["metadata"]["labels"][PART_LABEL] == MAIN]
    name = benchmark.operation.router.config_map
    return replace(
        observed,
        starts=read_starts(pods),
        last_words={run: words for run, words in map(read_last_words, main) if words is not None},
        notices=await read_statuses(pods),
        router=await calls.get("ConfigMap", benchmark.namespace, name) if name else None,
    )


def _is_of_a_run(body: Object) -> bool:
    labels: Mapping[str, str] = body["metadata"]["labels"]
    return {RUN_LABEL, PART_LABEL} <= labels.keys()


def read_starts(pods: Iterable[Object]) -> dict[str, PodStart]:
    """How the Pods of each run start; one that waits counts for all."""
    starts: dict[str, PodStart] = {}
    for pod in pods:
        run = pod["metadata"]["labels"][RUN_LABEL]
        if starts.get(run, PodStart(has_started=True)).has_started:
            starts[run] = _read_start(pod)
    return starts


def _read_start(pod: Object) -> PodStart:
    """The Pod's own reason: why its container waits, else why no node takes it."""
    status = pod.get("status", {})
    if status.get("phase") != "Pending":
        return PodStart(has_started=True)
    created = pod["metadata"].get("creationTimestamp")
    since = read_time(created) if created else None
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return PodStart(False, waiting.get("reason", ""), waiting.get("message", ""), since)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return PodStart(False, condition.get("reason", ""), condition.get("message", ""), since)
    return PodStart(False, "PodIsPending", "", since)


async def read_statuses(pods: Iterable[Object]) -> dict[str, RunStatus]:
    """What the Pods of each run report; several parts are added up.

    All are asked at once: however many are silent, a look takes as long as one of them.
    """
    notices: dict[str, RunStatus] = {}
    there = [(pod, url) for pod in pods if (url := find_address(pod)) is not None]
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        found = await asyncio.gather(*(fetch_run_status(http, url) for _, url in there))
    for (pod, _), notice in zip(there, found, strict=True):
        if notice is not None:
            run = pod["metadata"]["labels"][RUN_LABEL]
            notices[run] = add_statuses(notices[run], notice) if run in notices else notice
    return notices


def add_statuses(one: RunStatus, other: RunStatus) -> RunStatus:
    """Two parts of a run: counts and rates add up, latencies of two parts do not."""
    rates = [each.figures["req_per_s"] for each in (one, other) if "req_per_s" in each.figures]
    return RunStatus(
        doing=one.doing,
        progress=min(one.progress, other.progress, key=lambda text: (len(text), text)),
        finished=one.finished + other.finished,
        planned=None
        if one.planned is None or other.planned is None
        else one.planned + other.planned,
        figures={"req_per_s": sum(rates)} if rates else {},
    )


def find_address(pod: Mapping[str, Any]) -> str | None:
    """Where a Pod reports its progress; `None` before it runs, and after."""
    status = pod.get("status", {})
    is_over = any(
        "terminated" in each.get("state", {}) for each in status.get("containerStatuses", ())
    )
    ip = status.get("podIP")
    if is_over or not ip:
        return None
    return f"http://[{ip}]:{BOARD_PORT}/" if ":" in ip else f"http://{ip}:{BOARD_PORT}/"


async def fetch_run_status(http: aiohttp.ClientSession, url: str) -> RunStatus | None:
    """Returns what a Pod reports; `None` for one that does not answer, as before it begins."""
    try:
        async with http.get(url, allow_redirects=False) as answer:
            return decode_status(await answer.content.read(_LONGEST))
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None


def read_job(body: Mapping[str, Any]) -> JobState:
    """A Job as the API server has it."""
    metadata, status = body["metadata"], body.get("status", {})
    labels, due = metadata["labels"], metadata.get("annotations", {}).get(DUE_ANNOTATION)
    ends = {each["type"]: each for each in status.get("conditions", ()) if each["status"] == "True"}
    end = ends.get("Failed") or ends.get("Complete")
    started = status.get("startTime")
    return JobState(
        name=metadata["name"],
        run=labels[RUN_LABEL],
        part=labels[PART_LABEL],
        uid=metadata["uid"],
        started=read_time(started) if started else None,
        finished=read_time(end["lastTransitionTime"]) if end else None,
        failure=_name_failure(ends["Failed"]) if "Failed" in ends else None,
        due=_read_due(due),
        is_deleting=bool(metadata.get("deletionTimestamp")),
    )


def _read_due(text: str | None) -> datetime | None:
    """An annotation is anybody's to write."""
    with suppress(ValueError):
        return read_time(text) if text else None
    return None


def _name_failure(condition: Mapping[str, str]) -> str:
    return ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)


def read_last_words(pod: Mapping[str, Any]) -> tuple[str, LastWords | None]:
    """A Pod of a main Job: its run, and how its container ended if it did."""
    run = pod["metadata"]["labels"][RUN_LABEL]
    for container in pod.get("status", {}).get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended:
            words = LastWords(ended["exitCode"], ended.get("message", ""), ended.get("reason", ""))
            return run, words
    return run, None
