"""The simulated vLLM: how many chunks a second one core sustains, 8 endpoints in one process.

Reference in the same run: a bare aiohttp server that sends the same chunks at the same pace.
`python -m tests.benchmarks.bench_simulator [--json PATH]`.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import cast
from urllib.error import URLError
from urllib.request import urlopen

import orjson
import uvloop

from tests.benchmarks.report import Row, report

ENDPOINTS = 8
STREAMS = 50  # per endpoint
TOKENS = 100
STEP_S = 0.05
FIRST_PORT = 18_900
ROUNDS = 3
# A step always takes 50 ms, so 8 x 50 streams get 8,000 chunks a second.
PROFILE = """
steady: {base_ms: 50, kv_us_per_ctx_token: 0, prefill_ms_per_token: 0, kv_tokens: 200000, block_size: 16,
  max_num_batched_tokens: 16384, max_num_seqs: 256, max_model_len: 8192}
"""


class Stream(asyncio.Protocol):
    """One request; counts the events that come and tells when the connection ends."""

    def __init__(self, number: int) -> None:
        text = f"stream {number} " + "of words " * 50
        body = orjson.dumps(
            {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "stream": True}
        )
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.chunks = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: {")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def load() -> tuple[int, float]:
    """Runs all streams at once; returns the events received and the seconds they took."""
    loop = asyncio.get_running_loop()
    began = monotonic()
    connections = [
        loop.create_connection(partial(Stream, number), "127.0.0.1", FIRST_PORT + number % ENDPOINTS)
        for number in range(ENDPOINTS * STREAMS)
    ]
    streams = [stream for _, stream in await asyncio.gather(*connections)]
    await asyncio.gather(*(stream.ended for stream in streams))
    return sum(stream.chunks for stream in streams), monotonic() - began


@contextmanager
def server(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL) as process:
        try:
            for port in range(FIRST_PORT, FIRST_PORT + ENDPOINTS):
                _wait(port)
            yield process
        finally:
            process.terminate()


def measure(command: Sequence[str]) -> tuple[list[float], list[float]]:
    """Returns a sample per round: chunks per second, and chunks per second of the server's CPU."""
    rates, per_cpu = [], []
    with server(command) as process:
        for _ in range(ROUNDS):
            before_s = cpu_s(process.pid)
            chunks, took_s = uvloop.run(load())
            rates.append(chunks / took_s)
            per_cpu.append(chunks / (cpu_s(process.pid) - before_s))
    return rates, per_cpu


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(port: int) -> None:
    deadline = monotonic() + 20
    while monotonic() < deadline:
        try:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
        except URLError as fault:
            if not isinstance(fault.reason, ConnectionRefusedError):
                return  # it answers, if only with 404
        else:
            return


def main() -> None:
    first = str(FIRST_PORT)
    bare = ["tests.benchmarks.bare_sse", first, str(ENDPOINTS), str(TOKENS), str(STEP_S)]
    ports = f"{FIRST_PORT}-{FIRST_PORT + ENDPOINTS - 1}"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as profile:
        profile.write(PROFILE)
        profile.flush()
        simulator = ["extproc", "simulate", "vllm", "--ports", ports, "--profile", profile.name]
        bare_rates, bare_per_cpu = measure(bare)
        rates, per_cpu = measure(simulator)
    report(
        f"Simulated vLLM: {ENDPOINTS} endpoints in one process, {ENDPOINTS * STREAMS} streams",
        [
            Row("bare aiohttp: delivered", bare_rates, "chunks/s"),
            Row("simulator: delivered", rates, "chunks/s"),
            Row("bare aiohttp: one core's worth", bare_per_cpu, "chunks/CPU s"),
            Row("simulator: one core's worth", per_cpu, "chunks/CPU s"),
        ],
        reference="bare aiohttp: one core's worth",
    )


if __name__ == "__main__":
    main()
