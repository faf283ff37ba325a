"""The commands. Each one imports what it needs when it runs, so that `--help` and `check` are quick."""

import asyncio
import json
import logging
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

import click

from extproc import __version__
from extproc.command_help import CommandGroup, show_examples
from extproc.errors import ExtprocError, MissingExtra, SettingsError
from extproc.router.settings.picker_flags import (
    Flags,
    given_without_effect,
    picker_flags,
    refuse_beside_file,
)

log = logging.getLogger(__name__)

# Commands of other rooms: the module that has one of that name, and what it does: help imports none
# of them.
_ROOMS: Final = {
    "simulate": ("extproc.simulator.commands", "Simulate vLLM: a server, or a whole fleet."),
    "bench": ("extproc.bench.commands", "Measure what routing does to latency and throughput."),
    "operate": ("extproc.operator.commands", "Run the Benchmark objects of a Kubernetes cluster."),
    "calibrate": ("extproc.calibrate.commands", "Measure what an engine's work costs."),
}

# The extras that whole rooms need.
COMMAND_EXTRAS: Final = {"bench": "bench", "calibrate": "bench", "operate": "operator"}

ADMIN_URL: Final = "http://127.0.0.1:9090"

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Lazy(CommandGroup):
    """Loads the simulator and the benchmark only when one of their commands runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Upstream's picker has no commands: its charts give our image flags alone.
        if args and _is_flag_of(serve, args[0]):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def summarise(self, ctx: click.Context, name: str) -> str:
        return _ROOMS[name][1] if name in _ROOMS else super().summarise(ctx, name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ROOMS:
            return super().get_command(ctx, cmd_name)
        try:
            command = getattr(import_module(_ROOMS[cmd_name][0]), cmd_name)
        except ModuleNotFoundError as error:
            if cmd_name not in COMMAND_EXTRAS or (error.name or "").startswith("extproc"):
                raise
            return _refuse(MissingExtra(f"`extproc {cmd_name}`", COMMAND_EXTRAS[cmd_name]))
        assert isinstance(command, click.Command)  # noqa: S101  # a fact of our own modules
        return command


def _is_flag_of(command: click.Command, word: str) -> bool:
    return word.partition("=")[0] in [
        name for param in command.params for name in param.opts if name != "--help"
    ]


def _refuse(missing: MissingExtra) -> click.Command:
    """A command that says what it lacks, in the list of commands, too."""

    def complain(**_: object) -> None:
        raise missing

    takes_all = {"ignore_unknown_options": True}
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings: dict[str, Any] = {
        "params": [words],
        "context_settings": takes_all,
        "add_help_option": False,
    }
    return click.Command(None, callback=complain, help=str(missing), **settings)


def _one_file(file: Path | None, config: Path | None) -> Path | None:
    """A configuration file may be given either way, with every command."""
    if file is not None and config is not None:
        raise click.UsageError("give the configuration file once, as FILE or with --config")
    return file or config


_file_argument = click.argument("file", type=_FILE, required=False)
_config_option = click.option("--config", type=_FILE, help="The same as FILE.")


@click.group(
    cls=_Lazy,
    epilog=show_examples(["extproc init > config.yaml", "extproc serve config.yaml"])
    + "\n\nShell completion: docs/reference/commands.md. All else: README.md and docs/.",
)
@click.version_option(__version__, prog_name="extproc")
def cli() -> None:
    """Routes vLLM requests to the endpoint that has their prefix in its cache, behind Envoy."""


@cli.command()
@_file_argument
@click.option("--config", type=_FILE, help="The same as FILE; it is watched.")
@picker_flags
@click.pass_context
def serve(context: click.Context, /, file: Path | None, config: Path | None, **flags: Any) -> None:
    """Run the ext_proc service.

    It runs until SIGTERM or SIGINT; a second signal ends it at once. Give a configuration FILE, or
    with
    --pool-name one InferencePool. --config and --max-in-flight are our own flags. All others are those of the
    endpoint picker of Kubernetes' Inference Extension.
    """
    import uvloop  # noqa: PLC0415

    from extproc.router.app import Start, serve_until_signal  # noqa: PLC0415
    from extproc.router.logs import configure_logging  # noqa: PLC0415
    from extproc.router.settings.reading import parse_settings  # noqa: PLC0415

    config = _one_file(file, config)
    if (config is None) == (flags["pool_name"] is None):
        raise click.UsageError("give either a configuration FILE (--config) or --pool-name")
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
@_file_argument
@_config_option
def check(file: Path | None, config: Path | None) -> None:
    """Check a configuration FILE.

    Exits with 0 if it can be used. If not, it prints every fault with its line, and exits with 2.
    """
    from extproc.router.service.check import check_file, list_absent  # noqa: PLC0415

    path = _one_file(file, config)
    if path is None:
        raise click.UsageError("give a configuration FILE")
    settings = check_file(path, os.environ)
    for name in list_absent(settings, os.environ):
        click.echo(f"{path}: there is no variable {name} here: `serve` needs it", err=True)
    click.echo(f"{path}: ok, {len(settings.pools)} pool(s)")


@cli.command()
def schema() -> None:
    """Print the configuration's JSON schema, for editors."""
    from extproc.router.settings.tree import Settings  # noqa: PLC0415

    click.echo(json.dumps(Settings.model_json_schema(), indent=2))


@cli.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def init(context: click.Context) -> None:
    """Print a configuration with every setting, explained."""
    from extproc.init.settings_file import write_configuration  # noqa: PLC0415

    if context.invoked_subcommand is None:
        click.echo(write_configuration(), nl=False)


class _ServicePort(click.IntRange):
    """A port's number. A name is refused with what to write instead: routes of gateways take numbers only."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).isdecimal():
            self.fail(
                f"{value!r} is not a number. (A port's name goes with --target-port.)", param, ctx
            )
        return super().convert(value, param, ctx)


@init.command("kubernetes")
@click.option("--service", required=True, metavar="NAME", help="The Service of your vLLM Pods.")
@click.option(
    "--port", required=True, type=_ServicePort(1, 65_535), help="The Service's port, a number."
)
@click.option(
    "--target-port", metavar="PORT", help="The Pods' port, a number or a name. [default: --port]"
)
@click.option("--model", required=True, help="The model that these Pods serve.")
@click.option(
    "--prefill-service",
    metavar="NAME",
    help="Another Service, whose Pods only compute prompts, at the same port. The first one's need llm-d's sidecar.",
)
@click.option(
    "--namespace", default="default", show_default=True, help="The namespace of these Pods."
)
@click.option("--image", metavar="IMAGE", help="The image of this service, with its tag.")
@click.option("--pull-secret", metavar="NAME", help="The Secret by which nodes may pull it.")
@click.option(
    "--gateway",
    default="envoy",
    show_default=True,
    type=click.Choice(["envoy", "envoy-gateway", "istio", "existing"]),
    help="What asks the service: a new Envoy, a new Gateway, or a Gateway that you have already.",
)
@click.option(
    "--shadow",
    is_flag=True,
    help="Route nothing: watch what a gateway of yours shows, and foretell what routing would save.",
)
@click.option(
    "--engine",
    default="l4-llama8b-fp8",
    show_default=True,
    metavar="NAME",
    help="The engine whose measured constants are nearest to yours; `extproc schema` lists them.",
)
@click.option(
    "--output",
    default="extproc-kubernetes",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The new folder to write.",
)
def init_kubernetes(*, port: int, target_port: str | None, **given: Any) -> None:
    """Write a folder for `kubectl apply -k`.

    It puts the router before the vLLM Pods of a Service that you have already. One line names this
    Service.
    """
    from extproc.init.kubernetes_folder import KubernetesFolder  # noqa: PLC0415

    target = target_port or str(port)
    number = int(target) if re.fullmatch("[0-9]{1,9}", target) else target
    folder = KubernetesFolder(port=port, target_port=number, **given)
    folder.write()
    click.echo(folder.describe(), nl=False)


def _refuse_watch(_: click.Context, __: click.Parameter, is_given: bool) -> None:
    if is_given:
        raise click.UsageError(
            "`--watch` was removed in 0.2: open the admin port, see docs/how-to/live.md"
        )


def _check_headers(
    _: click.Context, __: click.Parameter, headers: tuple[str, ...]
) -> dict[str, str]:
    for header in headers:
        if ":" not in header:
            raise click.BadParameter(f"{header!r} has no colon: write NAME:VALUE")
    pairs = [header.partition(":") for header in headers]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


@cli.command()
@_file_argument
@click.option(
    "--watch", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refuse_watch
)
@_config_option
@click.option(
    "--url", metavar="URL", help=f"The running service's admin port. [default: {ADMIN_URL}]"
)
@click.option(
    "--path", default="/v1/chat/completions", show_default=True, help="The request's path."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    callback=_check_headers,
    help="A header of the request.",
)
@click.option("--timeout", default=10.0, show_default=True, help="Seconds to wait for an answer.")
def explain(
    *,
    file: Path | None,
    config: Path | None,
    url: str | None,
    path: str,
    headers: dict[str, str],
    timeout: float,
) -> None:
    """Say where a request would go, and why.

    It reads the request's body from standard input. It asks the running service, which knows what
    is cached and how busy the endpoints are. With a configuration FILE it asks a new picker without
    such knowledge.
    """
    from extproc.router.service.explain import explain_once, fetch_explanation  # noqa: PLC0415
    from extproc.router.settings.reading import load_settings  # noqa: PLC0415

    config = _one_file(file, config)
    if config is not None and url is not None:
        raise click.UsageError("--url asks the running service, FILE does not: give one of the two")
    if sys.stdin.isatty():
        click.echo("type or paste the request's body, then press Ctrl-D", err=True)
    body = sys.stdin.buffer.read()
    no_body = click.UsageError("there is no body: give the request's on standard input")
    if config is None:
        if not body:
            raise no_body
        said = fetch_explanation(
            url or ADMIN_URL, path=path, headers=headers, body=body, timeout_s=timeout
        )
    else:
        try:
            settings = load_settings(config, os.environ)
        except SettingsError as error:
            if "pools: is missing" not in str(error):
                raise
            hint = "FILE is a configuration; give a request's body so: extproc explain < body.json"
            raise SettingsError(f"{error}\n{hint}") from None
        if not body:
            raise no_body
        fresh = explain_once(
            settings,
            config.parent,
            os.environ,
            path=path,
            headers=headers,
            body=body,
            timeout_s=timeout,
        )
        said = {"index": "empty: no running service was asked"} | asyncio.run(fresh)
    click.echo(json.dumps(said, indent=2))


@cli.command()
@_file_argument
@_config_option
@click.option(
    "--url", metavar="URL", help=f"The running service's admin port. [default: FILE's, {ADMIN_URL}]"
)
@click.option("--envoy", metavar="URL", help="The admin port of an Envoy that asks the service.")
@click.option(
    "--namespace", metavar="NAME", help="The service's namespace. [default: the engines']"
)
@click.option("--seconds", default=5.0, show_default=True, help="How long to count requests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    *,
    file: Path | None,
    config: Path | None,
    url: str | None,
    envoy: str | None,
    namespace: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Find what is wrong, and say how to fix it.

    It looks at the running service, its configuration (FILE's, if one is given), the engines, Envoy
    and Kubernetes, and changes nothing. Exits with 0 if nothing is wrong, 1 if something is (notes
    do not count), 2 if it finds no configuration. docs/how-to/doctor.md has every finding.
    """
    from extproc.doctor.checks import write_report  # noqa: PLC0415
    from extproc.doctor.collect import look_around  # noqa: PLC0415
    from extproc.router.settings.reading import load_settings  # noqa: PLC0415

    path = _one_file(file, config)
    settings = None if path is None else load_settings(path, os.environ)
    if url is None and settings is not None:
        host, _, port = settings.server.admin.rpartition(":")
        url = f"{'127.0.0.1' if host in {'', '0.0.0.0', '[::]'} else host}:{port}"
    look = look_around(
        _base(url or ADMIN_URL),
        envoy and _base(envoy),
        namespace,
        settings,
        seconds,
        read_key=lambda pool: pool.engine_headers(Path(path or ".").parent, os.environ),
    )
    text, status = write_report(asyncio.run(look), as_json=as_json)
    click.echo(text)
    sys.exit(status)


@cli.command()
@click.argument("file", type=_FILE, required=False)
@click.option("--url", metavar="URL", help=f"The service's admin port. [default: {ADMIN_URL}]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, without text of prompts.")
def lint(*, file: Path | None, url: str | None, as_json: bool) -> None:
    """Say where prompts part that begin alike, and so lose hits.

    It asks the running service about pools with `lint: true`, or reads a FILE with one request's
    body a line (OpenAI's or Anthropic's). Exits with 1 if it finds something.
    """
    from extproc.router.service import lint_report as report  # noqa: PLC0415

    if file is not None and url is not None:
        raise click.UsageError("give FILE or --url")
    if file is not None:
        told, text = report.lint_file(file)
        pools = [told]
    else:
        pools = report.fetch_partings(_base(url or ADMIN_URL))
        if not pools:
            raise ExtprocError("no pool has `lint: true`: docs/how-to/lost-hits.md")
        text = report.write_partings(pools)
    click.echo(report.write_json(pools) if as_json else text)
    sys.exit(int(any(each.partings for each in pools)))


@cli.group(cls=CommandGroup)
def shadow() -> None:
    """Say what routing would save, or saves (pools with a `shadow`)."""


@shadow.command("report")
@click.option("--url", default=ADMIN_URL, show_default=True, help="The service's admin port.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--page",
    type=click.File("w", "utf-8", lazy=True),
    metavar="FILE",
    help="Write a page with charts, too.",
)
def shadow_report(*, url: str, as_json: bool, page: TextIO | None) -> None:
    """Print what the running service foretells.

    That is one sentence for each pool, and the figures that it comes from.
    """
    from extproc.router.service import shadow_report as report  # noqa: PLC0415

    forecasts = report.fetch_forecasts(_base(url))
    if not forecasts:
        raise ExtprocError(f"{url}: no pool has a `shadow`: docs/start/shadow.md")
    click.echo(report.as_json(forecasts) if as_json else report.write_text(forecasts))
    if page is not None:
        page.write(report.write_page(forecasts))


@shadow.command("reset")
@click.argument("pool")
@click.option("--url", default=ADMIN_URL, show_default=True, help="The service's admin port.")
def shadow_reset(*, pool: str, url: str) -> None:
    """Forget what was compared of a POOL, and begin anew."""
    from extproc.router.service import shadow_report as report  # noqa: PLC0415

    report.begin_again(_base(url), pool)


def _base(url: str) -> str:
    return (url if "://" in url else f"http://{url}").rstrip("/")


def main() -> None:
    """Runs a command; an error of ours becomes a message and exit status 2."""
    try:
        cli()
    except ExtprocError as error:
        # A place in a file goes first, where editors look for it.
        is_placed = re.match(r"\S+:\d+: ", str(error))
        click.echo(f"{'' if is_placed else 'extproc: '}{error}", err=True)
        sys.exit(2)
