"""What GPUs used during a run, by the metrics of NVIDIA's DCGM exporter."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.experiments.scrape import fetch_metrics
from extproc.bench.record import GpuUse

_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"  # percent
_POWER = "DCGM_FI_DEV_POWER_USAGE"  # watts
_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"  # millijoules since the driver was loaded
_WANTED = frozenset({_UTILISATION, _POWER, _ENERGY})
# Exporters look at their GPUs every 1 to 30 s.
_EVERY_S = 2.0
_TIMEOUT_S = 5.0

Gpu = tuple[str, str, str]
"""An exporter, a GPU's UUID (or number) and its model's name."""


@dataclass(slots=True)
class GpuLog:
    """What was read of each GPU, as (time, value) by metric."""

    readings: dict[Gpu, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)

    def add(self, exporter: str, at_s: float, text: str) -> None:
        """Takes in an exposition; what is none says nothing."""
        with suppress(ValueError):
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    # The parser gives a counter the suffix that DCGM leaves out.
                    name = sample.name.removesuffix("_total")
                    if name in _WANTED:
                        labels = sample.labels
                        gpu = labels.get("UUID") or labels.get("gpu", "")
                        key = (exporter, gpu, labels.get("modelName", ""))
                        read = self.readings.setdefault(key, {wanted: [] for wanted in _WANTED})
                        read[name].append((at_s, sample.value))

    def list_uses(self) -> tuple[GpuUse, ...]:
        return tuple(_summarise(gpu, read) for gpu, read in sorted(self.readings.items()))


def _summarise(gpu: Gpu, read: dict[str, list[tuple[float, float]]]) -> GpuUse:
    exporter, name, model = gpu
    utilisation = _mean(read[_UTILISATION])
    return GpuUse(
        exporter=exporter,
        gpu=name,
        model=model,
        samples=max(map(len, read.values())),
        utilisation=None if utilisation is None else utilisation / 100,
        power_w=_mean(read[_POWER]),
        energy_j=_find_energy(read),
    )


def _mean(readings: Sequence[tuple[float, float]]) -> float | None:
    return float(np.mean([value for _, value in readings])) if readings else None


def _find_energy(read: dict[str, list[tuple[float, float]]]) -> float | None:
    """The counter's growth; without a counter, power over time. A reset counter counts nothing."""
    counted = [value for _, value in read[_ENERGY]]
    if len(counted) > 1 and counted[-1] >= counted[0]:
        return (counted[-1] - counted[0]) / 1000
    if len(read[_POWER]) < 2:
        return None
    at_s, power_w = zip(*read[_POWER], strict=True)
    return float(np.trapezoid(power_w, at_s))


@asynccontextmanager
async def watch_gpus(exporters: Sequence[str], every_s: float = _EVERY_S) -> AsyncIterator[GpuLog]:
    """Reads every exporter at the start, then every `every_s`, and once more at the end."""
    log = GpuLog()
    if not exporters:
        yield log
        return
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        await _look(session, exporters, log)
        looking = asyncio.create_task(_look_again(session, exporters, log, every_s))
        try:
            yield log
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
        await _look(session, exporters, log)


async def _look_again(
    session: aiohttp.ClientSession, exporters: Sequence[str], log: GpuLog, every_s: float
) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _look(session, exporters, log)


async def _look(session: aiohttp.ClientSession, exporters: Sequence[str], log: GpuLog) -> None:
    texts = await asyncio.gather(*(fetch_metrics(session, exporter) for exporter in exporters))
    at_s = time.monotonic()
    for exporter, text in zip(exporters, texts, strict=True):
        if text is not None:
            log.add(exporter, at_s, text)
