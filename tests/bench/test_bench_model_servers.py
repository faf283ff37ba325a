"""The plugins of examples/model-servers, each against a server that answers as that one does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from extproc.bench.load.registry import build_registry
from extproc.bench.processors.processor import Wiring
from extproc.bench.record import Record, RunClock, TokenSource
from extproc.bench.spec.tree import Target
from tests.bench.manual import blocks
from tests.bench.scripted import ASK
from tests.hosting import hosting
from tests.tables import table

FOLDER = Path(__file__).parents[2] / "examples" / "model-servers"


@asynccontextmanager
async def stand_in(plugin: str) -> AsyncIterator[str]:
    """The address of the server that a plugin is for; a plugin's folder is where it may import from."""
    stand_ins = import_module("stand_ins")
    if plugin == "jetstream_grpc":
        server, port = await stand_ins.serve_grpc(0)
        yield f"127.0.0.1:{port}"
        await server.stop(None)
    else:
        async with hosting(stand_ins.build_http()) as address:
            yield address


async def ask_server(plugin: str, max_tokens: int, **target: Any) -> Record:
    registry = build_registry([str(FOLDER / f"{plugin}.py")])
    record = Record(0, 0, 0, 0.0, estimated_input_tokens=3)
    async with stand_in(plugin) as address:
        wiring = Wiring(f"http://{address}", Target(**target), None, RunClock())
        client = registry.client(plugin.replace("_", "-"))(wiring)
        await client.send(replace(ASK, max_tokens=max_tokens), record)
        await client.close()
    return record


@table(
    ("plugin", "source", "tokens"),
    [
        ("tgi", TokenSource.SERVER, (2, 4)),
        ("triton", TokenSource.ESTIMATE, (3, 4)),
        ("jetstream", TokenSource.ESTIMATE, (3, 4)),
        ("jetstream_grpc", TokenSource.ESTIMATE, (3, 4)),
    ],
)
async def test_a_plugin_reads_what_its_server_streams(
    plugin: str, source: TokenSource, tokens: tuple[int, int]
) -> None:
    record = await ask_server(plugin, 4)

    assert (record.failure, record.failure_detail, record.text) == (None, "", "ab " * 4)
    assert (record.token_source, (record.input_tokens, record.output_tokens)) == (source, tokens)
    assert len(record.chunk_s) == 4
    assert record.first_token_s == record.chunk_s[0] < record.chunk_s[3] <= (record.end_s or 0)
    assert record.chunk_s[0] - (record.sent_s or 0) >= 0.005


@table(
    ("plugin", "failure"),
    [
        ("tgi", "http 422"),
        ("triton", "server error"),
        ("jetstream", "http 500"),
        ("jetstream_grpc", "grpc resource_exhausted"),
    ],
)
async def test_a_refusal_is_a_failure_in_the_servers_words(plugin: str, failure: str) -> None:
    record = await ask_server(plugin, 1001)

    assert (record.failure, record.failure_detail) == (failure, "`max_tokens` is above 1000")


async def test_grpc_server_that_says_nothing_in_time_fails_its_request() -> None:
    assert (
        await ask_server("jetstream_grpc", 100, timeout=0.1)
    ).failure == "grpc deadline_exceeded"


def test_the_manual_has_the_triton_plugin_as_it_stands() -> None:
    assert blocks("python") == [(FOLDER / "triton.py").read_text()]
