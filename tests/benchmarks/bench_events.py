"""What hearing KV events costs, and how long it holds up picks. `make bench-events`.

Four publishers in processes of their own send messages as steps of engines do. CPU is this
process's. A pick is due each 2 ms; what holds it up is the loop's thread's work meanwhile, at most
as long as it came too late.
"""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from time import monotonic, perf_counter, process_time, sleep, thread_time

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
from tests.stack.ports import free_ports

ROUNDS, ROUND_S = 7, 4.0
HOSTS = [f"127.0.0.{number}" for number in range(1, 5)]
# Of each engine: messages a second, and events of one block in each; 0: as fast as it can.
KINDS = {
    "none": (1, 0),
    "1,000 blocks a second": (32, 8),
    "100,000 a second": (250, 100),
    "floods": (0, 100),
}


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


async def measure_events(port: int) -> tuple[float, float]:
    """CPU in per cent of a core, and for how long a pick was held up at most, milliseconds."""
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
    return cpu, longest


def measure_beside_events(rate: tuple[int, int]) -> tuple[float, float]:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.benchmarks.bench_events", "publish"]
    with ExitStack() as stack:
        for host in HOSTS:
            process = subprocess.Popen(
                [*command, host, *map(str, (port, *rate))], stdout=subprocess.PIPE
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
        {kind: measure_beside_events(rate) for kind, rate in KINDS.items()} for _ in range(ROUNDS)
    ]
    for kind in KINDS:
        rows.append(Row(f"CPU: {kind}", [each[kind][0] for each in rounds], "% of a core"))
        rows.append(Row(f"held up, at most: {kind}", [each[kind][1] for each in rounds], "ms"))
    report("events", rows, reference="CPU: none")


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2], *map(int, sys.argv[3:]))
    main()
