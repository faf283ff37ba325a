"""The commands. Each one imports what it needs when it runs, so that `--help` and `check` are quick."""

import asyncio
import json
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from extproc import __version__
from extproc.errors import ExtprocError, MissingExtra
from extproc.router.settings.picker_flags import Flags, given_without_effect, picker_flags, refuse_beside_file

log = logging.getLogger(__name__)

# Command groups of other rooms: each module has a group of that name.
_ROOMS: Final = {
    "simulate": "extproc.simulator.commands",
    "bench": "extproc.bench.commands",
    "operate": "extproc.operator.commands",
}

# The extras that whole rooms need.
_EXTRAS: Final = {"bench": "bench", "operate": "operator"}

ADMIN_URL: Final = "http://127.0.0.1:9090"

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Lazy(click.Group):
    """Loads the simulator and the benchmark only when one of them is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Upstream's picker has no commands: its charts give our image flags alone.
        if args and args[0].startswith("-") and args[0] not in {"--help", "--version"}:
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ROOMS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ROOMS:
            return super().get_command(ctx, cmd_name)
        try:
            command = getattr(import_module(_ROOMS[cmd_name]), cmd_name)
        except ModuleNotFoundError as error:
            if cmd_name not in _EXTRAS or (error.name or "").startswith("extproc"):
                raise
            return _refuse(MissingExtra(f"`extproc {cmd_name}`", _EXTRAS[cmd_name]))
        assert isinstance(command, click.Command)  # noqa: S101  # a fact of our own modules
        return command


def _refuse(missing: MissingExtra) -> click.Command:
    """A command that says what it lacks, in the list of commands, too."""

    def complain(**_: object) -> None:
        raise missing

    takes_all = {"ignore_unknown_options": True}
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings: dict[str, Any] = {"params": [words], "context_settings": takes_all, "add_help_option": False}
    return click.Command(None, callback=complain, help=str(missing), **settings)


@click.group(cls=_Lazy)
@click.version_option(__version__, prog_name="extproc")
def cli() -> None:
    """Routes vLLM requests to the endpoint that has their prefix in its cache, behind Envoy."""


@cli.command()
@click.option("--config", type=_FILE, help="The configuration file; it is watched.")
@picker_flags
@click.pass_context
def serve(context: click.Context, /, config: Path | None, **flags: Any) -> None:
    """Run the ext_proc service until SIGTERM or SIGINT; a second signal forces the end.

    What it serves is in a configuration file, or it is one InferencePool and --pool-name names it. The
    flags but --config and --max-in-flight are those of upstream's endpoint picker.
    """
    import uvloop  # noqa: PLC0415

    from extproc.router.app import Start, serve_until_signal  # noqa: PLC0415
    from extproc.router.logs import configure_logging  # noqa: PLC0415
    from extproc.router.settings.reading import parse_settings  # noqa: PLC0415

    if (config is None) == (flags["pool_name"] is None):
        raise click.UsageError("give either --config or --pool-name")
    if config is not None:
        refuse_beside_file(context)
        start = Start.of_file(config)
    else:
        document = Flags(**flags).document()
        start = Start(parse_settings(document, os.environ, "flags"), None, document.encode())
    configure_logging(start.settings.server.log_level, sys.stderr)
    ignored = given_without_effect(context)
    if ignored:
        log.info("flags that have no effect here: %s", ", ".join(ignored))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(serve_until_signal(start)))


@cli.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Check a configuration FILE: exit 0 if it can be used, 2 with every fault and where it is."""
    from extproc.router.service.check import check_file  # noqa: PLC0415

    settings = check_file(file, os.environ)
    click.echo(f"{file}: ok, {len(settings.pools)} pool(s)")


@cli.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from extproc.router.settings.tree import Settings  # noqa: PLC0415

    click.echo(json.dumps(Settings.model_json_schema(), indent=2))


def _refuse_watch(_: click.Context, __: click.Parameter, is_given: bool) -> None:
    if is_given:
        raise click.UsageError("`--watch` was removed in 0.2: open the admin port, see docs/live.md")


@cli.command()
@click.option("--watch", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refuse_watch)
@click.option("--config", type=_FILE, required=True, help="The configuration file.")
@click.option("--path", default="/v1/chat/completions", show_default=True, help="The request's path.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header of the request.")
@click.option("--timeout", default=10.0, show_default=True, help="Seconds to wait for the endpoints.")
def explain(*, config: Path, path: str, headers: tuple[str, ...], timeout: float) -> None:
    """Say which endpoint the request body on standard input would get, and why."""
    from extproc.router.service.explain import explain_once  # noqa: PLC0415
    from extproc.router.settings.reading import load_settings  # noqa: PLC0415

    settings = load_settings(config, os.environ)
    body = sys.stdin.buffer.read()
    told = asyncio.run(
        explain_once(settings, config.parent, path=path, headers=headers, body=body, timeout_s=timeout)
    )
    click.echo(json.dumps(told, indent=2))


@cli.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("_", nargs=-1)
def top(_: tuple[str, ...]) -> None:
    """Removed in 0.2."""
    raise click.UsageError("`top` was removed in 0.2: open the admin port in a browser, see docs/live.md")


def main() -> None:
    """Runs a command; an error of ours becomes a message and exit status 2."""
    try:
        cli()
    except ExtprocError as error:
        click.echo(f"extproc: {error}", err=True)
        sys.exit(2)
