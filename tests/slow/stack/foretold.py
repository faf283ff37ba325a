"""What the shadow foretells of a workload behind somebody's Envoy, and what switching then gives.

The engines run `SPEED` times as fast as the clock; all times told here are the engines'.
"""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

import yaml

from extproc.simulator.fleet.cell import MatrixCell
from tests.benchmarks.talk import Talk, plan_talk
from tests.slow.stack.shadowed import Somebody
from tests.stack.client import MODEL, connect
from tests.stack.fetch import get, get_json
from tests.stack.ports import free_ports
from tests.stack.simulators import Simulators
from tests.waiting import until

SPEED: Final = 3.0
WARM_S: Final = 15.0
# On a busy machine it takes longer until all that came before has ended.
MOST_WARM_S: Final = 60.0
# The proxy tells of a request's end by so much later, and closes its stream then.
LATE_S: Final = 2.5
# The service, but what it waits for until caches that are not full count as warm: half an hour otherwise.
HASTY: Final = f"""
import extproc.router.shadow.comparison as comparison
comparison.WARM_S = {WARM_S}
from extproc.cli import cli
cli()
"""
# An L4, but for its cache.
ENGINE: Final = {"base_ms": 39, "kv_us_per_ctx_token": 0.583, "prefill_ms_per_token": 0.19}
SIZES: Final = {
    "block_size": 16,
    "max_model_len": 16_384,
    "max_num_batched_tokens": 16_384,
    "max_num_seqs": 256,
}


class PlayedLoad(NamedTuple):
    """Requests a second, of the engines' seconds, and caches that have as much room for these as usual.

    Where tenants are shared, there are as many as `endpoints` would have.
    """

    rps: float
    kv_tokens: int
    endpoints: int = 8


# The last two are of the held-back list.
LOADS: Final = {
    "sessions": PlayedLoad(8, 24_000),
    "tenants": PlayedLoad(2.4, 32_000, 3),
    "hot-prefix": PlayedLoad(8, 24_000),
    "small": PlayedLoad(8, 24_000),
    "mtool": PlayedLoad(2.5, 48_000),
}
RULES: Final = ("ROUND_ROBIN", "LEAST_REQUEST")


class Ran(NamedTuple):
    """One run: what the shadow told of it, and what the engines counted in the same time."""

    told: dict[str, float]
    hit_rate: float
    mean_s: float


def plan_workload(name: str, seconds: float) -> list[dict[str, Any]]:
    """Its sessions, for a run of so many seconds after the caches are full."""
    load = LOADS[name]
    cell = MatrixCell(
        arm="prefix_cache",
        workload=name,
        endpoints=load.endpoints,
        rate=load.rps,
        warmup_s=0,
        measured_s=(MOST_WARM_S + LATE_S + seconds) * SPEED,
    )
    return plan_talk(cell)


def count_engines(simulators: Simulators) -> list[float]:
    """Tokens looked for and found in caches, first tokens and the seconds that they took, of all endpoints."""
    names = (
        *("prefix_cache_queries_total", "prefix_cache_hits_total"),
        *("time_to_first_token_seconds_count", "time_to_first_token_seconds_sum"),
    )
    pages = [get(f"http://{address}/metrics") for address in simulators.addresses]
    found = [re.findall(rf"^vllm:{name}.* (.+)$", "\n".join(pages), re.MULTILINE) for name in names]
    return [sum(map(float, values)) for values in found]


async def run_workload(
    folder: Path, name: str, planned: Sequence[dict[str, Any]], rule: str, seconds: float
) -> Ran:
    """Plays it until the pictures are warm, and then for so many `seconds`; with no `rule`, switched."""
    profile, kv_tokens = folder / "profile.yaml", LOADS[name].kv_tokens
    profile.write_text(yaml.safe_dump({"mine": {**ENGINE, **SIZES, "kv_tokens": kv_tokens}}))
    options = ("--profile", str(profile), "--model", MODEL, "--speed", str(SPEED))
    simulators = Simulators(folder, free_ports(8), *options)
    engine = {
        "prefill_ms_per_token": ENGINE["prefill_ms_per_token"] / SPEED,
        "step_ms": ENGINE["base_ms"] / SPEED,
        "context_us_per_token": ENGINE["kv_us_per_ctx_token"] / SPEED,
        "kv_tokens": kv_tokens,
    }
    somebody = Somebody(folder, simulators.addresses, rule=rule or RULES[0], engine=engine)
    service, gateway = somebody.service, somebody.gateway
    service.command[1:3] = ["-c", HASTY]

    def told() -> dict[str, float] | None:
        found: dict[str, float] | None = get_json(f"{service.admin_url}/shadow")[0]["open_batch"]
        return found

    counted = list[tuple[float, list[float]]]()

    async def is_warm() -> bool:
        await asyncio.sleep(0.2)
        counted.append((monotonic(), await asyncio.to_thread(count_engines, simulators)))
        return await asyncio.to_thread(told) is not None

    with simulators, service, gateway:
        simulators.wait_ready()
        service.wait_ready()
        gateway.wait_until(somebody.sees_service)
        url = somebody.shadowed if rule else somebody.asking
        async with connect(url.removesuffix("/v1/chat/completions")) as session:
            talk = Talk([session], SPEED, seed=1)
            playing = asyncio.create_task(
                talk.ask_all(planned, (MOST_WARM_S + LATE_S + seconds) * SPEED)
            )
            await until(is_warm, limit_s=MOST_WARM_S)
            await asyncio.sleep(seconds)
            playing.cancel()
            await asyncio.wait([playing])
            await asyncio.sleep(LATE_S)
            after = await asyncio.to_thread(count_engines, simulators)
            said = await asyncio.to_thread(told)
    assert said
    assert not talk.failed, talk.failed
    # The pictures run behind the clock: they are warm since earlier than they say it.
    before = min(counted, key=lambda one: abs(one[0] - said["begun_s"]))[1]
    queried, hit, answers, first_s = (b - a for a, b in zip(before, after, strict=True))
    return Ran(said, hit / queried, first_s / answers)
