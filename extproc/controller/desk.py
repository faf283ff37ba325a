"""Where Benchmarks wait to be looked at: one at a time, again after a while, and only by who has the lease.

Everything is read anew for each look, Jobs before Pods: a Job that says that it ended has Pods that say why.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from extproc.bench.board import Notice
from extproc.cluster.kube_api import WatchLost
from extproc.cluster.kubeclient import KubeClients
from extproc.controller.calls import ApiRefusal, KubeCalls, opening
from extproc.controller.leaders import ask_leader, find_address
from extproc.controller.objects import (
    BENCHMARK_LABEL,
    DUE_ANNOTATION,
    LEADER,
    PART_LABEL,
    RUN_LABEL,
    Object,
)
from extproc.controller.planning import plan_benchmark
from extproc.controller.reconcile import reconcile, refuse
from extproc.controller.resource import LONGEST_NAME, Benchmark, SpecRefused, parse_benchmark, read_time
from extproc.controller.router import SWITCHED_LABEL, give_back, read_hold
from extproc.controller.state import (
    Action,
    Create,
    Delete,
    JobState,
    LastWords,
    Observed,
    Planned,
    Replace,
    WriteStatus,
)

Key = tuple[str, str]
"""A namespace and a name."""

_TOKEN_BYTES: Final = 24
_RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeskOptions:
    """`image` is what Pods run; every `look_s` all Benchmarks are looked at again, come what may.

    They are those of `namespaces`, of all where there is none.
    """

    image: str
    look_s: float = 10.0
    namespaces: Sequence[str] = ()


class Desk:
    """Benchmarks by key, and which of them are to be looked at. `is_leading` is set by who has the lease."""

    def __init__(self, clients: KubeClients, options: DeskOptions, now: Callable[[], datetime]) -> None:
        self.known: dict[Key, Object] = {}
        self.is_leading = asyncio.Event()
        self.has_listed = False
        self._clients, self._options, self._now = clients, options, now
        self._waiting: dict[Key, None] = {}
        self._is_awake = asyncio.Event()
        self._failures: dict[Key, int] = {}
        self._plans: dict[str, tuple[int, Planned]] = {}

    def learn(self, key: Key, body: Object) -> None:
        self.known[key] = body
        self.wake(key)

    def forget(self, key: Key) -> None:
        body = self.known.pop(key, None)
        if body is not None:
            self._plans.pop(body["metadata"]["uid"], None)
        # A router that its run has changed is to be given back.
        self.wake(key)

    def wake(self, key: Key) -> None:
        self._waiting[key] = None
        self._is_awake.set()

    async def run(self) -> None:
        """Looks at whatever waits, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again())
            while True:
                await self.is_leading.wait()
                await self._is_awake.wait()
                self._is_awake.clear()
                while self._waiting and self.is_leading.is_set():
                    key = next(iter(self._waiting))
                    del self._waiting[key]
                    await self._look(key, tasks)

    async def _look_again(self) -> None:
        """Who only waits for the lease lists, too: it shows what there is, and takes over with no delay."""
        while True:
            await self._list()
            await asyncio.sleep(self._options.look_s)

    async def _list(self) -> None:
        """Lists what there is: who watches may be late, or gone."""
        found: dict[Key, Object] = {}
        holders: set[Key] = set()
        try:
            async with opening(self._clients) as calls:
                for namespace in self._options.namespaces or ("",):
                    for body in await calls.list("Benchmark", namespace):
                        found[body["metadata"]["namespace"], body["metadata"]["name"]] = body
                    for body in await calls.list("ConfigMap", namespace, SWITCHED_LABEL):
                        metadata = body["metadata"]
                        holders.add((metadata["namespace"], metadata["labels"][SWITCHED_LABEL]))
        except (ApiRefusal, WatchLost) as error:
            log.warning("benchmarks: %s", error)
            return
        self.has_listed = True
        for key in (self.known.keys() | holders) - found.keys():
            self.forget(key)
        for key, body in found.items():
            self.learn(key, body)

    async def _look(self, key: Key, tasks: asyncio.TaskGroup) -> None:
        try:
            async with opening(self._clients) as calls:
                await self._settle(key, calls)
            self._failures.pop(key, None)
        except (ApiRefusal, WatchLost) as error:
            # A conflict is somebody else's word in between: what they said is looked at next.
            count = self._failures[key] = self._failures.get(key, 0) + 1
            log.warning("benchmark %s/%s: %s", *key, error)
            tasks.create_task(self._wake_later(key, _RETRY_S[min(count, len(_RETRY_S)) - 1]))

    async def _wake_later(self, key: Key, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.wake(key)

    async def _settle(self, key: Key, calls: KubeCalls) -> None:
        body = await calls.get("Benchmark", *key)
        for action in await self._decide(key, body, calls):
            if not self.is_leading.is_set():
                return
            log.info("benchmark %s/%s: %s", *key, describe_action(action))
            try:
                await act(action, body or {}, calls)
            except ApiRefusal as refusal:
                if body is not None and isinstance(action, Replace) and refusal.status == 403:
                    await self._tell_forbidden(action.body["metadata"]["name"], body, calls)
                raise

    async def _tell_forbidden(self, name: str, body: Object, calls: KubeCalls) -> None:
        """Says in the status what else only the log would."""
        message = (
            f"router: ConfigMap {name}: the operator's Role does not name it, so that it cannot write it"
        )
        for action in refuse(body, message, Observed(), self._now()):
            await act(action, body, calls)

    async def _decide(self, key: Key, body: Object | None, calls: KubeCalls) -> list[Action]:
        # A longer name is no label, and nothing was ever made for it.
        is_label = len(key[1]) <= LONGEST_NAME
        held = await find_held(key, calls) if is_label else ()
        if body is None or body["metadata"].get("deletionTimestamp"):
            return [Replace(give_back(each)) for each in held]
        jobs = await calls.list("Job", key[0], f"{BENCHMARK_LABEL}={key[1]}") if is_label else []
        own = tuple(read_job(job) for job in jobs if is_owned(job, body["metadata"]["uid"]))
        observed = Observed(jobs=own, held=held)
        try:
            benchmark = parse_benchmark(body)
        except SpecRefused as refused:
            return refuse(body, str(refused), observed, self._now())
        observed = replace(await look(benchmark, observed, calls), planned=await self._plan(benchmark))
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        return reconcile(benchmark, observed, self._now(), image=self._options.image, token=token)

    async def _plan(self, benchmark: Benchmark) -> Planned:
        """Plans once for each generation of a spec, in a thread: a large dataset takes its time."""
        generation, planned = self._plans.get(benchmark.uid, (None, Planned()))
        if generation != benchmark.generation:
            planned = await asyncio.to_thread(plan_benchmark, benchmark)
            self._plans[benchmark.uid] = benchmark.generation, planned
        return planned


async def find_held(key: Key, calls: KubeCalls) -> tuple[Object, ...]:
    """The ConfigMaps that a Benchmark of that name has, or had before it was gone."""
    found = await calls.list("ConfigMap", key[0], f"{SWITCHED_LABEL}={key[1]}")
    # What is in a list does not say what it is.
    return tuple({**each, "apiVersion": "v1", "kind": "ConfigMap"} for each in found if read_hold(each))


async def look(benchmark: Benchmark, observed: Observed, calls: KubeCalls) -> Observed:
    """Adds what leaders say, and the router."""
    selector = f"{BENCHMARK_LABEL}={benchmark.name},{PART_LABEL}={LEADER}"
    pods = await calls.list("Pod", benchmark.namespace, selector)
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


async def act(action: Action, body: Object, calls: KubeCalls) -> None:
    """Does one thing; raises `ApiRefusal`."""
    match action:
        case WriteStatus(status):
            written = await calls.replace({**body, "status": status}, "status")
            body["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
        case Replace(changed):
            await calls.replace(changed)
        case Delete(name):
            await calls.delete("Job", body["metadata"]["namespace"], name)
        case Create(made):
            await _create(made, calls)


async def _create(made: Object, calls: KubeCalls) -> None:
    """Creates an object; one of that name is as good, unless it belongs to somebody who is gone."""
    try:
        await calls.create(made)
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        # The operator may not read Secrets: that of a run has the run's name, which nobody else uses.
        if made["kind"] == "Secret":
            return
        metadata = made["metadata"]
        there = await calls.get(made["kind"], metadata["namespace"], metadata["name"])
        owners = metadata.get("ownerReferences", ())
        if there is None or (owners and not is_owned(there, owners[0]["uid"])):
            raise ApiRefusal(409, f"{made['kind']} {metadata['name']} is somebody else's, or going") from None


def is_owned(body: Mapping[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences", ()))


def describe_action(action: Action) -> str:
    match action:
        case Create(made):
            return f"creates {made['kind']} {made['metadata']['name']}"
        case Replace(changed):
            return f"writes {changed['kind']} {changed['metadata']['name']}"
        case Delete(name):
            return f"deletes Job {name}"
        case WriteStatus(status):
            return f"is {status['phase']}"


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
        started=read_time(started) if started else None,
        finished=read_time(end["lastTransitionTime"]) if end else None,
        failure=_name_failure(ends["Failed"]) if "Failed" in ends else None,
        due=read_time(due) if due else None,
        is_deleting=bool(metadata.get("deletionTimestamp")),
    )


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
