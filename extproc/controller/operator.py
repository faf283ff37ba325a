"""The operator: kopf watches, the desk acts, the Lease says who of several replicas does.

kopf only tells what has changed. It keeps nothing in the objects (no finalizer, no annotation), so that a
Benchmark can be deleted with no operator about.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import kopf

from extproc.cluster.kubeclient import KubeClients
from extproc.controller.desk import Desk, DeskOptions
from extproc.controller.lease import Leadership, Terms
from extproc.controller.objects import APP, BENCHMARK_LABEL
from extproc.controller.resource import GROUP, PLURAL, VERSION

# The API server ends a watch by then at the latest; one that is silent for longer than its bookmarks is dead.
_WATCH_S: Final = 300
_CONNECT_S: Final = 10


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """`namespaces` are those that are looked after, all of them where there is none; `me` names a replica."""

    desk: DeskOptions
    me: str
    lease_namespace: str
    namespaces: Sequence[str] = ()
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
    # kopf takes the process's signals for itself: its end is ours, too. At its end it waits for, and then
    # cancels, whatever was begun after it: what is ours ends before.
    stop_kopf = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(desk.run()), tasks.create_task(leadership.run())]
        told = tasks.create_task(stop.wait())
        watching = tasks.create_task(_watch(desk, clients, options.namespaces, stop_kopf))
        await asyncio.wait([told, watching], return_when=asyncio.FIRST_COMPLETED)
        for task in (told, *working):
            task.cancel()
        await asyncio.wait(working)
        stop_kopf.set()


async def _watch(desk: Desk, clients: KubeClients, namespaces: Sequence[str], stop: asyncio.Event) -> None:
    await kopf.operator(
        registry=build_registry(desk, clients),
        settings=build_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=tuple(namespaces),
        stop_flag=stop,
    )


def build_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = _WATCH_S
    settings.watching.connect_timeout = _CONNECT_S
    return settings


def build_registry(desk: Desk, clients: KubeClients) -> kopf.OperatorRegistry:
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
