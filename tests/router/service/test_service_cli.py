"""The commands as a user types them; and as a chart of upstream's endpoint picker does: flags, no file."""

import asyncio
import json
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.command_help import SECTIONS
from extproc.errors import SettingsError
from extproc.router.settings.picker_flags import (
    WITHOUT_EFFECT,
    Flags,
    given_without_effect,
    picker_flags,
)
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings, list_settings
from tests.router.cluster.api_server import POOLS, ApiServer, serving_api, write_access
from tests.router.cluster.pool_objects import objective, pool_object, running_pod
from tests.stack.fetch import get_json
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.service import health_at
from tests.tables import table

CONFIG = """
pools:
  - name: llama
    models: [llama]
    endpoints: {static: ["10.0.0.1:8000", "10.0.0.2:8000"]}
    strategy: {name: prefix_hash}
  - {name: qwen, models: ["qwen-*"], endpoints: {file: endpoints.yaml}, strategy: {name: least_load}}
"""


class AdminStub(BaseHTTPRequestHandler):
    """Answers with the request."""

    def do_POST(self) -> None:
        size = len(self.rfile.read(int(self.headers["content-length"])))
        answered = json.dumps(
            {"path": self.path, "x-a": self.headers["x-a"], "size": size}
        ).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answered)

    def log_message(self, *_: object) -> None:
        pass


def run_extproc(*arguments: str, body: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extproc", *arguments]
    return subprocess.run(
        command, input=body, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "endpoints.yaml").write_text("[{name: pod-1, address: 10.0.1.1, port: 8000}]")
    path = tmp_path / "extproc.yaml"
    path.write_text(CONFIG)
    return str(path)


EVERYTHING_WRONG = """\
server:
  tls:
    certificate: /nowhere/tls.crt
    key: tls.key
pools:
  - name: llama
    endpoints: {file: missing.yaml}
    name: llama
  - name: qwen
    endpoints:
      file: empty.yaml
  - name: known
    models: [known]
    endpoints: {kubernetes: {service: vllm, port: 8000}}
share:
  cluster: lab
  secret:
    env: NO_SUCH_SECRET
  mesh: {peers: {static: []}}
"""


def test_check_finds_what_serve_would_stumble_over_in_the_order_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(EVERYTHING_WRONG)
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    done = run_extproc("check", str(path))

    gone = "cannot be read: No such file or directory"
    hint = "give `models` (its own name where routes choose it by x-extproc-pool)"
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{path}:3: server.tls.certificate: /nowhere/tls.crt: {gone}",
        f"{path}:4: server.tls.key: {tmp_path}/tls.key: {gone}",
        f"{path}:7: pools.0.endpoints.file: {tmp_path}/missing.yaml: {gone}",
        f"{path}:8: pools.0.name is given twice (line 6)",
        f"{path}:9: pools.1: no model leads to qwen: llama stands before it and takes any; {hint}",
        f"{path}:11: pools.1.endpoints.file: {empty}:1: top level: expected a list",
    ]

    path.write_text(
        EVERYTHING_WRONG.replace("port: 8000", "port: 0")
    )  # every section that is valid by itself
    faults = run_extproc("check", str(path)).stderr.splitlines()
    lines = [int(fault.partition("f.yaml:")[2].split(":")[0]) for fault in faults]
    assert lines == [3, 4, 7, 8, 11, 14]


def test_check_takes_a_file_whose_secret_is_in_the_cluster_and_serve_does_not(
    config: str, tmp_path: Path
) -> None:
    path = tmp_path / "shared.yaml"
    share = EVERYTHING_WRONG.partition("share:")[2]
    keyed = CONFIG.replace("models: [llama]", "models: [llama]\n    engine_key: {env: NO_SUCH_KEY}")
    path.write_text(f"{keyed}share:{share}")
    checked, served = (run_extproc(word, str(path)) for word in ("check", "serve"))

    assert (checked.returncode, checked.stdout) == (0, f"{path}: ok, 2 pool(s)\n")
    assert checked.stderr.splitlines() == [
        f"{path}: there is no variable {name} here: `serve` needs it"
        for name in ("NO_SUCH_SECRET", "NO_SUCH_KEY")
    ]
    assert served.returncode == 2
    assert "share.secret.env: there is no variable NO_SUCH_SECRET" in served.stderr


def test_certificates_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "extproc.yaml").write_text(
        f"server:\n  tls: {{certificate: tls, key: tls}}\n{CONFIG}"
    )
    (tmp_path / "tls").write_text("no certificate")
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "extproc.yaml")])

    assert "cannot be used" in str(result.exception)


def test_check_reads_certificates(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("no certificate")
    path = tmp_path / "f.yaml"
    path.write_text(
        f"server:\n  tls: {{certificate: {tmp_path}/tls, key: {tmp_path}/tls}}\n{CONFIG}"
    )

    assert f"{path}:2: server.tls: " in run_extproc("check", str(path)).stderr


def test_explain_shows_the_endpoint_and_why(config: str) -> None:
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hi"}]})
    explained = json.loads(run_extproc("explain", "--config", config, body=body).stdout)
    again = json.loads(run_extproc("explain", "--config", config, body=body).stdout)

    assert explained == again
    assert explained["index"] == "empty: no running service was asked"
    assert (explained["pool"], explained["strategy"], explained["reason"]) == (
        "llama",
        "prefix_hash",
        "home",
    )
    assert explained["walk"][0] == {
        "endpoint": explained["endpoint"],
        "in_flight": 0,
        "is_within": True,
    }
    assert explained["bound"] == 3


def test_explain_shows_what_each_endpoint_would_cost(config: str) -> None:
    Path(config).write_text(CONFIG.replace("    strategy: {name: prefix_hash}\n", ""))
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hi " * 999}]})
    explained = json.loads(run_extproc("explain", "--config", config, body=body).stdout)

    assert (explained["strategy"], explained["reason"]) == ("prefix_cache", "cold")
    assert {offer["endpoint"] for offer in explained["candidates"]} == {
        "10.0.0.1:8000",
        "10.0.0.2:8000",
    }
    nothing = run_extproc("explain", "--config", config, body="")
    assert (nothing.returncode, "there is no body" in nothing.stderr) == (2, True)
    assert {offer["miss_tokens"] for offer in explained["candidates"]} == {
        explained["prompt_tokens"]
    }
    assert explained["prompt_tokens"] == 751


def test_explain_reads_the_endpoint_file_and_says_why_it_cannot_route(
    config: str, tmp_path: Path
) -> None:
    explained = run_extproc(
        "explain", "--config", config, body='{"model": "qwen-7b", "prompt": "hi"}'
    )
    unknown = run_extproc("explain", "--config", config, body='{"model": "gpt-9", "prompt": "hi"}')
    (tmp_path / "endpoints.yaml").unlink()
    gone = run_extproc("explain", "--config", config, "--timeout", "0.5", body="{}")

    assert (
        json.loads(explained.stdout).items()
        >= {"endpoint": "pod-1", "reason": "least_load"}.items()
    )
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "extproc: The model `gpt-9` does not exist.\n",
    )
    assert (gone.returncode, "pool qwen: no list of endpoints yet" in gone.stderr) == (2, True)


def test_explain_asks_the_running_service_for_what_it_knows(tmp_path: Path) -> None:
    """And not a fresh one: which endpoint it would get depends on what was sent before."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi " * 999}]})
    with ThreadingHTTPServer(("127.0.0.1", 0), AdminStub) as admin:
        Thread(target=admin.serve_forever, daemon=True).start()
        url = f"127.0.0.1:{admin.server_port}"
        reported = json.loads(
            run_extproc("explain", "--url", url, "--header", "X-A: 1", body=body).stdout
        )
        admin.shutdown()
    nobody = run_extproc("explain", "--url", url, body=body)
    (tmp_path / "body.json").write_text(body)

    assert reported == {
        "path": "/explain?path=%2Fv1%2Fchat%2Fcompletions",
        "x-a": "1",
        "size": len(body),
    }
    assert f"http://{url} does not explain it" in nobody.stderr
    assert (nobody.returncode, "`server.admin`" in nobody.stderr) == (2, True)
    assert (
        "extproc explain < body.json" in run_extproc("explain", str(tmp_path / "body.json")).stderr
    )


def test_init_prints_every_setting_and_can_be_used_as_it_is_and_schema_is_json(
    tmp_path: Path,
) -> None:
    written, path = run_extproc("init").stdout, tmp_path / "extproc.yaml"
    path.write_text(written)

    assert run_extproc("check", str(path)).stdout == f"{path}: ok, 1 pool(s)\n"
    assert "pools" in json.loads(run_extproc("schema").stdout)["required"]
    assert all(f" {place.rpartition('.')[2]}:" in written for place in list_settings())


@table("group", SECTIONS)
def test_help_of_every_command_is_whole_at_80_columns_with_two_examples(group: str) -> None:
    names = [name for names in SECTIONS[group].values() for name in names]
    start = [] if group == "cli" else [group]
    commands = [[*start, "-h"], *([*start, name, "-h"] for name in names)]
    texts = [CliRunner(env={"COLUMNS": "80"}).invoke(cli, command).output for command in commands]
    listed = texts[0].partition("Commands:")[2]

    assert re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE) == names
    assert [text for text in texts[1:] if text.splitlines()[2] not in listed] == []
    for text in texts:
        assert text.partition("Examples:")[2].count("extproc ") >= 2, text
        assert max(map(len, text.splitlines())) <= 80, text


@table(
    ("arguments", "instead"),
    [
        (["top", "http://127.0.0.1:9090"], "open the admin port"),
        (["explain", "--watch"], "open the admin port"),
        (["bench", "history", "--x"], "takes folders of repeats"),
        (["simulate", "fit"], "a profile's YAML"),
    ],
)
def test_a_removed_command_is_answered_with_what_to_do_instead(
    arguments: list[str], instead: str
) -> None:
    done = run_extproc(*arguments)

    assert done.returncode == 2
    assert re.search(f"was removed in 0.2: .*{instead}", done.stderr)


def settings_of_flags(flags: Flags, **environment: str) -> Settings:
    return parse_settings(flags.document(), environment, "flags")


def test_a_pools_name_alone_serves_as_upstreams_picker_does() -> None:
    made = settings_of_flags(Flags("vllm"))

    [pool] = made.pools
    assert pool.endpoints.inference_pool is not None
    assert (pool.name, pool.endpoints.inference_pool.name, pool.fallbacks) == ("vllm", "vllm", 0)
    assert pool.endpoints.inference_pool.namespace is None
    server = made.server
    assert (server.listen, server.health, server.admin) == (
        "0.0.0.0:9002",
        "0.0.0.0:9003",
        "0.0.0.0:9090",
    )
    assert server.tls is not None
    assert server.tls.self_signed


def test_flags_say_what_they_say_in_upstreams_picker() -> None:
    flags = Flags("vllm", "prod", 19002, 19003, 19090, cert_path="/certs", verbosity=4)
    made = settings_of_flags(flags, EXTPROC_SERVER__DRAIN_S="7")

    assert made.pools[0].endpoints.inference_pool is not None
    assert made.pools[0].endpoints.inference_pool.namespace == "prod"
    assert made.server.listen.endswith(":19002")
    assert made.server.tls is not None
    assert (made.server.tls.certificate, made.server.tls.key) == (
        "/certs/tls.crt",
        "/certs/tls.key",
    )
    assert (made.server.log_level, made.server.drain_s) == ("DEBUG", 7)
    assert settings_of_flags(replace(flags, secure_serving=False)).server.tls is None
    assert made.pools[0].max_in_flight is None
    assert settings_of_flags(replace(flags, max_in_flight=8)).pools[0].max_in_flight == 8
    with pytest.raises(
        SettingsError, match=r"flags:1: pools.0.endpoints.inference_pool.name: 'a b'"
    ):
        settings_of_flags(Flags("a b"))


def parse_flags(
    *arguments: str, environment: dict[str, str] | None = None
) -> tuple[Any, list[str]]:
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
    assert (
        parse_flags("--pool-name", "vllm", *arguments)
        == parse_flags("--pool-name=vllm", *arguments)
        == (flags, [])
    )
    charts = parse_flags("--pool-name=vllm", *arguments, environment={"NAMESPACE": "prod"})[0]
    assert charts == replace(flags, pool_namespace="prod"), (
        "the chart's variable, where no flag says it"
    )


@table("form", [["--{}", "x"], ["--{}=x"], ["--{}=false"], ["--{}"], ["--{}", ""]])
def test_what_has_no_effect_here_is_taken_and_named(form: list[str]) -> None:
    given = [part.format(name) for name in WITHOUT_EFFECT for part in form]

    assert parse_flags("--pool-name=vllm", *given) == (
        Flags("vllm"),
        [f"--{name}" for name in WITHOUT_EFFECT],
    )


EITHER = "give either a configuration FILE (--config) or --pool-name"


@table(
    ("arguments", "message"),
    [
        (["serve", "--pool-name=vllm", "--endpoint-selector=a=b"], "--endpoint-selector"),
        (["serve"], EITHER),
        (["serve", f"--config={__file__}", "--pool-name=vllm"], EITHER),
        (["serve", __file__, f"--config={__file__}"], "give the configuration file once"),
        (["--verison"], "No such option '--verison'. Did you mean '--version'?"),
        (["--pool-namespace=prod"], EITHER),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, arguments)

    assert done.exit_code == 2
    assert message in done.output


def test_flags_beside_a_file_are_refused() -> None:
    """All of them at once; a namespace that is the chart's variable is no flag."""
    flags = ["--secure-serving=true", "--grpc-port", "9999", "-v=4", "--tracing=false"]
    done = CliRunner().invoke(
        cli, ["serve", "--config", __file__, *flags], env={"NAMESPACE": "prod"}
    )

    assert done.exit_code == 2
    assert done.output.splitlines()[-1] == (
        "Error: --grpc-port, --secure-serving, -v, --tracing: "
        "need --pool-name; in a file: docs/how-to/from-llm-d.md"
    )


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serving_api(ApiServer()) as server:
        server.put(pool_object(ports=[8000, 8001]))
        server.put(running_pod("a", "10.0.0.1"))
        server.put(objective("batch", -10))
        yield server


# As the templates of the charts `inferencepool` and `standalone` of the Inference Extension 1.x
# have it.
CHART = [
    *(
        "--pool-name",
        "vllm",
        "--pool-namespace",
        "default",
        "--pool-group",
        "inference.networking.k8s.io",
    ),
    *("--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml"),
    *("--ha-enable-leader-election", "--v=3", "--tracing=false", "--metrics-endpoint-auth=false"),
]


async def test_the_charts_arguments_start_the_service(api: ApiServer, tmp_path: Path) -> None:
    """1. No command, no file: flags. 2. The pool's ranks are its endpoints. 3. gRPC is TLS, health plain.

    4. With our flag for a limit, the pool's objectives count.
    """
    grpc_port, health_port, admin_port = free_ports(3)
    ports = [
        f"--grpc-port={grpc_port}",
        f"--grpc-health-port={health_port}",
        f"--metrics-port={admin_port}",
    ]
    command = [sys.executable, "-m", "extproc", *CHART, *ports, "--max-in-flight", "64"]
    url, health_url = f"http://127.0.0.1:{admin_port}", f"127.0.0.1:{health_port}"
    environment = {"KUBECONFIG": str(write_access(tmp_path, api.url))}
    with Process("extproc", command, tmp_path, environment) as process:
        await asyncio.to_thread(process.wait_until, lambda: health_at(health_url) == "SERVING")
        await asyncio.to_thread(
            process.wait_until, lambda: get_json(f"{url}/pools")[0]["objectives"]
        )
        [pool] = await asyncio.to_thread(get_json, f"{url}/pools")
        health = await asyncio.to_thread(health_at, health_url, "inference-extension")
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", grpc_port))
        messages = [json.loads(line)["message"] for line in process.log.read_text().splitlines()]

    assert {endpoint["name"] for endpoint in pool["endpoints"]} == {
        "default/a:8000",
        "default/a:8001",
    }
    assert pool["objectives"] == {"batch": -10}
    assert health == "SERVING"
    assert "CERTIFICATE" in shown
    names = (
        "config-file, --ha-enable-leader-election, --metrics-endpoint-auth, --pool-group, --tracing"
    )
    assert f"flags that have no effect here: --{names}, --zap-encoder" in messages
    assert api.of(POOLS).queries
