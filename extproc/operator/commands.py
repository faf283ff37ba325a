"""`extproc operate`: the operator of Benchmarks, and the definition of the resource."""

import asyncio
import logging
import sys
from pathlib import Path

import click
import yaml

from extproc.operator.crd import build_crd


@click.command("operate")
@click.option("--image", help="The image of the runs' Pods. [default: that of this operator's own Pod]")
@click.option("--namespace", "namespaces", multiple=True, help="Look after these namespaces; else after all.")
@click.option("--kubeconfig", help="A kubeconfig. [default: the service account, else ~/.kube/config]")
@click.option(
    "--look",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds after which each Benchmark is looked at again without any event.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the page, metrics and health here.")
@click.option(
    "--reports",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with NAMESPACE/CLAIM: the page links the reports in it.",
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
    """Run Benchmarks as objects of Kubernetes: plan, Jobs, verdict. Needs the extra `operator`.

    Run one replica. Ends on SIGTERM or SIGINT; runs go on without it.
    """
    if print_crd:
        click.echo(crd_text(), nl=False)
        return
    # The definition needs none of these.
    from extproc.bench.progress import run_until_signal  # noqa: PLC0415
    from extproc.bench.status_server import split_location  # noqa: PLC0415
    from extproc.operator.operator import OperatorOptions, find_own_image, run_operator  # noqa: PLC0415
    from extproc.operator.work_queue import QueueOptions  # noqa: PLC0415
    from extproc.router.cluster.kubeclient import KubeClients  # noqa: PLC0415

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    clients = KubeClients(kubeconfig=kubeconfig)

    async def work(stop: asyncio.Event) -> None:
        options = OperatorOptions(
            queue=QueueOptions(image or await find_own_image(clients), look_s=look, namespaces=namespaces),
            listen=None if listen is None else split_location(listen),
            reports=reports,
        )
        await run_operator(clients, options, stop)

    run_until_signal(work)


def crd_text() -> str:
    """The definition as a manifest."""
    head = "# Made by `make crd` of the spec's own model: change that, not this.\n"
    return head + yaml.dump(build_crd(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Repeats what comes twice instead of naming it."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # PyYAML's own name
        return True
