"""`extproc operate`: the operator of Benchmarks, and the definition of the resource."""

import sys

import click
import yaml

from extproc.controller.crd import build_crd


@click.command("operate")
@click.option("--print-crd", is_flag=True, help="Print the CustomResourceDefinition and end.")
def operate(*, print_crd: bool) -> None:
    """Run Benchmarks as objects of Kubernetes: plan, Jobs, verdict. Needs the extra `operator`."""
    if print_crd:
        click.echo(crd_text(), nl=False)
        return
    sys.exit(2)


def crd_text() -> str:
    """The definition as a manifest."""
    head = "# Made by `make crd` of the spec's own model: change that, not this.\n"
    return head + yaml.dump(build_crd(), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Repeats what comes twice instead of naming it."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # PyYAML's own name
        return True
