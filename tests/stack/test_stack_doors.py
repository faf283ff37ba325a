"""The doors: which paths reach an endpoint, in which spelling, and what a client may say about itself."""

import json
import socket
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from extproc.router.routing.prompt.apis import _APIS, _route, api_of
from tests.stack.client import CHAT, Answer, ask, connect, send
from tests.stack.gateway import SHIPPED, Tree, doors, find, load
from tests.stack.service import pool
from tests.stack.stack import Stack, run_stack

pytestmark = pytest.mark.envoy

BOOTSTRAPS = ["standalone.yaml", "sidecar.yaml", "xds.yaml"]
DOORS = doors(load("standalone.yaml"))

# Served without a prompt in JSON: what models there are, tokens, sounds, a socket.
WITHOUT_PROMPT = {
    "/v1/models",
    "/v1/messages/count_tokens",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/realtime",
    "/tokenize",
    "/detokenize",
}

# Of vLLM 0.32, for its operators; and of the simulator.
CLOSED = [
    "/metrics",
    "/load",
    "/version",
    "/ping",
    "/reset_prefix_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/sleep",
    "/wake_up",
    "/collective_rpc",
    "/kv_event_sources",
    "/server_info",
    "/abort_requests",
    "/docs",
    "/openapi.json",
    "/simulate/fail",
    "/v1/chat/completions/render",
    "/",
]

TRICKS = {
    "two slashes": ("//metrics", 404),
    "slashes within": ("/v1//load_lora_adapter", 404),
    "up": ("/v1/../metrics", 404),
    "up from a door": ("/v1/chat/completions/../../../metrics", 404),
    "up, encoded": ("/v1/%2e%2e/metrics", 404),
    "up, half encoded": ("/v1/.%2E/metrics", 404),
    "a slash, encoded": ("/v1%2Fchat%2Fcompletions", 400),
    "up with a slash, encoded": ("/v1/chat/completions/..%2f..%2f..%2fmetrics", 400),
    "a backslash, encoded": ("/v1/..%5cmetrics", 400),
    "a backslash": ("/v1\\..\\metrics", 404),
    "encoded twice": ("/v1/%252e%252e/metrics", 404),
    "a parameter": ("/metrics;/v1/models", 404),
    "a parameter of a door": ("/v1/models;x=1", 404),
    "upper case": ("/METRICS", 404),
    "a door in upper case": ("/V1/Models", 404),
    "a query like a door": ("/metrics?/v1/models", 404),
    "a fragment": ("/metrics#/v1/models", 404),
    "below a door": ("/v1/models/../metrics/../../load", 404),
    "behind a door": ("/v1/models/", 404),
    "the absolute form": ("http://vllm/metrics", 404),
    "a letter, encoded": ("/%6detrics", 404),
}

SAME = [
    "//v1/models",
    "/v1//models",
    "/v1/./models",
    "/x/../v1/models",
    "/v1/models?a=/metrics",
    "/v1/%6dodels",
]


def ask_plainly(stack: Stack, path: str, method: str = "GET", body: bytes = b"{}", **headers: str) -> Answer:
    """Sends a path as it is spelt."""
    connection = HTTPConnection("127.0.0.1", int(stack.url.rpartition(":")[2]), timeout=10)
    try:
        sent = body if method == "POST" else None
        connection.request(method, path, sent, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, answer.read(), fields)
    finally:
        connection.close()


def test_every_api_whose_prompt_we_read_has_a_door() -> None:
    assert {_route(path) for path in DOORS} >= set(_APIS)


def test_no_door_is_there_by_chance() -> None:
    assert {path for path in DOORS if not api_of(path)} == WITHOUT_PROMPT
    assert len(DOORS) == len(set(DOORS))


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_every_bootstrap_has_the_same_doors(name: str) -> None:
    assert doors(load(name)) == DOORS


@pytest.mark.parametrize("path", DOORS)
def test_a_door_leads_to_an_endpoint(stack: Stack, path: str) -> None:
    answer = ask_plainly(stack, path, "GET" if path == "/v1/models" else "POST")

    assert answer.served_by in stack.addresses


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_no_door_is_not_found_in_openai_words(stack: Stack, path: str, method: str) -> None:
    answer = ask_plainly(stack, path, method)

    assert (answer.status, answer.served_by, answer.headers["content-type"]) == (404, "", "application/json")
    assert answer.error == {
        "message": "No route for this request.",
        "type": "invalid_request_error",
        "param": None,
        "code": "not_found",
    }


@pytest.mark.parametrize(("path", "status"), TRICKS.values(), ids=TRICKS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_spelling_opens_another_door(stack: Stack, path: str, status: int, method: str) -> None:
    answer = ask_plainly(stack, path, method)

    assert answer.served_by == ""
    # A fragment is refused before any path is looked at.
    assert answer.status in ({status, 400} if "#" in path else {status})


# A client of HTTP/2 has no way to say the others.
TRICKS_OF_HTTP2 = {
    name: trick for name, trick in TRICKS.items() if trick[0][0] == "/" and "#" not in trick[0]
}


@pytest.mark.parametrize(("path", "status"), TRICKS_OF_HTTP2.values(), ids=TRICKS_OF_HTTP2)
def test_nor_over_http2(stack: Stack, path: str, status: int) -> None:
    command = ["curl", "--silent", "--include", "--path-as-is", "--http2-prior-knowledge", "--max-time", "10"]
    result = subprocess.run([*command, f"{stack.url}{path}"], capture_output=True, text=True, check=True)

    assert result.stdout.startswith(f"HTTP/2 {status}")
    assert "x-served-by" not in result.stdout


@pytest.mark.parametrize("path", SAME)
def test_other_spellings_of_a_door_are_that_door(stack: Stack, path: str) -> None:
    answer = ask_plainly(stack, path)

    assert (answer.status, answer.served_by in stack.addresses) == (200, True)


def test_closed_doors_cost_the_service_nothing(stack: Stack) -> None:
    before = stack.gateway.ext_proc()["streams_started"]
    for path in CLOSED:
        ask_plainly(stack, path, "POST")

    assert stack.gateway.ext_proc()["streams_started"] == before


def test_one_line_opens_a_door(tmp_path: Path) -> None:
    def open_ping(tree: Tree) -> None:
        (permissions,) = find(tree, "permissions")
        permissions.append({"url_path": {"path": {"exact": "/ping"}}})

    with run_stack(tmp_path, edits=[open_ping]) as stack:
        assert ask_plainly(stack, "/ping").status == 200
        assert ask_plainly(stack, "/load").status == 404


def test_health_is_envoys_own_and_no_pick(tmp_path: Path) -> None:
    """A load balancer before us asks whether we take requests; with everything behind us down, we do."""
    with run_stack(tmp_path, simulate=None) as stack:
        before = stack.gateway.ext_proc()["streams_started"]
        answers = [ask_plainly(stack, "/health")]
        stack.service.kill()
        answers.append(ask_plainly(stack, "/health"))

        assert [(answer.status, answer.body) for answer in answers] == [(200, b"")] * 2
        assert stack.gateway.ext_proc()["streams_started"] == before


ANTHROPIC = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def test_anthropics_clients_are_refused_in_anthropics_words(tmp_path: Path) -> None:
    """By Envoy: no such path, too large, no endpoint."""

    def shrink(tree: Tree) -> None:
        tree["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = 65_536

    with run_stack(tmp_path, simulate=None, edits=[shrink]) as stack:
        answers = [
            ask_plainly(stack, "/v1/messages/batches", "POST"),
            ask_plainly(stack, "/v1/messages", "POST", b" " * 200_000),
            ask_plainly(stack, "/v1/messages?beta=true", "POST"),
        ]
        plain = ask_plainly(stack, "/v1/completions", "POST")

    assert [answer.status for answer in answers] == [404, 413, 503]
    for answer in answers:
        _check_anthropics(answer)
    assert answers[-1].headers["retry-after"] == "1"
    assert plain.error["code"] == "upstream_unavailable"


def test_so_does_the_service_refuse_them(tmp_path: Path) -> None:
    """The model that they name is nobody's."""
    with run_stack(tmp_path, pools=lambda addresses: [pool(addresses, models=["llama"])]) as stack:
        answer = ask_plainly(stack, "/v1/messages?beta=true", "POST", ask("hello", model="none"))

    assert answer.status == 404
    assert "`none`" in json.loads(answer.body)["error"]["message"]
    _check_anthropics(answer)


def _check_anthropics(answer: Answer) -> None:
    told = json.loads(answer.body)
    assert set(told) == {"type", "error"}
    assert (told["type"], told["error"]["type"]) == ("error", ANTHROPIC[answer.status])
    assert isinstance(told["error"]["message"], str)


@asynccontextmanager
async def echo(ports: range) -> AsyncGenerator[None]:
    """Endpoints that answer with the request's headers."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({name.lower(): value for name, value in request.headers.items()})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
def empty_stack(tmp_path: Path) -> Iterator[Stack]:
    with run_stack(tmp_path, simulate=None) as stack:
        yield stack


@pytest.mark.parametrize("is_up", [True, False])
async def test_what_only_gateways_say_is_not_taken_from_a_client(empty_stack: Stack, is_up: bool) -> None:
    """Its address counts as internal here, so Envoy alone would heed its x-envoy headers."""
    claims = {
        "x-gateway-destination-endpoint-served": "1.1.1.1:1",
        "X-Gateway-Model-Name": "claim",
        "x-extproc-pool": "claim",
        "x-extproc-reason": "claim",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-max-retries": "9",
        "x-envoy-original-path": "/metrics",
        "x-envoy-force-trace": "true",
        "x-served-by": "claim",
        "x_extproc_pool": "claim",
    }
    if not is_up:
        empty_stack.service.kill()
    ports = empty_stack.ports
    async with echo(range(ports[0], ports[-1] + 1)), connect(empty_stack.url) as session:
        answer = await send(session, ask("hello"), headers={**claims, "x-mine": "kept"})

    received = json.loads(answer.body)
    assert answer.status == 200
    assert received["x-mine"] == "kept"
    assert "claim" not in received.values()
    assert not {name.lower() for name in claims} & set(received) - {"x-extproc-pool"}
    assert "claim" not in answer.headers.values()


OLD = {
    "without a host": "GET /v1/models HTTP/1.0\r\n\r\n",
    "as ab": "GET /v1/models HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n\r\n",
    "as nginx's proxy_pass": f"POST {CHAT} HTTP/1.0\r\nhost: x\r\nconnection: close\r\n",
}


@pytest.mark.parametrize("how", OLD)
@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_is_spoken(stack: Stack, how: str, stream: bool) -> None:
    request = OLD[how].encode()
    if request.startswith(b"POST"):
        body = ask("an old client", stream=stream)
        request += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", int(stack.url.rpartition(":")[2])), timeout=10) as client:
        client.sendall(request)
        received = client.makefile("rb")
        status = received.readline()
        headers = dict(line.decode().rstrip().split(": ", 1) for line in iter(received.readline, b"\r\n"))
        length = headers.get("content-length")
        answer = received.read() if length is None else received.read(int(length))

    assert status.split()[1] == b"200"
    assert headers["x-served-by"] in stack.addresses
    assert "transfer-encoding" not in headers
    if request.startswith(b"POST") and stream:
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["object"]


# How the line begins: in force, or commented out. Two files are none of Envoy's.
TOLD = {"standalone.yaml": ["-"], "extproc.yaml": [], "demo-load.yaml": []}


@pytest.mark.parametrize("name", sorted(path.name for path in SHIPPED.glob("*.yaml")))
def test_addresses_of_endpoints_are_told_on_one_machine_only(name: str) -> None:
    told = [line for line in (SHIPPED / name).read_text().splitlines() if "key: x-served-by" in line]

    assert [line.strip()[0] for line in told] == TOLD.get(name, ["#"])


def test_the_lock_that_the_docs_show_lets_in_who_has_a_key(tmp_path: Path) -> None:
    text = (SHIPPED.parent / "docs" / "envoy.md").read_text()
    [lock] = [block.partition("```")[0] for block in text.split("```yaml\n") if "api_key_auth" in block][-1:]

    def add(tree: Tree) -> None:
        filters = next(find(tree, "http_filters"))
        names = [each["name"] for each in filters]
        filters[names.index("envoy.filters.http.ext_proc") : 0] = yaml.safe_load(lock)

    with run_stack(tmp_path, edits=[add]) as stack:
        before = stack.gateway.ext_proc()["streams_started"]
        stranger = ask_plainly(stack, "/v1/models")
        assert stack.gateway.ext_proc()["streams_started"] == before
        known = ask_plainly(stack, "/v1/models", authorization="Bearer the-key-of-team-a")

    assert (stranger.status, stranger.error["type"]) == (401, "invalid_request_error")
    assert known.status == 200
