"""The flags of upstream's endpoint picker, so that its charts start this one: settings without a file.

`--pool-name` says enough to serve. Its other flags are taken where we have the same thing to set, and
where we have not they are taken and said to be of no effect: a chart gives them whether one wants it or not.
`--max-in-flight` is ours: upstream's picker looks at queues and caches to know when it is full, we ask the
operator, and a chart's values hold flags but no file of ours.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

# Of the Inference Extension 1.x: what there is nothing to set for. Loads are counted here and not scraped,
# every replica serves and none leads, and the plugins of its configuration are not ours.
WITHOUT_EFFECT: Final = (
    *("cache-info-metric", "config-file", "config-text", "disable-endpoint-subset-filter"),
    *("enable-cert-reload", "enable-multi-engine", "enable-pprof", "engine-label-key"),
    *("ha-enable-leader-election", "health-checking", "kv-cache-usage-percentage-metric"),
    *("lora-info-metric", "metrics-endpoint-auth", "metrics-staleness-threshold"),
    *("model-server-metrics-https-insecure-skip-verify", "model-server-metrics-path"),
    *("model-server-metrics-port", "model-server-metrics-scheme", "pool-group"),
    *("refresh-metrics-interval", "refresh-prometheus-metrics-interval", "total-queued-requests-metric"),
    *("total-running-requests-metric", "tracing", "zap-devel", "zap-encoder", "zap-log-level"),
    *("zap-stacktrace-level", "zap-time-encoding"),
)

# Where a configuration file has what a flag says.
_SETTINGS: Final = {
    "pool_namespace": "pools.endpoints.inference_pool.namespace",
    "grpc_port": "server.listen",
    "grpc_health_port": "server.health",
    "metrics_port": "server.admin",
    "secure_serving": "server.tls",
    "cert_path": "server.tls.certificate and server.tls.key",
    "verbosity": "server.log_level",
    "max_in_flight": "pools.max_in_flight",
}

# Upstream's DEBUG; its default is 2.
_DEBUG: Final = 4
_GIVEN: Final = "extproc.flags"

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
        return json.dumps({"server": self._server(), "pools": [self._pool()]})

    def _server(self) -> dict[str, object]:
        server: dict[str, object] = {
            "listen": f"0.0.0.0:{self.grpc_port}",
            "health": f"0.0.0.0:{self.grpc_health_port}",
            "admin": f"0.0.0.0:{self.metrics_port}",
            "log_level": "DEBUG" if self.verbosity >= _DEBUG else "INFO",
        }
        if self.secure_serving:
            files = {"certificate": f"{self.cert_path}/tls.crt", "key": f"{self.cert_path}/tls.key"}
            server["tls"] = files if self.cert_path else {"self_signed": True}
        return server

    def _pool(self) -> dict[str, object]:
        source = {"name": self.pool_name}
        if self.pool_namespace:
            source["namespace"] = self.pool_namespace
        pool: dict[str, object] = {"name": self.pool_name, "endpoints": {"inference_pool": source}}
        if self.max_in_flight is not None:
            pool["max_in_flight"] = self.max_in_flight
        return pool


def picker_flags(command: Command) -> Command:
    """Adds upstream's flags to a command."""
    options = [
        click.option("--pool-name", help="Serve this InferencePool, without a configuration file."),
        click.option("--pool-namespace", envvar="NAMESPACE", help="Its namespace; omitted: the Pod's own."),
        click.option("--grpc-port", type=int, default=9002, show_default=True, help="ext_proc."),
        click.option("--grpc-health-port", type=int, default=9003, show_default=True, help="gRPC health."),
        click.option("--metrics-port", type=int, default=9090, show_default=True, help="/metrics and more."),
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
        click.option("-v", "--v", "verbosity", type=_level, default="2", help="4 or more is our DEBUG."),
        click.option(
            "--max-in-flight",
            type=int,
            help="Ours: mean requests in flight per endpoint beyond which the pool answers 429, first to "
            "negative InferenceObjectives; omitted: nobody is refused.",
        ),
        *(_without_effect(name) for name in WITHOUT_EFFECT),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _level(text: str) -> int:
    # Go's flags have `-v=4`, too.
    return int(text.removeprefix("="))


def given_without_effect(context: click.Context) -> list[str]:
    """The flags of this call that change nothing."""
    return sorted(context.meta.get(_GIVEN, []))


def refuse_beside_file(context: click.Context) -> None:
    """Raises `click.UsageError` that says for each flag of this call which setting of the file to use."""
    lines = [
        f"{parameter.opts[0]} goes with --pool-name; in a file: {_SETTINGS[parameter.name]}"
        for parameter in context.command.params
        if parameter.name in _SETTINGS
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    lines += [
        f"{flag} goes with --pool-name; a file has no such setting" for flag in given_without_effect(context)
    ]
    if lines:
        raise click.UsageError("\n".join(lines))


def _without_effect(name: str) -> Callable[[Command], Command]:
    return click.option(
        f"--{name}", is_flag=False, flag_value="true", hidden=True, expose_value=False, callback=_note
    )


def _note(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_GIVEN, []).append(parameter.opts[0])
