"""Requests a second against workers: `h2load` asks one service with 1, 2, 3 and 4 of them, in turns.

Each request is an ext_proc stream: headers, a body of 2 kB, the pick, the end. On a machine whose cores the
client shares there is less to win than cores: so the CPU of a request is told, too, of all the service's
processes.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import orjson

from extproc.router.stream.events import RequestBody
from extproc.router.stream.names import PROCESS
from tests.benchmarks.bench_streams import framed
from tests.benchmarks.report import Row, report
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool
from tests.stack.workers import Workers

COUNTS = (1, 2, 3, 4)
ROUNDS = 3
SECONDS = 3
CONNECTIONS = 8
ENDPOINTS = [f"10.0.0.{number}:8000" for number in range(1, 9)]


def conversation(directory: Path) -> Path:
    """A file with what one stream says."""
    message = {"role": "user", "content": "lorem ipsum " * 170}
    body = orjson.dumps({"model": "m", "messages": [message], "stream": True})
    said = (write(headers(content_length=str(len(body)))), write(RequestBody(body, True)))
    path = directory / "conversation"
    path.write_bytes(b"".join(framed(message) for message in said))
    return path


def cpu_s(pid: int) -> float:
    """Of a process and all below it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_s(int(child)) for child in children)


def ask(service: Service, said: Path) -> tuple[float, float]:
    """Returns requests a second, and microseconds of CPU for each."""
    before_s = cpu_s(service.pid)
    # All connections for a time: those that end sooner than others would have some let go.
    command = ["h2load", "-D", str(SECONDS), "-c", str(CONNECTIONS), "-m", "8", "-t", "1", "-d", str(said)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    url = f"http://127.0.0.1:{service.port}{PROCESS}"
    output = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    assert " 0 failed, 0 errored" in output, output
    [done] = re.findall(r"(\d+) succeeded", output)
    return int(done) / SECONDS, (cpu_s(service.pid) - before_s) / int(done) * 1e6


def start(directory: Path, workers: int) -> Service:
    directory.mkdir()
    port, admin_port = free_ports(2)
    service = Service(directory, port=port, admin_port=admin_port)
    strategy = {"name": "prefix_cache"}
    service.configure([pool(ENDPOINTS, strategy, probe=False)], workers=workers, unseen_s=0)
    service.start()
    service.wait_ready()
    if workers > 1:
        # Or else the first one that is ready has all connections, and lets some go while they are in use.
        service.wait_until(lambda: len(Workers(service).told()) == workers)
    time.sleep(1)
    return service


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        said = conversation(Path(directory))
        samples = measure(Path(directory), said)
    rows = [
        Row(f"workers: {count}, {median(costs):.0f} us of CPU a request", rates, "requests/s")
        for count, (rates, costs) in samples.items()
    ]
    report("workers", rows, reference=rows[0].name)


def measure(directory: Path, said: Path) -> dict[int, tuple[list[float], list[float]]]:
    samples: dict[int, tuple[list[float], list[float]]] = {count: ([], []) for count in COUNTS}
    for number in range(ROUNDS):
        for count in COUNTS:
            service = start(directory / f"{number}-{count}", count)
            try:
                ask(service, said)  # which does not count
                time.sleep(1)  # until it is known that those connections are gone
                for sample, row in zip(ask(service, said), samples[count], strict=True):
                    row.append(sample)
            finally:
                service.stop()
    return samples


if __name__ == "__main__":
    main()
