"""Allowed paths: which reach an endpoint, in which spelling, and what a client may say about itself."""

import json
import socket
import subprocess
from http.client import HTTPConnection

import pytest
import yaml

from extproc.router.routing.prompt.apis import APIS, api_of
from tests.stack.client import CHAT, Answer, chat_about
from tests.stack.gateway import SHIPPED, doors, find, load
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.tables import table

pytestmark = pytest.mark.envoy

BOOTSTRAPS = ["standalone.yaml", "sidecar.yaml", "xds.yaml"]
DOORS = doors(load("standalone.yaml"))

# Served without a prompt in JSON: what models there are, tokens, sounds, a socket.
WITHOUT_PROMPT = {
    *(
        "/v1/models",
        "/v1/messages/count_tokens",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ),
    *("/v1/realtime", "/tokenize", "/detokenize"),
}

# Of vLLM 0.32, for its operators; and of the simulator.
CLOSED = [
    *("/metrics", "/load", "/version", "/ping", "/reset_prefix_cache", "/v1/load_lora_adapter"),
    *("/v1/unload_lora_adapter", "/sleep", "/wake_up", "/collective_rpc", "/kv_event_sources"),
    *("/server_info", "/abort_requests", "/docs", "/openapi.json", "/simulate/fail"),
    *("/v1/chat/completions/render", "/"),
]

# Slashes twice, ways up, what is encoded once or twice, parameters, upper case, queries, an
# absolute form.
MISSED = [
    *(
        "//metrics",
        "/v1//load_lora_adapter",
        "/v1/../metrics",
        "/v1/chat/completions/../../../metrics",
    ),
    *(
        "/v1/%2e%2e/metrics",
        "/v1/.%2E/metrics",
        "/v1/..%5cmetrics",
        "/v1\\..\\metrics",
        "/v1/%252e%252e/metrics",
    ),
    *(
        "/metrics;/v1/models",
        "/v1/models;x=1",
        "/METRICS",
        "/V1/Models",
        "/metrics?/v1/models",
        "/%6detrics",
    ),
    *(
        "/metrics#/v1/models",
        "/v1/models/../metrics/../../load",
        "/v1/models/",
        "http://vllm/metrics",
    ),
]
REFUSED = [
    "/v1/..%5cmetrics",
    "/v1%2Fchat%2Fcompletions",
    "/v1/chat/completions/..%2f..%2f..%2fmetrics",
]
TRICKS = dict.fromkeys(MISSED, 404) | dict.fromkeys(REFUSED, 400)

SAME = [
    *("//v1/models", "/v1//models", "/v1/./models", "/x/../v1/models", "/v1/models?a=/metrics"),
    "/v1/%6dodels",
]


def ask_plainly(
    stack: Stack, path: str, method: str = "GET", body: bytes = b"{}", **headers: str
) -> Answer:
    """Sends a path as it is spelt."""
    connection = HTTPConnection("127.0.0.1", int(stack.url.rpartition(":")[2]), timeout=60)
    try:
        sent = body if method == "POST" else None
        connection.request(method, path, sent, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, answer.read(), fields)
    finally:
        connection.close()


def test_every_api_whose_prompt_we_read_is_allowed_and_nothing_by_chance() -> None:
    assert [name for name in APIS if not any(path.endswith(f"/{name}") for path in DOORS)] == []
    assert {path for path in DOORS if not api_of(path)} == WITHOUT_PROMPT
    assert len(DOORS) == len(set(DOORS))
    assert [doors(load(name)) for name in BOOTSTRAPS] == [DOORS] * len(BOOTSTRAPS)


def test_an_allowed_path_leads_to_an_endpoint_in_any_spelling(stack: Stack) -> None:
    answers = {
        path: ask_plainly(stack, path, "GET" if path == "/v1/models" else "POST") for path in DOORS
    }
    same = {path: ask_plainly(stack, path) for path in SAME}

    assert [
        path for path, answer in answers.items() if answer.served_by not in stack.addresses
    ] == []
    assert {(answer.status, answer.served_by in stack.addresses) for answer in same.values()} == {
        (200, True)
    }


def test_other_paths_are_not_found_in_openai_words_and_cost_the_service_nothing(
    stack: Stack,
) -> None:
    before = stack.gateway.ext_proc()["streams_started"]
    answers = [ask_plainly(stack, path, method) for path in CLOSED for method in ("GET", "POST")]

    for answer in answers:
        assert (answer.status, answer.served_by) == (404, "")
        assert answer.headers["content-type"] == "application/json"
        assert answer.error == {
            "message": "No route for this request.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
        }
    assert stack.gateway.ext_proc()["streams_started"] == before


@table("method", ["GET", "POST"])
def test_no_spelling_opens_another_path(stack: Stack, method: str) -> None:
    answers = {path: ask_plainly(stack, path, method) for path in TRICKS}

    assert {answer.served_by for answer in answers.values()} == {""}
    # A fragment is refused before any path is looked at.
    expected = {path: 400 if "#" in path else status for path, status in TRICKS.items()}
    assert {path: answer.status for path, answer in answers.items()} == expected


def test_nor_does_it_over_http2(stack: Stack) -> None:
    """A client of HTTP/2 has no way to say the others."""
    tricks = {path: status for path, status in TRICKS.items() if path[0] == "/" and "#" not in path}
    command = [
        "curl",
        "--silent",
        "--include",
        "--path-as-is",
        "--http2-prior-knowledge",
        "--max-time",
        "60",
    ]
    outputs = [
        subprocess.run(
            [*command, f"{stack.url}{path}"], capture_output=True, text=True, check=True
        ).stdout
        for path in tricks
    ]

    assert [int(output.split()[1]) for output in outputs] == [*tricks.values()]
    assert "x-served-by" not in "".join(outputs)


ANTHROPIC = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def test_anthropics_clients_are_refused_in_anthropics_words(stack: Stack) -> None:
    """By Envoy, which knows no such path; by the service, whose pools serve no such model."""
    stack.use(pool(stack.addresses, models=["llama"]))
    answers = [
        ask_plainly(stack, "/v1/messages/batches", "POST"),
        ask_plainly(stack, "/v1/messages?beta=true", "POST", chat_about("hello", model="none")),
    ]

    assert "`none`" in json.loads(answers[1].body)["error"]["message"]
    for answer in answers:
        check_anthropics(answer, 404)


def test_without_an_endpoint_each_client_gets_an_error_of_its_api(stack: Stack) -> None:
    """Every endpoint's port is closed: Envoy's own 503, with a hint when to come again."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    anthropic = ask_plainly(stack, "/v1/messages?beta=true", "POST", chat_about("nobody there"))
    plain = ask_plainly(stack, CHAT, "POST", chat_about("nobody there"))

    check_anthropics(anthropic, 503)
    assert (plain.status, plain.headers["content-type"]) == (503, "application/json")
    assert anthropic.headers["retry-after"] == plain.headers["retry-after"] == "1"
    assert (plain.error["type"], plain.error["code"]) == (
        "service_unavailable",
        "upstream_unavailable",
    )


def check_anthropics(answer: Answer, status: int) -> None:
    told = json.loads(answer.body)
    assert (answer.status, {*told}) == (status, {"type", "error"})
    assert (told["type"], told["error"]["type"]) == ("error", ANTHROPIC[status])
    assert isinstance(told["error"]["message"], str)


OLD = {
    "without a host": "GET /v1/models HTTP/1.0\r\n\r\n",
    "as ab": "GET /v1/models HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n\r\n",
    "as nginx's proxy_pass": f"POST {CHAT} HTTP/1.0\r\nhost: x\r\nconnection: close\r\n",
}


@table("stream", [False, True])
def test_http_1_0_is_spoken(stack: Stack, *, stream: bool) -> None:
    for how in OLD.values():
        request, posts = how.encode(), how.startswith("POST")
        if posts:
            body = chat_about("an old client", stream=stream)
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            request += head.encode() + body
        with socket.create_connection(
            ("127.0.0.1", int(stack.url.rpartition(":")[2])), timeout=60
        ) as client:
            client.sendall(request)
            received = client.makefile("rb")
            status = received.readline()
            headers = dict(
                line.decode().rstrip().split(": ", 1) for line in iter(received.readline, b"\r\n")
            )
            length = headers.get("content-length")
            answer = received.read() if length is None else received.read(int(length))

        assert status.split()[1] == b"200"
        assert headers["x-served-by"] in stack.addresses
        assert "transfer-encoding" not in headers
        assert (
            answer.endswith(b"data: [DONE]\n\n")
            if posts and stream
            else json.loads(answer)["object"]
        )


def test_clients_see_an_address_on_one_machine_only_and_a_reason_nowhere() -> None:
    """A reason, `prefix` or `cold`, shows one tenant whether another's prompt is cached."""
    overlays = SHIPPED.parent / "manifests/overlays"
    files = [
        *SHIPPED.glob("*.yaml"),
        overlays / "gateway/envoy.yaml",
        overlays / "sidecar/envoy.yaml",
    ]
    trees = {path: yaml.safe_load(path.read_text()) for path in files}
    told = {
        f"{path.parent.name}/{path.name}": {each["header"]["key"] for each in headers}
        for path, tree in trees.items()
        for headers in find(tree, "response_headers_to_add")
    }

    assert told == {
        "envoy/standalone.yaml": {"x-served-by"},
        "envoy/sidecar.yaml": set(),
        "envoy/xds.yaml": set(),
        "gateway/envoy.yaml": set(),
        "sidecar/envoy.yaml": set(),
    }
    marked = (SHIPPED / "sidecar.yaml").read_text().replace("[]  # measuring: ", "")
    [headers, *_] = find(yaml.safe_load(marked), "response_headers_to_add")
    assert [each["header"]["key"] for each in headers] == ["x-served-by"], (
        "asked for by taking away a mark"
    )
