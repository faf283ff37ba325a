"""The queue of Benchmarks that are to be looked at: one at a time, and each again after a while.

Everything is read anew for each look, Jobs before Pods: a Job that says that it ended has Pods that
say why.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from extproc.bench.experiments.run import split_over_machines
from extproc.bench.experiments.sweep import list_tasks
from extproc.errors import ExtprocError, SettingsError
from extproc.operator.calls import ApiRefusal, KubeCalls, opening
from extproc.operator.objects import Object
from extproc.operator.observe import find_jobs, find_switched, is_owned, observe
from extproc.operator.reconcile import reconcile, refuse_spec
from extproc.operator.resource import LONGEST_NAME, Benchmark, SpecRefused, parse_benchmark
from extproc.operator.router import give_back
from extproc.operator.state import Action, Create, Delete, Key, Observation, Replace, WriteStatus
from extproc.operator.watches import warn_of_outage
from extproc.router.cluster.kube_api import WatchLost
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.reason import describe_error

# The spec makes an object that cannot be; a quota, or the namespace's end: only somebody's doing
# helps.
_LASTING: Final = frozenset({400, 403, 422})


async def act(action: Action, body: Object, calls: KubeCalls) -> None:
    """Does one thing; raises `ApiRefusal`."""
    match action:
        case WriteStatus(status):
            written = await calls.replace({**body, "status": status}, "status")
            body["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
        case Replace(changed):
            await calls.replace(changed)
        case Delete(name, uid):
            await calls.delete("Job", body["metadata"]["namespace"], name, uid)
        case Create(made):
            await _create(made, calls)


async def _create(made: Object, calls: KubeCalls) -> None:
    """Creates an object; one of that name will do, unless its owner is gone."""
    try:
        await calls.create(made)
    except ApiRefusal as refusal:
        if refusal.status != 409:
            raise
        metadata = made["metadata"]
        there = await calls.get(made["kind"], metadata["namespace"], metadata["name"])
        owners = metadata.get("ownerReferences", ())
        if there is None or (owners and not is_owned(there, owners[0]["uid"])):
            raise ApiRefusal(
                409, f"{made['kind']} {metadata['name']} is somebody else's, or going"
            ) from None


def describe_refusal(action: Action, refusal: ApiRefusal) -> str | None:
    """What the status shall say of an object that may not be made or written; of what passes nothing."""
    if not isinstance(action, Create | Replace) or refusal.status not in _LASTING:
        return None
    kind, name = action.body["kind"], action.body["metadata"]["name"]
    if isinstance(action, Replace) and refusal.status == 403:
        return f"router: {kind} {name}: the operator's Role does not name it, so that it cannot write it"
    return f"{kind} {name}: {refusal}"


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


_RETRY_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """`image` is what Pods run; every `look_s` all Benchmarks are looked at again, come what may.

    They are those of `namespaces`, of all where there is none.
    """

    image: str
    look_s: float = 10.0
    namespaces: Sequence[str] = ()


class WorkQueue:
    """Benchmarks by key, and which of them wait to be looked at."""

    def __init__(
        self, clients: KubeClients, options: QueueOptions, now: Callable[[], datetime]
    ) -> None:
        self.benchmarks: dict[Key, Object] = {}
        self._clients, self._options, self._now = clients, options, now
        self._waiting: dict[Key, None] = {}
        self._is_awake = asyncio.Event()
        self._failures: dict[Key, int] = {}

    def learn(self, key: Key, body: Object) -> None:
        self.benchmarks[key] = body
        self.wake(key)

    def forget(self, key: Key) -> None:
        """Drops a Benchmark that is gone; a router that its run has changed is still to be given back."""
        self.benchmarks.pop(key, None)
        self.wake(key)

    def wake(self, key: Key) -> None:
        self._waiting[key] = None
        self._is_awake.set()

    async def run(self) -> None:
        """Looks at whatever waits, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again())
            while True:
                await self._is_awake.wait()
                self._is_awake.clear()
                while self._waiting:
                    key = next(iter(self._waiting))
                    del self._waiting[key]
                    await self._look(key, tasks)

    async def _look_again(self) -> None:
        """Schedules come due and Pods progress without any event."""
        while True:
            await asyncio.sleep(self._options.look_s)
            for key in self.benchmarks:
                self.wake(key)

    async def _look(self, key: Key, tasks: asyncio.TaskGroup) -> None:
        try:
            async with opening(self._clients) as calls:
                await self._settle(key, calls)
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001  # one Benchmark's trouble is not another's
            # A conflict is somebody else's write in between: the next look sees it.
            count = self._failures[key] = self._failures.get(key, 0) + 1
            if isinstance(error, WatchLost) or (isinstance(error, ApiRefusal) and not error.status):
                warn_of_outage("benchmark {}/{}".format(*key), str(error))
            else:
                text = str(error) if isinstance(error, ExtprocError) else describe_error(error)
                log.warning("benchmark %s/%s: %s", *key, text)
            tasks.create_task(self._wake_later(key, _RETRY_S[min(count, len(_RETRY_S)) - 1]))

    async def _wake_later(self, key: Key, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.wake(key)

    async def _settle(self, key: Key, calls: KubeCalls) -> None:
        body = await calls.get("Benchmark", *key)
        for action in await self._decide(key, body, calls):
            log.info("benchmark %s/%s: %s", *key, describe_action(action))
            try:
                await act(action, body or {}, calls)
            except ApiRefusal as refusal:
                if body is not None and (message := describe_refusal(action, refusal)) is not None:
                    for each in refuse_spec(body, message, Observation(), self._now()):
                        await act(each, body, calls)
                raise

    async def _decide(self, key: Key, body: Object | None, calls: KubeCalls) -> list[Action]:
        # A longer name is no label, and nothing was ever made for it.
        is_label = len(key[1]) <= LONGEST_NAME
        switched = await find_switched(key, calls) if is_label else ()
        if body is None or body["metadata"].get("deletionTimestamp"):
            return [Replace(give_back(each)) for each in switched]
        jobs = await find_jobs(key, body["metadata"]["uid"], calls) if is_label else ()
        observed = Observation(jobs=jobs, switched=switched)
        try:
            benchmark = parse_benchmark(body)
        except SpecRefused as refused:
            return refuse_spec(body, str(refused), observed, self._now())
        observed = replace(
            await observe(benchmark, observed, calls), faults=find_spec_faults(benchmark)
        )
        return reconcile(benchmark, observed, self._now(), image=self._options.image)


def find_spec_faults(benchmark: Benchmark) -> tuple[str, ...]:
    """Why a spec cannot be run, as far as that shows without its dataset: its Pods find out the rest."""
    try:
        if benchmark.operation.mode == "sweep":
            list_tasks(benchmark.spec)
        split_over_machines(benchmark.spec, benchmark.operation.workers)
    except SettingsError as error:
        return (str(error),)
    return ()
