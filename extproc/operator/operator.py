"""The operator: kopf watches, the desk acts, the Lease says who of several replicas does.

kopf only tells what has changed. It keeps nothing in the objects (no finalizer, no annotation), so that a
Benchmark can be deleted with no operator about.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import kopf

from extproc.operator.desk import Desk, DeskOptions
from extproc.operator.lease import Leadership, Terms
from extproc.operator.objects import APP, BENCHMARK_LABEL, Object
from extproc.operator.resource import GROUP, PLURAL, VERSION
from extproc.operator.seen import Key
from extproc.operator.web import showing
from extproc.router.cluster.kubeclient import KubeClients

# The API server ends a watch by then at the latest; one that is silent for longer than its bookmarks is dead.
_WATCH_S: Final = 300
_CONNECT_S: Final = 10
_AGAIN_S: Final = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """`namespaces` of the desk are watched, all of them where there is none; `me` names a replica.

    `listen` is where runs and metrics are shown, nowhere if there is none; `reports` a folder with the claims
    whose reports are shown, too.
    """

    desk: DeskOptions
    me: str
    lease_namespace: str
    listen: tuple[str, int] | None = None
    reports: Path | None = None
    terms: Terms = field(default_factory=Terms)


def now() -> datetime:
    return datetime.now(UTC)


async def operate(clients: KubeClients, options: OperatorOptions, stop: asyncio.Event) -> None:
    """Looks after Benchmarks until `stop` is set."""
    desk = Desk(clients, options.desk, now)
    leadership = Leadership(
        clients,
        options.lease_namespace,
        options.me,
        is_leading=desk.is_leading,
        now=now,
        terms=options.terms,
    )
    shown = showing(desk, options.listen, options.reports) if options.listen else nullcontext()
    async with shown, asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(work) for work in (desk.run(), leadership.run(), _watch(desk, clients, options))
        ]
        await stop.wait()
        for task in working:
            task.cancel()


async def _watch(desk: Desk, clients: KubeClients, options: OperatorOptions) -> None:
    """Has kopf watch, and again when it gives up.

    It has a thread and an event loop of its own: it takes the signals of the main thread for itself, cancels
    whatever else its loop does when it ends, and a watch that is answered 410 outright ends it (1.45), now
    and then half-way. The desk misses nothing by that: it lists, too, only less often.
    """
    loop = asyncio.get_running_loop()
    while True:
        ended, stop = asyncio.Event(), threading.Event()

        def watch(ended: asyncio.Event = ended, stop: threading.Event = stop) -> None:
            try:
                asyncio.run(_run_kopf(_Distant(desk, loop), clients, options, stop))
            except Exception as error:  # noqa: BLE001  # whatever it is: it is begun again
                log.warning("watching: %s: %s", type(error).__name__, error)
            with suppress(RuntimeError):  # our loop is closed
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=watch, daemon=True, name="kopf").start()
        try:
            await ended.wait()
        finally:
            stop.set()
        await asyncio.sleep(_AGAIN_S)


async def _run_kopf(
    desk: "_Distant", clients: KubeClients, options: OperatorOptions, stop: threading.Event
) -> None:
    await kopf.operator(
        registry=build_registry(desk, clients),
        settings=build_settings(),
        standalone=True,
        clusterwide=not options.desk.namespaces,
        namespaces=tuple(options.desk.namespaces),
        stop_flag=stop,
    )


class _Distant:
    """The desk, for who is in another thread."""

    def __init__(self, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self._desk, self._loop = desk, loop

    def learn(self, key: Key, body: Object) -> None:
        self._loop.call_soon_threadsafe(self._desk.learn, key, body)

    def forget(self, key: Key) -> None:
        self._loop.call_soon_threadsafe(self._desk.forget, key)

    def wake(self, key: Key) -> None:
        self._loop.call_soon_threadsafe(self._desk.wake, key)


def build_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = _WATCH_S
    settings.watching.connect_timeout = _CONNECT_S
    return settings


def build_registry(desk: _Distant, clients: KubeClients) -> kopf.OperatorRegistry:
    """What kopf is to tell: every change of a Benchmark, and of a Job of one."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await find_connection(clients)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def hear_benchmark(event: kopf.RawEvent, name: str, namespace: str | None, **_: Any) -> None:
        key = namespace or "", name
        if event["type"] == "DELETED":
            desk.forget(key)
        else:
            desk.learn(key, dict(event["object"]))

    @kopf.on.event("batch", "v1", "jobs", labels={"app.kubernetes.io/name": APP}, registry=registry)
    async def hear_job(labels: Mapping[str, str], namespace: str | None, **_: Any) -> None:
        desk.wake((namespace or "", labels[BENCHMARK_LABEL]))

    return registry


async def find_connection(clients: KubeClients) -> kopf.ConnectionInfo:
    """The same server and credentials as those of our own calls."""
    client = await clients.open()
    try:
        found = client.configuration
        scheme, _, token = str(found.api_key.get("BearerToken", "")).rpartition(" ")
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
        )
    finally:
        await client.close()
