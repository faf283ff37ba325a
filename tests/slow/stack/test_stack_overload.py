"""Envoy survives uploads that stop: small bodies, a small heap, the shipped rules."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE

import aiohttp
import pytest

from tests.manifests.rendering import MANIFESTS, config_files, containers, pods
from tests.stack.client import CHAT, chat_about, connect, send
from tests.stack.figures import show_figures
from tests.stack.gateway import SHIPPED, Tree, find, load
from tests.stack.process import memory_bytes
from tests.stack.stack import Stack

pytestmark = pytest.mark.envoy

BOOTSTRAPS = sorted(
    path.name for path in SHIPPED.glob("*.yaml") if "overload_manager" in path.read_text()
)
BODIES_PER_HEAP = 16
MIB = 1_048_576

# The attack: uploads that stop a little before their end. Together they hold more than twice the
# heap.
BODY_BYTES = 4 * MIB
UPLOADS = 40
SENT_BYTES = BODY_BYTES - 200_000
STOPPED_S = 1
OTHERS = 50
TIGHT_PERCENT = 70  # where the rules begin

# What Envoy is before its first request, and what one tick of the monitor lets in at full speed.
BASE_BYTES = 100 * MIB
TICK_BYTES = 100 * MIB


def shrink(tree: Tree) -> None:
    """The shipped rules at a twelfth of their size, and with less patience."""
    (listener,) = (
        each for each in tree["static_resources"]["listeners"] if each["name"] == "clients"
    )
    scale = listener["per_connection_buffer_limit_bytes"] // BODY_BYTES
    listener["per_connection_buffer_limit_bytes"] //= scale
    for options in find(listener, "http2_protocol_options"):
        options["initial_stream_window_size"] //= scale
        options["initial_connection_window_size"] //= scale
    (heap,) = (
        each for each in tree["overload_manager"]["resource_monitors"] if "heap" in each["name"]
    )
    heap["typed_config"]["max_heap_size_bytes"] //= scale
    tree["overload_manager"]["buffer_factory_config"]["minimum_account_to_track_power_of_two"] -= 3
    for patience, *_ in find(tree, "timer_scale_factors"):
        patience["min_timeout"] = f"{STOPPED_S}s"


def unprotect(tree: Tree) -> None:
    """The same without the rules: what the attack does to an Envoy that has none."""
    tree["overload_manager"]["actions"] = []
    tree["overload_manager"]["loadshed_points"] = []


async def upload_http1(stack: Stack, has_stopped: asyncio.Event) -> None:
    """Announces a body, sends most of it, and waits until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.url.rpartition(":")[2]))
    try:
        length = f"content-length: {BODY_BYTES - 1}"
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: vllm\r\n{length}\r\n\r\n".encode())
        await _send_most(writer)
        has_stopped.set()
        await reader.read()
    finally:
        writer.close()


async def upload_http2(stack: Stack, has_stopped: asyncio.Event) -> None:
    options = ["--silent", "--http2-prior-knowledge", "--upload-file", "-", "--request", "POST"]
    child = await asyncio.create_subprocess_exec(
        "curl", *options, f"{stack.url}{CHAT}", stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL
    )
    assert child.stdin is not None
    try:
        await _send_most(child.stdin)
        has_stopped.set()
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _send_most(writer: asyncio.StreamWriter) -> None:
    for _ in range(SENT_BYTES // 65_536):
        writer.write(b" " * 65_536)
        await writer.drain()


Upload = Callable[[Stack, asyncio.Event], Awaitable[None]]
UPLOADING: dict[str, Upload] = {"HTTP/1.1": upload_http1, "HTTP/2": upload_http2}


@dataclass
class Seen:
    """What the others were answered, and the most memory that Envoy had."""

    answers: Counter[int] = field(default_factory=Counter)
    peak_bytes: int = 0


@asynccontextmanager
async def attack_listener(stack: Stack, upload: Upload) -> AsyncGenerator[Seen]:
    """Uploads while others ask; yields when the attackers have stopped and wait, or were cut."""
    seen, has_stopped = Seen(), [asyncio.Event() for _ in range(UPLOADS)]
    uploads = [asyncio.create_task(_upload(stack, upload, event)) for event in has_stopped]
    try:
        while not all(event.is_set() for event in has_stopped):
            await chat_once(stack, seen)
        yield seen
    finally:
        for each in uploads:
            each.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)


async def _upload(stack: Stack, upload: Upload, has_stopped: asyncio.Event) -> None:
    try:
        with suppress(OSError):
            await upload(stack, has_stopped)
    finally:
        has_stopped.set()


async def chat_once(stack: Stack, seen: Seen) -> None:
    """As one of the others, on a connection of its own; 0 counts one that was not taken or was cut."""
    try:
        async with connect(stack.url) as session:
            status = (
                await send(session, chat_about(f"one of the others {seen.answers.total()}"))
            ).status
    except (OSError, aiohttp.ClientError):
        status = 0
    seen.answers[status] += 1
    seen.peak_bytes = max(seen.peak_bytes, memory_bytes(stack.gateway.pid, "RssAnon"))


def pressure(stack: Stack) -> int:
    """The heap in use, in per cent."""
    name = "overload.envoy.resource_monitors.fixed_heap.pressure"
    return stack.gateway.counters(name)[name]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("small"), edits=[shrink]).running() as stack:
        yield stack


@pytest.mark.parametrize("protocol", UPLOADING)
async def test_uploads_that_stop_are_survived_while_others_are_served(
    small: Stack, protocol: str
) -> None:
    """1. Uploads hold more than the heap. 2. Envoy cuts some. 3. The rest waits on, others are served."""
    async with attack_listener(small, UPLOADING[protocol]) as seen:
        await asyncio.to_thread(small.gateway.wait_until, lambda: pressure(small) < TIGHT_PERCENT)
        later = Seen()
        for _ in range(OTHERS):
            await chat_once(small, later)

    everyone = seen.answers + later.answers
    show_figures(f"beside uploads that stop, {protocol}", everyone[200], everyone.total())
    assert later.answers == {200: OTHERS}
    # While memory was scarce some got 429 or 503, or were cut like the attackers.
    assert set(seen.answers) <= {200, 503, 500, 0}
    assert seen.peak_bytes < BASE_BYTES + BODIES_PER_HEAP * BODY_BYTES + TICK_BYTES
    assert small.gateway.is_running


async def test_without_the_rules_the_same_uploads_hold_more_than_the_heap(tmp_path: Path) -> None:
    """The test above can fail."""
    seen: list[int] = []
    with Stack(tmp_path, edits=[shrink, unprotect]).running() as stack:

        def is_over() -> bool:
            seen.append(pressure(stack))
            return seen[-1] > 150

        async with attack_listener(stack, upload_http1):
            await asyncio.to_thread(stack.gateway.wait_until, is_over)

    assert max(seen) > 150


async def test_an_upload_that_goes_on_is_not_cut(small: Stack) -> None:
    """The largest honest body, alone, reaches its endpoint."""
    async with connect(small.url) as session:
        answer = await send(session, chat_about("x" * (BODY_BYTES - 10_000)))

    assert answer.served_by in small.addresses


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_everything_follows_from_one_number(name: str) -> None:
    tree = load(name)
    listener = tree["static_resources"]["listeners"][0]
    body_bytes = listener["per_connection_buffer_limit_bytes"]

    assert list(find(listener, "initial_stream_window_size")) == [body_bytes]
    assert list(find(listener, "initial_connection_window_size")) == [2 * body_bytes]
    assert list(find(tree, "max_heap_size_bytes")) == [BODIES_PER_HEAP * body_bytes]


@pytest.mark.parametrize("overlay", ["overlays/gateway", "overlays/sidecar"])
def test_the_container_has_twice_the_heap(overlay: str) -> None:
    [(_, text)] = config_files(overlay, "envoy.yaml")
    heap_bytes = int(text.partition("max_heap_size_bytes: ")[2].split()[0])
    [limit] = [
        container["resources"]["limits"]["memory"]
        for pod in pods(overlay).values()
        for container in containers(pod)
        if container["name"] == "envoy"
    ]

    assert limit == f"{2 * heap_bytes // MIB}Mi"


def test_other_gateways_hold_as_much_of_a_body() -> None:
    [body_bytes, *_] = find(load("standalone.yaml"), "per_connection_buffer_limit_bytes")
    gateway = (MANIFESTS / "components/envoy-gateway/policies.yaml").read_text()
    istio = (MANIFESTS / "overlays/istio/envoyfilter.yaml").read_text()

    assert f"bufferLimit: {body_bytes // MIB}Mi" in gateway
    assert f"per_connection_buffer_limit_bytes: {body_bytes}" in istio
