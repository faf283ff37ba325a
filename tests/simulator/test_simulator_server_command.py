"""`extproc simulate vllm` as a process."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest
import zmq

from extproc.cli import main
from extproc.simulator.server_commands import read_ports
from tests.stack.ports import free_ports
from tests.tables import table

COMMAND = [sys.executable, "-m", "extproc", "simulate", "vllm"]
PROFILE = """
tiny-gpu: {base_ms: 1, kv_us_per_ctx_token: 0, prefill_ms_per_token: 0, kv_tokens: 8192, block_size: 16,
  max_num_batched_tokens: 2048, max_num_seqs: 8, max_model_len: 2048}
"""


@contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_urls(process: subprocess.Popen[str], count: int) -> dict[str, str]:
    """Returns the URL of each endpoint that is announced."""
    assert process.stdout
    lines = [process.stdout.readline().strip() for _ in range(count)]
    return dict(line.split(": ", 1) for line in lines)


def run_server_command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=30, check=False
    )


@table("number", [signal.SIGINT, signal.SIGTERM])
def test_a_range_of_ports_is_served_until_a_signal_comes(number: signal.Signals) -> None:
    """Three endpoints live and die together.

    1. Three endpoints on neighbouring ports announce themselves by name.
    2. Each one answers for itself.
    3. A signal ends them all with status 0, and the ports are free again.
    """
    ports = free_ports(3)
    with running("--ports", f"{ports[0]}-{ports[-1]}", "--name", "pod", "--model", "m") as process:
        urls = read_urls(process, 3)
        assert urls == {
            f"pod-{index}": f"http://127.0.0.1:{port}" for index, port in enumerate(ports)
        }
        for name, url in urls.items():
            with urlopen(f"{url}/v1/models", timeout=5) as answer:
                assert answer.headers["x-simulated-endpoint"] == name
                assert msgspec.json.decode(answer.read())["data"][0]["id"] == "m"
        process.send_signal(number)

        assert process.wait(10) == 0
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_profile_from_a_file_and_its_overrides_are_used(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(PROFILE)
    options = (
        "--profile",
        str(path),
        "--block-size",
        "32",
        "--max-model-len",
        "1024",
        "--speed",
        "10",
    )
    with running("--port", "0", "--name", "one", *options) as process:
        url = read_urls(process, 1)["one"]
        with urlopen(f"{url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        with urlopen(f"{url}/v1/models", timeout=5) as answer:
            models = msgspec.json.decode(answer.read())["data"]

    assert 'block_size="32"' in text
    assert 'num_gpu_blocks="256"' in text
    assert models[0]["max_model_len"] == 1024


def test_events_are_published_by_every_endpoint_on_its_own_port() -> None:
    events, ports = free_ports(2), free_ports(2)
    with (
        zmq.Context() as context,
        running(
            "--ports", f"{ports[0]}-{ports[1]}", "--kv-events", f"tcp://127.0.0.1:{events[0]}"
        ) as process,
    ):
        urls = read_urls(process, 2)
        for index in range(2):
            with context.socket(zmq.SUB) as socket:
                socket.linger = 0
                socket.subscribe(f"kv@vllm-{index}@simulated")
                socket.connect(f"tcp://127.0.0.1:{events[index]}")
                # A subscription takes a moment to arrive; events of earlier prompts do not come.
                number = 0
                while not socket.poll(100):
                    number += 1
                    complete(urls[f"vllm-{index}"], [number] * 20)
                assert (
                    msgspec.msgpack.decode(socket.recv_multipart()[2])[1][0]["type"]
                    == "BlockStored"
                )


def complete(url: str, prompt: Sequence[int]) -> None:
    body = msgspec.json.encode({"prompt": prompt, "max_tokens": 1})
    request = Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        answer.read()


def test_a_slow_start_keeps_the_port_closed_meanwhile() -> None:
    (port,) = free_ports(1)
    with running("--port", str(port), "--name", "slow", "--fail", "slow_start_s=1.5") as process:
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        assert read_urls(process, 1) == {"slow": f"http://127.0.0.1:{port}"}
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_an_occupied_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_server_command("--port", str(port))

    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


@table(
    ("options", "complaint"),
    [
        ((), "give either --port or --ports"),
        (("--port", "1", "--ports", "1-2"), "give either --port or --ports"),
        (("--ports", "8001-x"), "'8001-x' is neither a port nor a range of ports"),
        (("--ports", "70000"), "'70000' names no ports that exist"),
        (("--port", "0", "--profile", "nope"), "'nope'"),
        (("--port", "0", "--fail", "error_rate=2"), "error_rate"),
        (("--port", "0", "--max-model-len", "999999999"), "max_model_len"),
        (("--port", "0", "--kv-events", "tcp://*"), "does not end in a port"),
    ],
)
def test_bad_options_are_refused_with_status_2(
    options: Sequence[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["extproc", "simulate", "vllm", *options])
    with pytest.raises(SystemExit) as ended:
        main()

    assert (ended.value.code, complaint in capsys.readouterr().err) == (2, True)


def test_ports_are_read_in_ranges_and_lists() -> None:
    assert read_ports("8001-8003,9000") == [8001, 8002, 8003, 9000]
