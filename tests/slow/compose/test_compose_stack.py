"""The composed stack in containers: a day's story, and faults while answers stream (`make compose-test`)."""

import asyncio
import json
import re
import subprocess
import time
import urllib.error
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.request import urlopen

import aiohttp
import pytest

from extproc import __version__
from tests.slow.compose.docker import NETWORK, Compose, docker, engine, find_images
from tests.stack.ports import free_ports
from tests.waiting import until, wait_until

ENDPOINTS = 4
LABEL = "label=org.opencontainers.image.title=extproc-router"
# Images are built: minutes.
pytestmark = [pytest.mark.xdist_group("compose"), pytest.mark.timeout(900)]


@dataclass
class ComposeStack:
    """The stack, and the ports at which the machine reaches it."""

    compose: Compose
    gateway: int
    admin: int
    envoy: int

    def read(self, port: int, path: str) -> str:
        try:
            with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return ""

    def is_whole(self) -> bool:
        """Whether Envoy finds the service healthy, and every endpoint may be picked."""
        healthy = 'membership_healthy{envoy_cluster_name="extproc"} 1'
        ready = f'state="ready"}} {ENDPOINTS:.1f}'
        return healthy in self.read(self.envoy, "stats/prometheus") and ready in self.read(
            self.admin, "metrics"
        )


@pytest.fixture(scope="module")
def compose_stack() -> Iterator[ComposeStack]:
    gateway, admin, envoy = free_ports(3)
    ports = {"GATEWAY_PORT": gateway, "ADMIN_PORT": admin, "ENVOY_PORT": envoy}
    with engine():
        compose = Compose({**find_images(), **{name: str(port) for name, port in ports.items()}})
        try:
            compose.run("up", "--build", "--detach")
            yield ComposeStack(compose, gateway, admin, envoy)
        finally:
            compose.run("down", "--volumes", "--timeout", "5")
            # Images that this build replaced have no name any more.
            docker("image", "prune", "--force", "--filter", LABEL)
        assert compose.find_leftovers() == ["", "", ""]


def test_the_image_runs_without_rights_has_labels_and_writes_nothing(
    compose_stack: ComposeStack,
) -> None:
    name = "extproc-router:compose"
    limits = [
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--network",
        "none",
    ]
    shown, written = [
        docker("run", "--rm", *limits, name, word).stdout for word in ("--version", "init")
    ]
    [image] = json.loads(docker("image", "inspect", name).stdout)
    labels = {
        label.removeprefix("org.opencontainers.image.") for label in image["Config"]["Labels"]
    }

    assert image["Config"]["User"] == "65532:65532"
    assert {"title", "description", "licenses", "version", "revision"} <= labels
    assert (shown, "pools:" in written) == (f"extproc, version {__version__}\n", True)


@dataclass
class StreamedAnswer:
    """One answer as a client saw it: when it began and ended, who gave it, what went wrong."""

    began_s: float
    ended_s: float = 0.0
    endpoint: str = ""
    fault: str = ""


async def stream_answer(
    http: aiohttp.ClientSession, stack: ComposeStack, text: str, tokens: int = 4
) -> StreamedAnswer:
    """Streams one answer; an answer without its last line is none."""
    answer = StreamedAnswer(time.monotonic())
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
    }
    url = f"http://127.0.0.1:{stack.gateway}/v1/chat/completions"
    try:
        async with http.post(url, json={**body, "stream": True}) as response:
            answer.endpoint = response.headers.get("x-simulated-endpoint", "")
            text = await response.text()
            if response.status != 200 or not text.endswith("data: [DONE]\n\n"):
                answer.fault = f"{response.status}: {text[-200:]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.fault = repr(error)
    answer.ended_s = time.monotonic()
    return answer


@asynccontextmanager
async def streaming_clients(
    stack: ComposeStack, clients: int = 12
) -> AsyncIterator[list[StreamedAnswer]]:
    """Clients that stream one answer of a second after the other; each has a conversation of its own."""
    answers: list[StreamedAnswer] = []
    is_over = asyncio.Event()

    async def client(number: int) -> None:
        while not is_over.is_set():
            answers.append(
                await stream_answer(http, stack, f"conversation {number} of many", tokens=300)
            )
            await asyncio.sleep(0.01)

    timeout = aiohttp.ClientTimeout(total=60, sock_read=20)
    async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(client(number))
        await until(lambda: len(answers) >= clients)
        yield answers
        is_over.set()


async def stream_answers(stack: ComposeStack) -> dict[str, str]:
    async with aiohttp.ClientSession() as http:
        texts = [f"conversation {number}" for number in range(20)]
        answers = {text: await stream_answer(http, stack, text) for text in texts}
    assert not [each.fault for each in answers.values() if each.fault]
    return {text: each.endpoint for text, each in answers.items()}


def test_the_line_that_the_stack_prints_finds_its_first_answer_in_a_cache(
    compose_stack: ComposeStack,
) -> None:
    def read_lines() -> list[str]:
        printed = compose_stack.compose.run("logs", "--no-color", "ready")
        return [
            line[line.index("curl -si") :] for line in printed.splitlines() if "curl -si" in line
        ]

    wait_until(read_lines, "no line to type was ever printed")
    [line] = read_lines()
    first, second = [subprocess.check_output(line, shell=True, text=True) for _ in range(2)]
    [one, another] = [re.findall(r"x-simulated-endpoint: (\S+)", each) for each in (first, second)]

    assert (f"127.0.0.1:{compose_stack.gateway}" in line, one) == (True, another)
    assert '"cached_tokens":0' in first
    assert '"cached_tokens":32' in second


async def test_conversations_have_homes_whoever_comes_and_goes(compose_stack: ComposeStack) -> None:
    await until(compose_stack.is_whole, "an endpoint was never ready")
    homes = await stream_answers(compose_stack)
    again = await stream_answers(compose_stack)
    compose_stack.compose.run("kill", "extproc")
    without = await stream_answers(compose_stack)
    compose_stack.compose.run("start", "extproc")
    await until(compose_stack.is_whole, "the service never came back")
    # It begins with an empty index: whoever answers first is home.
    anew = await stream_answers(compose_stack)
    later = await stream_answers(compose_stack)

    assert len(Counter(homes.values())) > 1, "all conversations met on one endpoint"
    assert again == homes
    assert without != homes, "without the service somebody else picked the same endpoints"
    assert later == anew


# What is done to a service, and what undoes it: words of Compose, or where it has none, of Docker about the container.
WORDS = {
    "kill": ("kill", "start"),
    "pause": ("pause", "unpause"),
    "cut": (f"network disconnect {NETWORK}", f"network connect --alias vllm-headless {NETWORK}"),
    "restart": ("restart", ""),
}


async def do(stack: ComposeStack, words: str, service: str) -> None:
    """Again until it is done: an engine on a busy machine may fail to freeze a container."""
    if words.startswith("network"):
        ask = partial(docker, *words.split(), stack.compose.find_container(service))
    else:
        ask = partial(stack.compose.try_to, words, service)
    faults = []

    async def is_done() -> bool:
        done = await asyncio.to_thread(ask)
        faults.append(done.stderr)
        return done.returncode == 0

    if words:
        await until(is_done, lambda: faults[-1])


FAULTS = [
    *(("kill", f"vllm-{number}") for number in range(ENDPOINTS)),
    ("pause", "vllm-0"),
    ("cut", "vllm-1"),
    ("kill", "extproc"),
    ("pause", "extproc"),
    ("kill", "envoy"),
    ("restart", "envoy"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_clients_lose_what_streamed_through_the_broken_part_and_nothing_else(
    compose_stack: ComposeStack, fault: str, name: str
) -> None:
    await until(compose_stack.is_whole, "the stack was never whole")
    async with streaming_clients(compose_stack) as answers:
        before = len(answers)
        broken_s = time.monotonic()
        await do(compose_stack, WORDS[fault][0], name)
        done_s = time.monotonic()
        await until(lambda: len(answers) >= before + 60 or time.monotonic() - broken_s > 10)
        await do(compose_stack, WORDS[fault][1], name)
        await until(compose_stack.is_whole, "the stack was never whole again")
        mended_s = time.monotonic()
        mended = len(answers)
        await until(lambda: len(answers) >= mended + 36)

    lost = [each for each in answers if each.fault]
    if name == "envoy":  # nobody is there to answer
        assert all(each.ended_s >= broken_s and each.began_s <= mended_s for each in lost), lost
    elif fault in {"kill", "cut"} and name != "extproc":
        assert all(each.endpoint in {name, ""} and each.began_s <= done_s + 1 for each in lost), (
            lost
        )
        assert len(lost) <= 12
    else:
        assert lost == []
    assert len(answers) >= 100
