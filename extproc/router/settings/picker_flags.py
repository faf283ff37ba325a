"""The flags of upstream's endpoint picker that its charts pass, so that they start this one without a file.

`--pool-name` says enough to serve. What there is nothing to set for is taken and logged.
`--max-in-flight` is ours: upstream's picker looks at queues and caches to find that it is full, we
leave the limit to the operator, and a chart's values take flags but no file of ours.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

# What the charts of the Inference Extension 1.x pass and there is nothing to set for: every replica
# serves, none leads, and the plugins of its configuration are not ours.
WITHOUT_EFFECT: Final = (
    *("config-file", "ha-enable-leader-election", "metrics-endpoint-auth", "pool-group", "tracing"),
    "zap-encoder",
)

# Upstream's DEBUG; its default is 2.
_DEBUG: Final = 4
_GIVEN: Final = "extproc.flags"
_PORT: Final = click.IntRange(0, 65_535)
# A flag of Go's may stand without a value.
_ALONE: Final[Any] = {"is_flag": False, "flag_value": "true"}

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Flags:
    """What the flags say, in the words of our settings; ports as upstream's picker has them."""

    pool_name: str
    pool_namespace: str | None = None
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    secure_serving: bool = True
    cert_path: str | None = None
    verbosity: int = 2
    max_in_flight: int | None = None

    def document(self) -> str:
        """The configuration file that says the same."""
        server: dict[str, object] = {
            "listen": f"0.0.0.0:{self.grpc_port}",
            "health": f"0.0.0.0:{self.grpc_health_port}",
            "admin": f"0.0.0.0:{self.metrics_port}",
            "log_level": "DEBUG" if self.verbosity >= _DEBUG else "INFO",
        }
        if self.secure_serving:
            files = {"certificate": f"{self.cert_path}/tls.crt", "key": f"{self.cert_path}/tls.key"}
            server["tls"] = files if self.cert_path else {"self_signed": True}
        source = {"name": self.pool_name, "namespace": self.pool_namespace or None}
        pool = {"name": self.pool_name, "max_in_flight": self.max_in_flight}
        return json.dumps(
            {"server": server, "pools": [pool | {"endpoints": {"inference_pool": source}}]}
        )


def picker_flags(command: Command) -> Command:
    """Adds upstream's flags to a command."""
    options = [
        click.option("--pool-name", help="Serve this InferencePool, without a configuration file."),
        click.option(
            "--pool-namespace", envvar="NAMESPACE", help="Its namespace; omitted: the Pod's own."
        ),
        click.option(
            "--grpc-port", type=_PORT, default=9002, show_default=True, help="Port of ext_proc."
        ),
        click.option(
            "--grpc-health-port",
            type=_PORT,
            default=9003,
            show_default=True,
            help="gRPC health checks.",
        ),
        click.option(
            "--metrics-port", type=_PORT, default=9090, show_default=True, help="The admin port."
        ),
        # `--secure-serving` alone, or with a value as Go's flags have it.
        click.option(
            "--secure-serving",
            type=bool,
            is_flag=False,
            flag_value=True,
            default=True,
            help="TLS; false: plain text.",
        ),
        click.option("--cert-path", help="Folder of tls.crt and tls.key; omitted: self-signed."),
        click.option(
            "-v",
            "--v",
            "verbosity",
            type=lambda text: int(text.removeprefix("=")),
            default="2",
            metavar="LEVEL",
            help="4 or more logs DEBUG. Go's spelling -v=4 works, too.",
        ),
        click.option(
            "--max-in-flight",
            type=click.IntRange(1),
            help="Ours: mean requests in flight per endpoint beyond which the pool answers 429, first to "
            "negative InferenceObjectives; omitted: nobody is refused.",
        ),
        *(
            click.option(f"--{name}", hidden=True, expose_value=False, callback=_note, **_ALONE)
            for name in WITHOUT_EFFECT
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def given_without_effect(context: click.Context) -> list[str]:
    """The flags of this call that change nothing."""
    return sorted(context.meta.get(_GIVEN, []))


def refuse_beside_file(context: click.Context) -> None:
    """Raises `click.UsageError` that names each flag of this call that a file says better, or not at all."""
    names = Flags.__dataclass_fields__.keys() - {"pool_name"}
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if given := [*given, *given_without_effect(context)]:
        raise click.UsageError(
            f"{', '.join(given)}: need --pool-name; in a file: docs/how-to/from-llm-d.md"
        )


def _note(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_GIVEN, []).append(parameter.opts[0])
