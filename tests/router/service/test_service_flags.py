"""The service started as a chart of upstream's endpoint picker starts one: flags, no file."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.errors import SettingsError
from extproc.router.settings.picker_flags import WITHOUT_EFFECT, Flags, given_without_effect, picker_flags
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings
from tests.router.cluster.api_server import POOLS, ApiServer, serving, write_access
from tests.router.cluster.pool_objects import objective, pool_object, running_pod
from tests.stack.fetch import get_json
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.service import health_at
from tests.tables import table


def settings(flags: Flags, **environment: str) -> Settings:
    return parse_settings(flags.document(), environment, "flags")


def test_a_pools_name_alone_serves_as_upstreams_picker_does() -> None:
    made = settings(Flags("vllm"))

    [pool] = made.pools
    assert pool.endpoints.inference_pool is not None
    assert (pool.name, pool.endpoints.inference_pool.name, pool.fallbacks) == ("vllm", "vllm", 0)
    assert pool.endpoints.inference_pool.namespace is None
    server = made.server
    assert (server.listen, server.health, server.admin) == ("0.0.0.0:9002", "0.0.0.0:9003", "0.0.0.0:9090")
    assert server.tls is not None
    assert server.tls.self_signed


def test_flags_say_what_they_say_in_upstreams_picker() -> None:
    flags = Flags("vllm", "prod", 19002, 19003, 19090, cert_path="/certs", verbosity=4)
    made = settings(flags, EXTPROC_SERVER__DRAIN_S="7")

    assert made.pools[0].endpoints.inference_pool is not None
    assert made.pools[0].endpoints.inference_pool.namespace == "prod"
    assert made.server.listen.endswith(":19002")
    assert made.server.tls is not None
    assert (made.server.tls.certificate, made.server.tls.key) == ("/certs/tls.crt", "/certs/tls.key")
    assert (made.server.log_level, made.server.drain_s) == ("DEBUG", 7)
    assert settings(replace(flags, secure_serving=False)).server.tls is None
    assert made.pools[0].max_in_flight is None
    assert settings(replace(flags, max_in_flight=8)).pools[0].max_in_flight == 8
    with pytest.raises(SettingsError, match=r"flags:1: pools.0.endpoints.inference_pool.name: 'a b'"):
        settings(Flags("a b"))


def read(*arguments: str, environment: dict[str, str] | None = None) -> tuple[Any, list[str]]:
    """What a command with these flags takes them for."""
    seen: list[Any] = []

    @click.command()
    @picker_flags
    @click.pass_context
    def command(context: click.Context, /, **flags: Any) -> None:
        seen.extend((Flags(**flags), given_without_effect(context)))

    done = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0], seen[1]


@table(
    ("arguments", "flags"),
    [
        ([], Flags("vllm")),
        (["--pool-namespace=prod"], Flags("vllm", "prod")),
        (["--secure-serving=false"], Flags("vllm", secure_serving=False)),
        (["--secure-serving"], Flags("vllm")),
        (["--secure-serving", "--v=5"], Flags("vllm", verbosity=5)),
        *((form, Flags("vllm", verbosity=3)) for form in (["-v", "3"], ["-v=3"])),
        (["--max-in-flight=8"], Flags("vllm", max_in_flight=8)),
        (["--grpc-port", "1", "--grpc-health-port=2"], Flags("vllm", None, 1, 2)),
    ],
)
def test_flags_are_read_in_all_their_forms(arguments: list[str], flags: Flags) -> None:
    assert read("--pool-name", "vllm", *arguments) == read("--pool-name=vllm", *arguments) == (flags, [])
    charts = read("--pool-name=vllm", *arguments, environment={"NAMESPACE": "prod"})[0]
    assert charts == replace(flags, pool_namespace="prod"), "the chart's variable, where no flag says it"


@table("form", [["--{}", "x"], ["--{}=x"], ["--{}=false"], ["--{}"], ["--{}", ""]])
def test_what_has_no_effect_here_is_taken_and_named(form: list[str]) -> None:
    given = [part.format(name) for name in WITHOUT_EFFECT for part in form]

    assert read("--pool-name=vllm", *given) == (Flags("vllm"), [f"--{name}" for name in WITHOUT_EFFECT])


EITHER = "give either a configuration FILE (--config) or --pool-name"


@table(
    ("arguments", "said"),
    [
        (["serve", "--pool-name=vllm", "--endpoint-selector=a=b"], "--endpoint-selector"),
        (["serve"], EITHER),
        (["serve", f"--config={__file__}", "--pool-name=vllm"], EITHER),
        (["serve", __file__, f"--config={__file__}"], "give the configuration file once"),
        (["--verison"], "No such option '--verison'. Did you mean '--version'?"),
        (["--pool-namespace=prod"], EITHER),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, arguments)

    assert done.exit_code == 2
    assert said in done.output


def test_flags_beside_a_file_are_refused() -> None:
    """All of them at once; a namespace that is the chart's variable is no flag."""
    flags = ["--secure-serving=true", "--grpc-port", "9999", "-v=4", "--tracing=false"]
    done = CliRunner().invoke(cli, ["serve", "--config", __file__, *flags], env={"NAMESPACE": "prod"})

    assert done.exit_code == 2
    assert done.output.splitlines()[-1] == (
        "Error: --grpc-port, --secure-serving, -v, --tracing: "
        "need --pool-name; in a file: docs/how-to/from-llm-d.md"
    )


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put(pool_object(ports=[8000, 8001]))
        server.put(running_pod("a", "10.0.0.1"))
        server.put(objective("batch", -10))
        yield server


# As the templates of the charts `inferencepool` and `standalone` of the Inference Extension 1.x have it.
CHART = [
    *("--pool-name", "vllm", "--pool-namespace", "default", "--pool-group", "inference.networking.k8s.io"),
    *("--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml"),
    *("--ha-enable-leader-election", "--v=3", "--tracing=false", "--metrics-endpoint-auth=false"),
]


async def test_the_charts_arguments_start_the_service(api: ApiServer, tmp_path: Path) -> None:
    """1. No command, no file: flags. 2. The pool's ranks are its endpoints. 3. gRPC is TLS, health plain.

    4. With our flag for a limit, the pool's objectives count.
    """
    grpc_port, health_port, admin_port = free_ports(3)
    ports = [f"--grpc-port={grpc_port}", f"--grpc-health-port={health_port}", f"--metrics-port={admin_port}"]
    command = [sys.executable, "-m", "extproc", *CHART, *ports, "--max-in-flight", "64"]
    url, health_url = f"http://127.0.0.1:{admin_port}", f"127.0.0.1:{health_port}"
    environment = {"KUBECONFIG": str(write_access(tmp_path, api.url))}
    with Process("extproc", command, tmp_path, environment) as process:
        await asyncio.to_thread(process.wait_until, lambda: health_at(health_url) == "SERVING")
        await asyncio.to_thread(process.wait_until, lambda: get_json(f"{url}/pools")[0]["objectives"])
        [pool] = await asyncio.to_thread(get_json, f"{url}/pools")
        health = await asyncio.to_thread(health_at, health_url, "inference-extension")
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", grpc_port))
        said = [json.loads(line)["message"] for line in process.log.read_text().splitlines()]

    assert {endpoint["name"] for endpoint in pool["endpoints"]} == {"default/a:8000", "default/a:8001"}
    assert pool["objectives"] == {"batch": -10}
    assert health == "SERVING"
    assert "CERTIFICATE" in shown
    names = "config-file, --ha-enable-leader-election, --metrics-endpoint-auth, --pool-group, --tracing"
    assert f"flags that have no effect here: --{names}, --zap-encoder" in said
    assert api.of(POOLS).queries
