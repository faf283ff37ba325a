"""The commands about the spec file itself: a commented one to begin with, and its JSON schema."""

import json
from importlib.resources import files
from pathlib import Path

import click

from extproc.bench.report.outputs import OutputError
from extproc.bench.spec.tree import Spec


@click.command("init")
@click.argument("file", metavar="[FILE]", type=click.Path(dir_okay=False, path_type=Path), required=False)
def init_command(file: Path | None) -> None:
    """Write a commented spec to FILE, which must not be there yet, or print it."""
    text = files("extproc.bench.spec").joinpath("template.yaml").read_text("utf-8")
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise OutputError(f"{file}: {error.strerror}") from None
    click.echo(f"{file}: `extproc bench plan {file}` says what it would do", err=True)


@click.command("schema")
def schema_command() -> None:
    """Print the JSON schema of a spec file, for editors."""
    click.echo(json.dumps(Spec.model_json_schema(), indent=2, allow_nan=False))
