"""What clients choose freely leaves nothing behind: names, values, paths, models, session keys."""

import gc
import random
import tracemalloc
from collections.abc import Callable

from extproc.router.stream import ext_proc_pb2 as pb
from extproc.router.stream.codec import decode, encode
from extproc.router.stream.events import RequestHeaders
from extproc.router.stream.names import KNOWN_ORDERS, READ_HEADERS
from tests.router.stream.conversations import one_pool, open_session
from tests.tables import table

PICKER = one_pool()
WANTED = READ_HEADERS | {"x-session", "traceparent"}
SIZE = 4_000
REQUESTS = 300


def opening_message(fields: dict[str, str], *, has_body: bool) -> bytes:
    message = pb.ProcessingRequest()
    message.request_headers.end_of_stream = not has_body
    message.protocol_config.request_body_mode = pb.BUFFERED
    base = {
        ":method": "POST" if has_body else "GET",
        ":path": "/v1/chat/completions",
        "x-request-id": "1",
    }
    for name, value in (base | fields).items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    return message.SerializeToString()


def send_request(fields: dict[str, str], body: bytes | None = None) -> None:
    """One request from its first message to the end of its stream."""
    session = open_session(PICKER)
    messages = [opening_message(fields, has_body=body is not None)]
    if body is not None:
        last = pb.ProcessingRequest()
        last.request_body.body, last.request_body.end_of_stream = body, True
        messages.append(last.SerializeToString())
    replies = [reply for each in messages for reply in session.on(decode(each, WANTED))]
    assert [encode(reply) for reply in replies]
    session.close()


def text_of_size(number: int) -> str:
    """A long text that no other request has."""
    return random.Random(number).randbytes(SIZE // 2).hex()


CHOICES: dict[str, Callable[[int], None]] = {
    "names of headers that end here": lambda n: send_request({f"x-llm-d-{text_of_size(n)}": "1"}),
    "short names of such": lambda n: send_request(
        {f"x-llm-d-{text_of_size(n)[i : i + 50]}": "1" for i in range(0, 1_500, 50)}
    ),
    "names of unread headers": lambda n: send_request({f"x-{text_of_size(n)}": "1"}),
    "values": lambda n: send_request({"x-gateway-inference-objective": text_of_size(n)}),
    "paths": lambda n: send_request({":path": f"/v1/{text_of_size(n)}"}, b"{}"),
    "session keys": lambda n: send_request({"x-session": text_of_size(n)}),
    "traces": lambda n: send_request({"traceparent": text_of_size(n)}),
    "models": lambda n: send_request(
        {}, b'{"model": "%s", "messages": []}' % text_of_size(n).encode()
    ),
    "times to live": lambda n: send_request({"x-llm-d-inference-ttl": text_of_size(n)}),
    "orders of known names": lambda n: send_request(
        dict.fromkeys(random.Random(n).sample(sorted(KNOWN_ORDERS), len(KNOWN_ORDERS)), "1")
    ),
    "methods": lambda n: send_request({":method": text_of_size(n)}),
}


@table("choice", CHOICES)
def test_nothing_is_kept_of_what_a_client_chose(choice: str) -> None:
    """1.2 MB of fresh text leave less than a tenth. The reply cache once kept the names twice, for good."""
    for number in range(80):  # what is kept once: replies of known kinds, interned names
        CHOICES[choice](-number - 1)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(REQUESTS):
            CHOICES[choice](number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert grown < REQUESTS * SIZE // 10


@table(
    "headers",
    [
        lambda n: {":path": f"/v1/chat/completions?{text_of_size(n) * 10}"},
        lambda n: {f"x-llm-d-{text_of_size(n) * 10}": "1"},
        lambda n: {f"x-llm-d-{text_of_size(n)[:50]}-{i}": text_of_size(n) for i in range(200)},
    ],
)
def test_requests_that_wait_for_their_bodies_hold_little_of_long_headers(
    headers: Callable[[int], dict[str, str]],
) -> None:
    """Ten thousand such, which Envoy lets one open, with paths of 60 kB would be 600 MB."""
    open_sessions = []
    tracemalloc.start()
    try:
        for number in range(100):
            message = opening_message(headers(number), has_body=True)
            session = open_session(PICKER)
            assert repr(session.on(decode(message, WANTED))).startswith("[Buffer")
            open_sessions.append(session)
        del message
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert held < 100 * 8_000


def test_long_session_keys_that_differ_at_their_ends_are_two() -> None:
    def key(value: str) -> str:
        event = decode(opening_message({"x-session": value}, has_body=True), WANTED)
        assert isinstance(event, RequestHeaders)
        return event.headers["x-session"]

    assert len({key("a" * 5_000 + end) for end in "xyz"}) == 3
    assert key("a" * 1_024) == "a" * 1_024
