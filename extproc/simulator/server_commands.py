"""`extproc simulate vllm`: simulated endpoints as an HTTP server."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import click
import uvloop

from extproc.errors import SettingsError
from extproc.simulator.engine.profiles import DEFAULT_PROFILE, Profile, find_profile
from extproc.simulator.http.driver import Clock
from extproc.simulator.http.endpoint import ServerOptions, SimulatedEndpoint
from extproc.simulator.http.faults import Faults
from extproc.simulator.http.publisher import Publisher, open_socket
from extproc.simulator.http.server import serve_endpoints
from extproc.simulator.http.tokens import FileTokenizer, FourByteTokenizer

SPEED = click.FloatRange(0, min_open=True)
COUNT = click.IntRange(0)


def read_ports(text: str) -> list[int]:
    """Reads `8001`, `8001-8008`, or several of these with commas; raises `SettingsError`."""
    ports: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SettingsError(f"{part!r} is neither a port nor a range of ports")
        ports += range(int(first), int(last or first) + 1)
    if not ports or max(ports) > 65535:
        raise SettingsError(f"{text!r} names no ports that exist")
    return ports


@click.command("vllm")
@click.option("--port", type=click.IntRange(0, 65535), help="One port; 0 for a free one.")
@click.option("--ports", help="Several endpoints in one process, as in 8001-8008.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--name", default="vllm", show_default=True, help="The endpoint's name. Several add -0, -1, …"
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=["simulated"],
    show_default=True,
    help="The model's names.",
)
@click.option(
    "--adapter", "adapters", multiple=True, help="A LoRA adapter that is loaded at the start."
)
@click.option(
    "--max-loras",
    type=COUNT,
    default=4,
    show_default=True,
    help="LoRA adapters per step; 0 for no LoRA.",
)
@click.option(
    "--profile",
    default=DEFAULT_PROFILE,
    show_default=True,
    help="A built-in profile, or a YAML file.",
)
@click.option(
    "--speed", type=SPEED, default=1.0, show_default=True, help="Engine seconds per real second."
)
@click.option(
    "--block-size", type=click.IntRange(1), help="Tokens per KV block, instead of the profile's."
)
@click.option(
    "--max-model-len",
    type=click.IntRange(1),
    help="The context's length, instead of the profile's.",
)
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json; else 4 bytes per token."
)
@click.option(
    "--answer-tokens",
    type=COUNT,
    default=0,
    help="Mean natural length of answers; 0: up to max_tokens.",
)
@click.option(
    "--force-include-usage", is_flag=True, help="Streams end with usage, requested or not."
)
@click.option(
    "--prompt-tokens-details/--no-prompt-tokens-details", default=True, help="Tell cached tokens."
)
@click.option(
    "--sidecar",
    is_flag=True,
    help="As behind llm-d's sidecar: whom x-prefiller-host-port names computes the prompt.",
)
@click.option("--kv-events", metavar="ENDPOINT", help="Publish KV events here, as tcp://*:5557.")
@click.option(
    "--kv-topic", default="kv@{name}@{model}", show_default=True, help="The topic of KV events."
)
@click.option(
    "--fail",
    "faults",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"One of {', '.join(Faults.model_fields)}.",
)
def vllm(
    *, port: int | None, ports: str | None, host: str, name: str, speed: float, **options: Any
) -> None:
    """Simulate vLLM endpoints over HTTP.

    In real time or faster, until SIGINT or SIGTERM.
    """
    if (port is None) == (ports is None):
        raise click.UsageError("give either --port or --ports")
    numbers = [port] if port is not None else read_ports(ports or "")
    tokenizer = options["tokenizer"]
    profile = _adapt(
        find_profile(options["profile"]), options["block_size"], options["max_model_len"]
    )
    shared = ServerOptions(
        profile=profile,
        tokenizer=FileTokenizer(tokenizer) if tokenizer else FourByteTokenizer(),
        models=options["models"],
        adapters=options["adapters"],
        max_loras=options["max_loras"],
        answer_tokens=options["answer_tokens"],
        forces_usage=options["force_include_usage"],
        shows_cached=options["prompt_tokens_details"],
        faults=Faults.parse(options["faults"]),
    )
    names = [name] if len(numbers) == 1 else [f"{name}-{index}" for index in range(len(numbers))]
    topic = options["kv_topic"].replace("{model}", options["models"][0])
    publishers = _open_publishers(names, options["kv_events"], topic)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    clock = Clock(speed)
    endpoints = [
        SimulatedEndpoint(endpoint, shared, clock, time, publisher)
        for endpoint, publisher in zip(names, publishers, strict=True)
    ]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_end(endpoints, host, numbers, has_sidecar=options["sidecar"]))


async def _serve_until_end(
    endpoints: Sequence[SimulatedEndpoint], host: str, ports: Sequence[int], *, has_sidecar: bool
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve_endpoints(endpoints, host, ports, stop, click.echo, has_sidecar=has_sidecar)


def _adapt(profile: Profile, block_size: int | None, max_model_len: int | None) -> Profile:
    try:
        return replace(
            profile,
            block_size=block_size or profile.block_size,
            max_model_len=max_model_len or profile.max_model_len,
        )
    except ValueError as fault:
        raise SettingsError(str(fault)) from None


def _open_publishers(
    names: Sequence[str], kv_events: str | None, topic: str
) -> list[Publisher | None]:
    """Opens one socket per endpoint, on consecutive ports from that of `kv_events`."""
    if kv_events is None:
        return [None] * len(names)
    address, _, first = kv_events.rpartition(":")
    if not first.isdecimal():
        raise SettingsError(f"--kv-events: {kv_events!r} does not end in a port")
    addresses = [f"{address}:{int(first) + index}" for index in range(len(names))]
    return [
        Publisher(open_socket(address), address, topic.replace("{name}", name), time)
        for name, address in zip(names, addresses, strict=True)
    ]
