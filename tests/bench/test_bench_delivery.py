"""What is delivered is what was offered: every shape against a null server, from two processes."""

from typing import Any

import numpy as np
import pytest

from extproc.bench.experiments.run import run
from extproc.bench.record import RunResult
from extproc.bench.spec.tree import Spec
from tests.bench import running
from tests.bench.running import Silence

pytestmark = pytest.mark.slow


def delivery_spec(port: int, **traffic: Any) -> Spec:
    return running.build_spec(port, {"max_output_length": 2, **traffic}, processes=2)


async def deliver(port: int, **traffic: Any) -> RunResult:
    result = await run(delivery_spec(port, **traffic), progress=Silence())
    assert all(record.is_ok for record in result.records)
    return result


STEPS = [{"req_rate": 50, "duration": 0.5}, {"req_rate": 200, "duration": 0.5}]


@pytest.mark.parametrize(
    "traffic",
    [
        {"arrivals": "constant"},
        {"arrivals": "poisson"},
        {"arrivals": "gamma", "burstiness": 0.5},
        {"shape": {"name": "ramp", "to": 250, "over": 1}},
        {"shape": {"name": "steps", "steps": STEPS}},
        {"traffic_spike": {"burst": 0.5, "req_rate": 400, "after": 0.5}},
    ],
    ids=lambda traffic: "-".join(str(value) for value in traffic.values())[:30],
)
async def test_every_start_is_delivered_once_none_early(
    traffic: dict[str, Any], null_server: int
) -> None:
    result = await deliver(null_server, req_rate=120, duration=1, **traffic)

    offered = np.array(result.info.schedule_s)
    delivered = np.sort(
        [record.started_s for record in result.records if record.started_s is not None]
    )
    assert len(delivered) == len(offered)
    assert np.all(delivered >= offered)


async def test_closed_loop_keeps_its_users_busy_and_shares_iterations(null_server: int) -> None:
    result = await deliver(null_server, vus=6, total_prompts=300)

    indices = [record.index for record in result.records]
    assert indices == list(range(300))
    assert max(s.in_flight for client in result.info.clients for s in client.samples) <= 3
    assert result.info.offered_rps is None


async def test_rate_and_cap_together_hold_back_what_exceeds_the_cap(null_server: int) -> None:
    """All are due at once: what waits for a slot is held by the cap, and is not the client's lag."""
    result = await deliver(null_server, req_rate="inf", max_concurrency=4, total_prompts=200)

    assert len(result.records) == 200
    for client in result.info.clients:
        assert client.cap == 2
        assert all(sample.in_flight <= 2 for sample in client.samples)
    held = [r for r in result.records if r.admitted_s is not None and r.admitted_s > r.intended_s]
    assert len(held) >= 190
    assert all((r.started_s or 0) >= (r.admitted_s or 0) for r in held)


async def test_progress_adds_up_over_processes(null_server: int) -> None:
    silence = Silence()
    await run(delivery_spec(null_server, req_rate=100, duration=1.2), progress=silence)

    last = silence.snapshots[-1]
    assert (last.sent, last.finished, last.in_flight) == (120, 120, 0)
    assert sum(len(s.ttft_s) for s in silence.snapshots) == 120
