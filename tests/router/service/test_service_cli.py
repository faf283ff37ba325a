"""The commands as a user types them."""

import json
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.command_help import SECTIONS
from extproc.router.settings.tree import list_settings
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
        said = json.dumps({"path": self.path, "x-a": self.headers["x-a"], "size": size}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


def run(*arguments: str, body: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extproc", *arguments]
    return subprocess.run(command, input=body, capture_output=True, text=True, timeout=60, check=False)


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
    key: /nowhere/tls.key
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
    done = run("check", str(path))

    gone = "cannot be read: No such file or directory"
    hint = "give `models` (its own name where routes choose it by x-extproc-pool)"
    assert done.returncode == 2
    assert done.stderr.removeprefix("extproc: ").splitlines() == [
        f"{path}:3: server.tls.certificate: /nowhere/tls.crt: {gone}",
        f"{path}:4: server.tls.key: /nowhere/tls.key: {gone}",
        f"{path}:7: pools.0.endpoints.file: {tmp_path}/missing.yaml: {gone}",
        f"{path}:8: name is given twice (line 6)",
        f"{path}:9: pools.1: no model leads to qwen: llama stands before it and takes any; {hint}",
        f"{path}:11: pools.1.endpoints.file: {empty}:1: top level: expected a list",
        f"{path}:18: share.secret.env: there is no variable NO_SUCH_SECRET",
    ]

    path.write_text(
        EVERYTHING_WRONG.replace("port: 8000", "port: 0")
    )  # every section that is valid by itself
    faults = run("check", str(path)).stderr.splitlines()
    lines = [int(fault.partition("f.yaml:")[2].split(":")[0]) for fault in faults]
    assert lines == [3, 4, 7, 8, 11, 14, 14, 14, 18]


def test_check_reads_certificates(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("no certificate")
    path = tmp_path / "f.yaml"
    path.write_text(f"server:\n  tls: {{certificate: {tmp_path}/tls, key: {tmp_path}/tls}}\n{CONFIG}")

    assert f"{path}:2: server.tls: " in run("check", str(path)).stderr


def test_explain_tells_the_endpoint_and_why(config: str) -> None:
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hi"}]})
    told = json.loads(run("explain", "--config", config, body=body).stdout)
    again = json.loads(run("explain", "--config", config, body=body).stdout)

    assert told == again
    assert told["index"] == "empty: no running service was asked"
    assert (told["pool"], told["strategy"], told["reason"]) == ("llama", "prefix_hash", "home")
    assert told["walk"][0] == {"endpoint": told["endpoint"], "in_flight": 0, "is_within": True}
    assert told["bound"] == 3


def test_explain_tells_what_each_endpoint_would_cost(config: str) -> None:
    Path(config).write_text(CONFIG.replace("    strategy: {name: prefix_hash}\n", ""))
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "hi " * 999}]})
    told = json.loads(run("explain", "--config", config, body=body).stdout)

    assert (told["strategy"], told["reason"]) == ("prefix_cache", "cold")
    assert {offer["endpoint"] for offer in told["candidates"]} == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert {offer["miss_tokens"] for offer in told["candidates"]} == {told["prompt_tokens"]}
    assert told["prompt_tokens"] == 751


def test_explain_reads_the_endpoint_file_and_says_why_it_cannot_route(config: str, tmp_path: Path) -> None:
    told = run("explain", "--config", config, body='{"model": "qwen-7b", "prompt": "hi"}')
    unknown = run("explain", "--config", config, body='{"model": "gpt-9", "prompt": "hi"}')
    (tmp_path / "endpoints.yaml").unlink()
    gone = run("explain", "--config", config, "--timeout", "0.5", body="{}")

    assert json.loads(told.stdout).items() >= {"endpoint": "pod-1", "reason": "least_load"}.items()
    assert (unknown.returncode, unknown.stderr) == (2, "extproc: The model `gpt-9` does not exist.\n")
    assert gone.returncode == 2
    assert "pool qwen: no list of endpoints yet" in gone.stderr


def test_explain_asks_the_running_service_for_what_it_knows(tmp_path: Path) -> None:
    """And not a fresh one: which endpoint it would get depends on what was sent before."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi " * 999}]})
    with ThreadingHTTPServer(("127.0.0.1", 0), AdminStub) as admin:
        Thread(target=admin.serve_forever, daemon=True).start()
        url = f"127.0.0.1:{admin.server_port}"
        said = json.loads(run("explain", "--url", url, "--header", "X-A: 1", body=body).stdout)
        admin.shutdown()
    nobody = run("explain", "--url", url, body=body)

    assert said == {"path": "/explain?path=%2Fv1%2Fchat%2Fcompletions", "x-a": "1", "size": len(body)}
    assert nobody.returncode == 2
    assert f"http://{url} does not explain it" in nobody.stderr
    assert "`server.admin`" in nobody.stderr


def test_init_prints_every_setting_and_can_be_used_as_it_is_and_schema_is_json(tmp_path: Path) -> None:
    written, path = run("init").stdout, tmp_path / "extproc.yaml"
    path.write_text(written)

    assert run("check", str(path)).stdout == f"{path}: ok, 1 pool(s)\n"
    assert "pools" in json.loads(run("schema").stdout)["required"]
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
def test_a_removed_command_is_answered_with_what_to_do_instead(arguments: list[str], instead: str) -> None:
    done = run(*arguments)

    assert done.returncode == 2
    assert re.search(f"was removed in 0.2: .*{instead}", done.stderr)
