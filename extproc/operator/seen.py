"""What there is of a Benchmark: Jobs, Pods and ConfigMaps as the API server has them; what leaders say."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from extproc.bench.board import Notice
from extproc.operator.calls import KubeCalls
from extproc.operator.leaders import ask_leader, find_address
from extproc.operator.objects import BENCHMARK_LABEL, DUE_ANNOTATION, LEADER, PART_LABEL, RUN_LABEL, Object
from extproc.operator.resource import Benchmark, read_time
from extproc.operator.router import SWITCHED_LABEL, read_hold
from extproc.operator.state import JobState, LastWords, Observed

Key = tuple[str, str]
"""A namespace and a name."""


async def find_jobs(key: Key, uid: str, calls: KubeCalls) -> tuple[JobState, ...]:
    """The Jobs of a Benchmark's runs; what only looks like one is nobody's."""
    found = await calls.list("Job", key[0], f"{BENCHMARK_LABEL}={key[1]}")
    return tuple(
        read_job(job)
        for job in found
        if is_owned(job, uid) and {RUN_LABEL, PART_LABEL} <= job["metadata"]["labels"].keys()
    )


async def find_held(key: Key, calls: KubeCalls) -> tuple[Object, ...]:
    """The ConfigMaps that a Benchmark of that name has, or had before it was gone."""
    found = await calls.list("ConfigMap", key[0], f"{SWITCHED_LABEL}={key[1]}")
    # What is in a list does not say what it is.
    return tuple({**each, "apiVersion": "v1", "kind": "ConfigMap"} for each in found if read_hold(each))


async def look(benchmark: Benchmark, observed: Observed, calls: KubeCalls) -> Observed:
    """Adds what leaders say, and the router."""
    selector = f"{BENCHMARK_LABEL}={benchmark.name},{PART_LABEL}={LEADER}"
    found = await calls.list("Pod", benchmark.namespace, selector)
    pods = [pod for pod in found if RUN_LABEL in pod["metadata"]["labels"]]
    name = benchmark.operation.router.config_map
    return replace(
        observed,
        last_words={run: words for run, words in map(read_last_words, pods) if words is not None},
        notices=await read_notices(pods),
        router=await calls.get("ConfigMap", benchmark.namespace, name) if name else None,
    )


async def read_notices(pods: Iterable[Object]) -> dict[str, Notice]:
    """What leaders say that run, by run."""
    notices = {}
    for pod in pods:
        url = find_address(pod)
        notice = await ask_leader(url) if url is not None else None
        if notice is not None:
            notices[pod["metadata"]["labels"][RUN_LABEL]] = notice
    return notices


def is_owned(body: Mapping[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences", ()))


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
    """A leader's Pod: its run, and how its container ended if it did."""
    run = pod["metadata"]["labels"][RUN_LABEL]
    for container in pod.get("status", {}).get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended:
            words = LastWords(ended["exitCode"], ended.get("message", ""), ended.get("reason", ""))
            return run, words
    return run, None
