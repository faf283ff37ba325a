"""`extproc calibrate`: what it finds of engines whose costs are known."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
import yaml
from click.testing import CliRunner

from extproc.calibrate.commands import calibrate
from extproc.calibrate.fit import Capacity, FirstToken, FittedCosts, TokenGap, fit
from extproc.calibrate.measure import Measured, measure_engine
from extproc.cli import cli
from extproc.router.settings.reading import parse_settings
from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import (
    Profile,
    built_in_profiles,
    find_profile,
    read_profiles,
)
from tests.simulator.face import QUICK, serving
from tests.tables import table

PROFILES = built_in_profiles()
COSTS = (
    "base_ms",
    "kv_us_per_ctx_token",
    "prefill_ms_per_token",
    "attention_ns",
    "floor_ms",
    "way_ms",
)


class VirtualEngine:
    """A simulated engine in virtual time; what it takes is known to the last digit.

    It sends a part of the answers' tokens together with the next one.
    """

    def __init__(self, profile: Profile, merged: float = 0.0) -> None:
        self._profile, self._engine = profile, Engine(profile)
        self._merged, self._rng = merged, Random(3)
        self._names = (str(number) for number in count())

    async def ask(self, prompt: Sequence[int], tokens: int) -> Sequence[float]:
        return (await self.ask_all([prompt], tokens))[0]

    async def ask_all(
        self, prompts: Sequence[Sequence[int]], tokens: int
    ) -> Sequence[Sequence[float]]:
        now = self._profile.way_s(len(prompts[0]))
        times: dict[str, list[float]] = {next(self._names): [] for _ in prompts}
        for name, prompt in zip(times, prompts, strict=True):
            self._engine.add(name, prompt, tokens, now=now)
        while not self._engine.is_idle:
            step = self._engine.step(now)
            now = step.ends_at
            for name in step.emitted:
                times[name].append(now)
        return [self._merge(each) for each in times.values()]

    def _merge(self, times: Sequence[float]) -> Sequence[float]:
        first, *middle, last = [times[0], *times[1:]] if len(times) > 1 else [times[0], times[0]]
        return [first, *(each for each in middle if self._rng.random() >= self._merged), last]


def capacity_of(profile: Profile) -> Capacity:
    return Capacity(
        profile.kv_tokens,
        profile.block_size,
        profile.max_model_len,
        profile.max_num_batched_tokens,
        profile.max_num_seqs,
    )


def measure_virtual(profile: Profile, merged: float = 0.0) -> Measured:
    said: list[str] = []
    engine = VirtualEngine(profile, merged)
    return asyncio.run(measure_engine(engine, capacity_of(profile), Random(1), said.append))


def fit_virtual(profile: Profile) -> FittedCosts:
    measured = measure_virtual(profile)
    return fit(measured.firsts, measured.gaps, profile.max_num_batched_tokens)


@table(
    "name", ["l4-llama8b-fp8", "l4-llama8b-fp8-attention", "h100x2-qwen32b", "h200-llama8b-bf16"]
)
def test_costs_of_a_known_engine_are_found_within_five_per_cent(name: str) -> None:
    profile = find_profile(name)

    found = fit_virtual(profile)

    for cost in COSTS:
        known = getattr(profile, cost)
        assert getattr(found, cost) == pytest.approx(known, rel=0.05, abs=0.02 * profile.base_ms), (
            cost
        )
    assert found.error_median < 0.01


def test_tokens_that_a_busy_server_sends_together_are_counted() -> None:
    profile = find_profile("h200-llama8b-bf16")
    measured = measure_virtual(profile, merged=0.15)

    found = fit(measured.firsts, measured.gaps, profile.max_num_batched_tokens)

    assert found.base_ms == pytest.approx(profile.base_ms, rel=0.1)


def test_one_disturbed_measurement_of_three_changes_nothing() -> None:
    profile = find_profile("h200-llama8b-bf16")
    measured = measure_virtual(profile)
    disturbed = [
        replace(first, ms=first.ms * (1.5 if number % 3 == 1 else 1))
        for number, first in enumerate(measured.firsts)
    ]

    assert fit(disturbed, measured.gaps, 8_192) == fit(measured.firsts, measured.gaps, 8_192)


def test_too_few_measurements_are_no_fit() -> None:
    one, gap = FirstToken(32, 0, 30.0), TokenGap(300, 5.0)

    with pytest.raises(ValueError, match="too few"):
        fit([one] * 20, [gap, gap], 8_192)


async def test_command_prints_a_section_and_a_profile_that_are_read(tmp_path: Path) -> None:
    """What it prints goes into a pool's settings and into the simulator as it is."""
    async with serving(profile=replace(QUICK, kv_tokens=32_768, prefill_ms_per_token=0.01)) as face:
        done = await asyncio.to_thread(
            CliRunner().invoke,
            calibrate,
            [f"http://127.0.0.1:{face.port}/", "--output", str(tmp_path)],
        )

    assert done.exit_code == 0, done.output
    section = (tmp_path / "engine.yaml").read_text()
    assert section in done.output
    strategy = yaml.safe_load(section)["strategy"]
    assert strategy["engine"]["kv_tokens"] == 32_768
    pool = {"name": "a", "endpoints": {"static": ["10.0.0.1:8000"]}, "strategy": strategy}
    assert parse_settings(yaml.safe_dump({"pools": [pool]}), {}, "a.yaml").pools
    profile = read_profiles((tmp_path / "profile.yaml").read_bytes())["measured"]
    assert (profile.kv_tokens, profile.max_model_len) == (32_768, QUICK.max_model_len)
    assert profile.is_calibrated


@table(
    ("arguments", "words"),
    [
        (["http://127.0.0.1:9"], "127.0.0.1:9"),
        (["http://127.0.0.1:{port}", "--model", "other"], "lists tiny"),
    ],
)
async def test_engine_that_cannot_be_measured_is_one_line(arguments: list[str], words: str) -> None:
    async with serving() as face:
        done = await asyncio.to_thread(
            CliRunner().invoke,
            cli,
            ["calibrate", *(one.format(port=face.port) for one in arguments)],
        )

    assert done.exit_code != 0
    assert words in str(done.exception) + done.output
