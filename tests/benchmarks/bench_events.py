"""What hearing KV events costs, and how long it holds up picks. `make bench-events`.

Four publishers in processes of their own send messages as steps of engines do. CPU is this
process's. A pick is due each 2 ms; what holds it up is the loop's thread's work meanwhile, at most
as long as it came too late. A turn is what a task of the reader does until it gives way, in CPU of the
loop's thread; also of publishers that mean harm.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import cycle, repeat
from time import monotonic, perf_counter, process_time, sleep, thread_time
from typing import Any

import uvloop
import zmq

from extproc.router.events.kv_log import EventLogs, read_events
from extproc.router.events.kv_reader import EventReader
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Route
from extproc.router.routing.pool import Pool
from tests.benchmarks.bench_pick import STRATEGIES, short_asks
from tests.benchmarks.report import Row, report, time_us
from tests.router.events.publishing import payload, stored
from tests.router.events.zmtp_frames import GREETING, READY, frame, numbered
from tests.stack.ports import free_ports

ROUNDS, ROUND_S = 3, 4.0
HOSTS = [f"127.0.0.{number}" for number in range(1, 5)]
# Of each engine: messages a second, and events of one block in each; 0: as fast as it can.
KINDS = {
    "none": (1, 0),
    "1,000 blocks a second": (32, 8),
    "100,000 a second": (250, 100),
    "floods": (0, 100),
}


HOSTILE: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "empty parts without end": lambda: repeat(frame(b"", 1) * 30_000),
    "pings": lambda: repeat(frame(b"\x04PING\0\0", 4) * 5_000),
    "messages of 4,096 events": lambda: numbered(payload(*[["AllBlocksCleared"]] * 4_096)),
    "messages of 261 kB": lambda: numbered(payload(*[stored(3_000, token_ids=[7] * 60_000)] * 3)),
}


def publish_harm(host: str, port: int, name: str) -> None:
    """Is a publisher that sends this as fast as it is read, again and again."""
    os.nice(10)
    with socket.create_server((host, port)) as server:
        print(flush=True)
        while True:
            connection, _ = server.accept()
            with suppress(OSError), connection:
                connection.sendall(GREETING + READY)
                for said in HOSTILE[name]():
                    connection.sendall(said)


class TimedTask(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed: each is a turn of the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], turns: list[float]) -> None:
        self._coroutine, self._turns = coroutine, turns

    def send(self, value: Any) -> Any:
        return self._timed(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._timed(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def _timed(self, step: Callable[..., Any], *given: Any) -> Any:
        began_s = thread_time()
        try:
            return step(*given)
        finally:
            self._turns.append(1_000 * (thread_time() - began_s))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


def time_tasks(turns: list[float]) -> None:
    """Every task from now on; the one that runs is none of them."""

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(TimedTask(coroutine, turns), loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(make)


def publish(host: str, port: int, per_s: int, events: int) -> None:
    os.nice(10)  # beside those who measure
    socket, message = zmq.Context().socket(zmq.PUB), payload(*[stored(1)] * events)
    socket.bind(f"tcp://{host}:{port}")
    print(flush=True)  # to the process that started us
    number, began_s = 0, monotonic()
    while True:
        socket.send_multipart((b"kv", number.to_bytes(8), message))
        number += 1
        if per_s:
            sleep(max(0.0, began_s + number / per_s - monotonic()))


async def measure_events(port: int) -> tuple[float, float, float]:
    """CPU in per cent of a core; for how long a pick was held up at most, and the longest turn, in ms."""
    turns = list[float]()
    time_tasks(turns)
    pool, heard, longest = Pool("llama", STRATEGIES[0]()), EventLogs(), 0.0
    pool.replace([Endpoint(host, f"{host}:{port}") for host in HOSTS])
    picker, asks = Picker([Route(pool)]), cycle(short_asks())
    reading = asyncio.create_task(
        EventReader(pool, heard, port, {}, monotonic, asyncio.Event()).run()
    )
    await asyncio.sleep(1)
    used_s, worked_s, began_s = process_time(), thread_time(), perf_counter()
    due_s = began_s
    while due_s < began_s + ROUND_S:
        due_s = max(due_s + 0.002, perf_counter())
        await asyncio.sleep(due_s - perf_counter())
        longest = max(longest, 1_000 * min(thread_time() - worked_s, perf_counter() - due_s))
        picker.pick(next(asks)).pick.release()
        worked_s = thread_time()
    cpu = 100 * (process_time() - used_s) / (perf_counter() - began_s)
    print({host: (one.stored, one.why) for host, [one] in heard.items()}, flush=True)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return cpu, longest, max(turns)


def measure_beside(role: str, *given: object) -> tuple[float, float, float]:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.bench_events", role]
    with ExitStack() as stack:
        for host in HOSTS:
            process = subprocess.Popen(
                [*command, host, *map(str, (port, *given))], stdout=subprocess.PIPE
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            process.stdout.readline()  # type: ignore[union-attr]  # it publishes
        return uvloop.run(measure_events(port))


def read_whole(message: bytes) -> None:
    for _ in read_events(message):
        pass


def main() -> None:
    rows = [
        Row(
            f"a block, {blocks} in {events} events",
            [each / blocks / events for each in taken],
            "µs",
        )
        for blocks, events in ((1, 1), (1, 64), (2_000, 1))
        for taken in [time_us(partial(read_whole, payload(*[stored(blocks)] * events)), 200)]
    ]
    rounds = [
        {kind: measure_beside("publish", *rate) for kind, rate in KINDS.items()}
        | {kind: measure_beside("attack", kind) for kind in HOSTILE}
        for _ in range(ROUNDS)
    ]
    for kind in (*KINDS, *HOSTILE):
        cpu, held_up, turn = zip(*(each[kind] for each in rounds), strict=True)
        rows.append(Row(f"CPU: {kind}", cpu, "% of a core"))
        rows.append(Row(f"held up, at most: {kind}", held_up, "ms"))
        rows.append(Row(f"longest turn: {kind}", turn, "ms"))
    report("events", rows, reference="CPU: none")


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2], *map(int, sys.argv[3:]))
    if sys.argv[1:2] == ["attack"]:
        publish_harm(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    main()
