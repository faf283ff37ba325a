"""Clients that are not ours: each speaks HTTP/2 in its own way, and all must be served."""

import re
from pathlib import Path

import pytest

from tests.router.wire.serving import ECHO, Served, serving
from tests.slow.clients.programs import GRPC, run


@pytest.fixture
def message(tmp_path: Path) -> str:
    """A file that holds one gRPC message, framed."""
    path = tmp_path / "message"
    path.write_bytes(b"\0" + (2_000).to_bytes(4, "big") + bytes(2_000))
    return str(path)


def memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096


async def load(served: Served, message: str, total: int) -> str:
    url = f"http://{served.target}{ECHO}"
    return await run("h2load", "-n", str(total), "-c", "10", "-m", "100", "-d", message, *GRPC, url)


async def test_h2load_opens_ten_thousand_streams_over_ten_connections(message: str) -> None:
    async with serving() as served:
        await load(served, message, 10_000)
        before = memory_bytes()
        output = await load(served, message, 10_000)

        assert "10000 succeeded, 0 failed, 0 errored, 0 timeout" in output
        assert "status codes: 10000 2xx" in output
        assert served.opened == len(served.ends) == 20_000
        assert memory_bytes() < before * 1.1
        assert served.listener.budget.used == 0


@pytest.mark.parametrize("table_bytes", [0, 4_096, 65_536])
async def test_header_tables_of_any_size_are_served(message: str, table_bytes: int) -> None:
    """`--header-table-size` is what the client decodes with, the other one what it encodes with."""
    async with serving() as served:
        output = await run(
            "h2load",
            *("-n", "100", "-c", "1", "-m", "10", "-d", message),
            *(f"--header-table-size={table_bytes}", f"--encoder-header-table-size={table_bytes}"),
            *GRPC,
            f"http://{served.target}{ECHO}",
        )

    assert "100 succeeded, 0 failed, 0 errored" in output


@pytest.mark.parametrize(("window_bits", "total"), [(1, 4), (8, 200), (30, 200)])
async def test_clients_with_small_and_large_windows_get_their_answers(
    message: str, window_bits: int, total: int
) -> None:
    """A window of one byte costs its client a WINDOW_UPDATE a byte, of which too many would be a flood."""
    async with serving() as served:
        output = await run(
            "h2load",
            *("-n", str(total), "-c", "2", "-m", "10", "-d", message, "-w", str(window_bits), "-W", "16"),
            *GRPC,
            f"http://{served.target}{ECHO}",
        )

    assert f"{total} succeeded, 0 failed, 0 errored" in output


async def test_nghttp_sees_headers_messages_and_trailers(message: str) -> None:
    async with serving() as served:
        output = await run("nghttp", "-v", "-d", message, *GRPC, f"http://{served.target}{ECHO}")

    lines = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert re.search(r"recv \(stream_id=\d+\) :status: 200", lines)
    assert re.search(r"recv DATA frame <length=2005, flags=0x00", lines)
    assert re.search(r"recv \(stream_id=\d+\) grpc-status: 0", lines)
    assert "RST_STREAM" not in lines


async def test_nghttp_that_pads_is_served(message: str) -> None:
    async with serving() as served:
        output = await run("nghttp", "-v", "-b", "200", "-d", message, *GRPC, f"http://{served.target}{ECHO}")

    assert "PADDED" in output
    assert re.search(r"grpc-status: *0", re.sub(r"\x1b\[[0-9;]*m", "", output))


async def test_curl_is_answered_over_http2(message: str) -> None:
    curl = ("curl", "-sS", "-i", "--http2-prior-knowledge", "--max-time", "20", "--output", "-")
    async with serving() as served:
        output = await run(*curl, "--data-binary", f"@{message}", *GRPC, f"http://{served.target}{ECHO}")

        assert output.startswith("HTTP/2 200")
        assert "grpc-status: 0" in output
        assert (await run(*curl, f"http://{served.target}/")).startswith("HTTP/2 405")
        wrong = ("-X", "POST", "-H", "content-type: text/plain")
        assert (await run(*curl, *wrong, f"http://{served.target}{ECHO}")).startswith("HTTP/2 415")
