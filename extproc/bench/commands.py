"""`extproc bench`: the group, and the commands for one run and for its dataset."""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from extproc.bench.datasets.honesty import account
from extproc.bench.datasets.prepared import write_prepared
from extproc.bench.experiment_commands import ab, compare_command, plan_command, saturate_command
from extproc.bench.experiments.run import run
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import Numbering, build_workload
from extproc.bench.progress import watching
from extproc.bench.report.outputs import print_verdict, write_reports
from extproc.bench.report.report import build as build_report
from extproc.bench.report.vllm import vllm_text
from extproc.bench.spec.tree import read_spec

CLIENT_LIMITED = 3

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measure what routing does, and never report a load that was not offered."""


@bench.command("run")
@click.argument("spec_file", metavar="SPEC.yaml", type=_FILE)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for every report.")
@click.option("--metrics-port", type=int, help="Serve live Prometheus metrics on this port.")
@click.option("--quiet", is_flag=True, help="No live display.")
@click.option("--allow-client-limited", is_flag=True, help="Exit 0 even if the client was the limit.")
def run_command(
    spec_file: Path, output: Path | None, metrics_port: int | None, quiet: bool, allow_client_limited: bool
) -> None:
    """Run a benchmark. Exit 3 if it measured the client, not the server."""
    spec = read_spec(spec_file)
    registry = build_registry(spec.plugins)
    console = Console(stderr=True)
    with watching(spec.name, console, metrics_port, quiet=quiet) as progress:
        result = asyncio.run(run(spec, progress=progress))
    said = build_report(result)
    click.echo(vllm_text(said.whole))
    print_verdict(said.verdict, console)
    if output is not None:
        for path in write_reports(result, said, output, registry.reports):
            click.echo(str(path), err=True)
    if not said.verdict.is_valid and not allow_client_limited:
        sys.exit(CLIENT_LIMITED)


@bench.command()
@click.argument("spec_file", metavar="SPEC.yaml", type=_FILE)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the dataset here.")
@click.option("--endpoints", default=8, show_default=True, help="Endpoints that the period is held against.")
@click.option("--json", "as_json", is_flag=True, help="The account as JSON.")
def dataset(spec_file: Path, output: Path | None, endpoints: int, as_json: bool) -> None:
    """Prepare a spec's dataset and say honestly what is in it."""
    spec = read_spec(spec_file)
    workload = build_workload(spec, build_registry(spec.plugins))
    per_cycle = Numbering(workload.conversations).per_cycle
    honesty = account(workload.conversations, workload.requests or per_cycle, endpoints)
    if output is not None:
        write_prepared(output, workload.conversations)
    click.echo(json.dumps(asdict(honesty), indent=2) if as_json else str(honesty))


for _command in (compare_command, ab, saturate_command, plan_command):
    bench.add_command(_command)
