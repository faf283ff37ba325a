"""`extproc operate`: the operator of Benchmarks, and the definition of the resource."""

import asyncio
import os
import sys
from pathlib import Path

import click
import yaml

from extproc.errors import SettingsError
from extproc.operator.crd import build_crd
from extproc.router.cluster.kubeclient import KubeClients


@click.command("operate")
@click.option("--image", help="What the Pods of a run are made of; this one's own image.")
@click.option("--namespace", "namespaces", multiple=True, help="Look after these; else after all.")
@click.option("--lease-namespace", help="Where the Lease is. [default: the Pod's own namespace]")
@click.option("--kubeconfig", help="A kubeconfig. [default: the service account, else ~/.kube/config]")
@click.option("--look", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds.")
@click.option("--listen", metavar="HOST:PORT", help="Show runs, metrics and health here. [default: nowhere]")
@click.option(
    "--reports",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with NAMESPACE/CLAIM: lets the page lead to reports.",
)
@click.option("--print-crd", is_flag=True, help="Print the CustomResourceDefinition and end.")
def operate(
    *,
    image: str | None,
    namespaces: tuple[str, ...],
    lease_namespace: str | None,
    kubeconfig: str | None,
    look: float,
    listen: str | None,
    reports: Path | None,
    print_crd: bool,
) -> None:
    """Run Benchmarks as objects of Kubernetes: plan, Jobs, verdict. Needs the extra `operator`.

    Several replicas may run: one acts, by a Lease. Ends on SIGTERM or SIGINT; runs go on without it.
    """
    if print_crd:
        click.echo(crd_text(), nl=False)
        return
    if image is None:
        raise SettingsError("--image: Pods need an image, that of this operator")
    from extproc.bench.load.worker import split_location  # noqa: PLC0415
    from extproc.bench.progress import until_told  # noqa: PLC0415  # needs what the definition does not
    from extproc.operator.desk import DeskOptions  # noqa: PLC0415
    from extproc.operator.operator import OperatorOptions  # noqa: PLC0415
    from extproc.operator.operator import operate as run  # noqa: PLC0415
    from extproc.router.telemetry import configure_logging  # noqa: PLC0415

    configure_logging("INFO", sys.stderr)
    clients = KubeClients(kubeconfig=kubeconfig)
    options = OperatorOptions(
        desk=DeskOptions(image, look_s=look, namespaces=namespaces),
        me=f"{os.uname().nodename}-{os.getpid()}",
        lease_namespace=lease_namespace or clients.own_namespace(),
        listen=None if listen is None else split_location(listen),
        reports=reports,
    )

    async def work(stop: asyncio.Event) -> None:
        await run(clients, options, stop)

    until_told(work)


def crd_text() -> str:
    """The definition as a manifest."""
    head = "# Made by `make crd` of the spec's own model: change that, not this.\n"
    return head + yaml.dump(build_crd(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Repeats what comes twice instead of naming it."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # PyYAML's own name
        return True
