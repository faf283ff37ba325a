"""`extproc operate`: the operator of Benchmarks, and the definition of the resource."""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml

from extproc.bench.progress import run_until_signal
from extproc.bench.status_server import split_location
from extproc.errors import SettingsError
from extproc.operator.calls import opening
from extproc.operator.crd import build_crd
from extproc.operator.watches import WatchHealth, follow
from extproc.operator.web import serve_web
from extproc.operator.work_queue import QueueOptions, WorkQueue
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.logs import configure_logging


async def run_operator(
    clients: KubeClients,
    options: QueueOptions,
    stop: asyncio.Event,
    *,
    listen: tuple[str, int] | None = None,
    reports: Path | None = None,
) -> None:
    """Looks after Benchmarks until `stop` is set: watches wake them, a queue settles them one at a time.

    `listen` is where runs, metrics and health are served; `reports` is a folder with the claims
    whose reports the page links. Nothing is kept in the objects (no finalizer), so that a Benchmark
    can be deleted while no operator runs. A second replica by mistake does no harm: every write
    names the version that was read.
    """
    queue = WorkQueue(clients, options, lambda: datetime.now(UTC))
    healths: list[WatchHealth] = []
    web = serve_web(queue.benchmarks, healths, listen, reports) if listen else nullcontext()
    async with web, asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(queue.run()),
            tasks.create_task(follow(clients, options.namespaces, queue, healths)),
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


@click.command("operate")
@click.option(
    "--image", help="The image of the runs' Pods. [default: that of this operator's own Pod]"
)
@click.option(
    "--namespace", "namespaces", multiple=True, help="Only these namespaces. [default: all]"
)
@click.option(
    "--kubeconfig", help="A kubeconfig. [default: the service account, else ~/.kube/config]"
)
@click.option(
    "--look",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Look at each Benchmark again after so many seconds, also without an event.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the page, metrics and health here.")
@click.option(
    "--reports",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with NAMESPACE/CLAIM in it: the page links to the reports there.",
)
@click.option("--print-crd", is_flag=True, help="Print the CustomResourceDefinition and end.")
def operate(
    *,
    image: str | None,
    namespaces: tuple[str, ...],
    kubeconfig: str | None,
    look: float,
    listen: str | None,
    reports: Path | None,
    print_crd: bool,
) -> None:
    """Run the Benchmark objects of a Kubernetes cluster.

    Needs the extra `operator`. Run one replica. Ends on SIGTERM or SIGINT; runs go on without it.
    """
    if print_crd:
        click.echo(crd_text(), nl=False)
        return
    configure_logging("INFO", sys.stderr)
    clients = KubeClients(kubeconfig=kubeconfig)

    async def work(stop: asyncio.Event) -> None:
        options = QueueOptions(
            image or await find_own_image(clients), look_s=look, namespaces=namespaces
        )
        where = None if listen is None else split_location(listen)
        await run_operator(clients, options, stop, listen=where, reports=reports)

    run_until_signal(work)


def crd_text() -> str:
    """The definition as a manifest."""
    head = "# Made by `make crd` of the spec's own model: change that, not this.\n"
    return head + yaml.dump(
        build_crd(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True
    )


class _Plain(yaml.SafeDumper):
    """Repeats what comes twice instead of naming it."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # PyYAML's own name
        return True
