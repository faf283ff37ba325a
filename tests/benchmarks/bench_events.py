"""What hearing KV events costs, and how long it holds up picks.

Four publishers in processes of their own send messages as steps of engines do. CPU is this process's; a wait
is from when a pick should have come, one each 2 ms, to its end; held up is what the loop's thread worked
meanwhile, at most as long as it came too late. Reference: the same without events. `make bench-events`.
"""

import asyncio
import gc
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from time import monotonic, perf_counter, process_time, sleep, thread_time

import uvloop
import zmq

from extproc.router.events.kv_log import Heard, read_events
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
KINDS = {"none": (1, 0), "1,000 blocks a second": (32, 8), "100,000 a second": (250, 100), "floods": (0, 100)}


def publish(host: str, port: int, per_s: int, events: int) -> None:
    os.nice(10)  # beside those who measure
    socket = zmq.Context().socket(zmq.PUB)
    socket.bind(f"tcp://{host}:{port}")
    print(flush=True)  # to the process that started us
    message, number, began_s = payload(*[stored(1)] * events), 0, monotonic()
    while True:
        socket.send_multipart((b"kv", number.to_bytes(8), message))
        number += 1
        if per_s:
            sleep(max(0.0, began_s + number / per_s - monotonic()))


async def measure(port: int) -> tuple[float, list[float], list[float], Heard]:
    """CPU in per cent of a core, waits of picks and what held them up in ms, and what was heard."""
    pool, heard = Pool("llama", STRATEGIES[0]()), Heard()
    waits, works = list[float](), list[float]()
    pool.replace([Endpoint(host, f"{host}:{port}") for host in HOSTS])
    picker, asks = Picker([Route(pool)]), cycle(short_asks())
    reading = asyncio.create_task(EventReader(pool, heard, port, monotonic).run())
    await asyncio.sleep(1)
    used_s, began_s = process_time(), perf_counter()
    due_s, worked_s = began_s, thread_time()
    while due_s < began_s + ROUND_S:
        due_s = max(due_s + 0.002, perf_counter())
        await asyncio.sleep(due_s - perf_counter())
        works.append(1_000 * min(thread_time() - worked_s, perf_counter() - due_s))
        picker.pick(next(asks)).pick.release()
        waits.append(1_000 * (perf_counter() - due_s))
        worked_s = thread_time()
    cpu = 100 * (process_time() - used_s) / (perf_counter() - began_s)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return cpu, sorted(waits), sorted(works), heard


def main() -> None:
    gc.freeze()  # as the service does when it has started
    cpus, waits, works, longest = ({kind: list[float]() for kind in KINDS} for _ in range(4))
    for _ in range(ROUNDS):
        for kind, rate in KINDS.items():
            [port] = free_ports(1)
            with ExitStack() as stack:
                for host in HOSTS:
                    command = [sys.executable, "-m", "tests.benchmarks.bench_events", "publish", host]
                    process = subprocess.Popen([*command, *map(str, (port, *rate))], stdout=subprocess.PIPE)
                    stack.callback(process.wait)
                    stack.callback(process.kill)
                    process.stdout.readline()  # type: ignore[union-attr]  # it publishes
                cpu, waited, worked, heard = uvloop.run(measure(port))
            cpus[kind].append(cpu)
            waits[kind].append(waited[int(0.999 * len(waited))])
            works[kind].append(worked[int(0.999 * len(worked))])
            longest[kind].append(worked[-1])
            blocks, why = (sum(one.stored for [one] in heard.values()), {one.why for [one] in heard.values()})
            print(f"{kind}: {blocks} blocks, {why}", flush=True)
    rows = [
        Row(f"a block, {blocks} in {events} events", [each / blocks / events for each in taken], "µs")
        for blocks, events in ((1, 1), (1, 64), (2_000, 1))
        for message in [payload(*[stored(blocks)] * events)]
        for taken in [time_us(partial(read_events, message), 200)]
    ]
    for title, unit, each in (
        ("CPU", "% of a core", cpus),
        ("wait of a pick, p99.9", "ms", waits),
        ("held up, p99.9", "ms", works),
        ("held up, at most", "ms", longest),
    ):
        rows += [Row(f"{title}: {kind}", figures, unit) for kind, figures in each.items()]
    report("events", rows, reference="CPU: none")


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2], *map(int, sys.argv[3:]))
    main()
