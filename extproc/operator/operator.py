"""The operator: watches wake Benchmarks, a queue settles them one at a time, a page shows them.

All in one event loop. It keeps nothing in the objects (no finalizer), so that a Benchmark can be deleted
while no operator runs. One replica runs at a time (strategy `Recreate`); a second one by mistake does no
harm: every write names the version that was read, and every object's name follows from its run.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from extproc.errors import SettingsError
from extproc.operator.calls import opening
from extproc.operator.watches import WatchHealth, follow
from extproc.operator.web import serve_web
from extproc.operator.work_queue import QueueOptions, WorkQueue
from extproc.router.cluster.kubeclient import KubeClients


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """`listen` is where runs, metrics and health are served, nowhere if there is none.

    `reports` is a folder with the claims whose reports the page links.
    """

    queue: QueueOptions
    listen: tuple[str, int] | None = None
    reports: Path | None = None


def utc_now() -> datetime:
    return datetime.now(UTC)


async def run_operator(clients: KubeClients, options: OperatorOptions, stop: asyncio.Event) -> None:
    """Looks after Benchmarks until `stop` is set."""
    queue = WorkQueue(clients, options.queue, utc_now)
    healths: list[WatchHealth] = []
    web = (
        serve_web(queue.benchmarks, healths, options.listen, options.reports)
        if options.listen
        else nullcontext()
    )
    async with web, asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(queue.run()),
            tasks.create_task(follow(clients, options.queue.namespaces, queue, healths)),
        ]
        await stop.wait()
        for task in working:
            task.cancel()


async def find_own_image(clients: KubeClients, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the image of this Pod: the runs' Pods get the same, whatever rewrote it in the manifests.

    The Pod's name is in POD_NAME, else the host's. Raises `SettingsError`.
    """
    namespace = clients.own_namespace()
    name = environment.get("POD_NAME") or os.uname().nodename
    async with opening(clients) as calls:
        found = await calls.list("Pod", namespace, name=name)
    for container in found[0]["spec"]["containers"] if found else ():
        if container["name"] == "operator":
            return str(container["image"])
    raise SettingsError(
        f"--image: there is no Pod {namespace}/{name} with a container 'operator' to take it from"
    )
