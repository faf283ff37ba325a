"""The system under comparison: a strategy put in force, the caches emptied."""

import asyncio
from collections.abc import Iterable

import aiohttp

from extproc.bench.experiments.switch import LabError, Switch, find_pool
from extproc.bench.spec.experiments import Ab
from extproc.bench.spec.section import Component

_POLL_S = 0.1


class Lab:
    """Prepares the router and the endpoints for one arm; without `ab.admin` it cannot see that it worked."""

    def __init__(self, http: aiohttp.ClientSession, switch: Switch, ab: Ab, endpoints: Iterable[str]) -> None:
        self._http = http
        self._switch = switch
        self._ab = ab
        self._endpoints = tuple(endpoints)

    async def prepare(self, arm: Component) -> None:
        """Puts `arm` in force, sees that it is, and empties every cache; raises `LabError`."""
        try:
            await self._put(arm)
            await asyncio.gather(*map(self._flush, self._endpoints))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LabError(f"{arm.name}: {type(error).__name__} {error}") from error

    async def _put(self, arm: Component) -> None:
        before = await self._reloads()
        must_reload = await self._switch.put(arm)
        if self._ab.admin is None:
            return
        # Another process is awaited: there is no event of ours to wait for.
        async with asyncio.timeout(self._ab.switch_timeout):
            while not await self._is_in_force(arm, before if must_reload else None):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    async def _is_in_force(self, arm: Component, before: dict[str, float] | None) -> bool:
        if before is not None:
            reloads = await self._reloads()
            if reloads["refused"] > before["refused"]:
                raise LabError(f"the router refused {arm.name}: its log says why")
            if reloads["applied"] == before["applied"]:
                return False
        async with self._http.get(f"http://{self._ab.admin}/pools", raise_for_status=True) as answer:
            pools = await answer.json()
        return str(find_pool(pools, self._ab.pool)["strategy"]) == arm.name

    async def _reloads(self) -> dict[str, float]:
        """How often the router has applied and refused a changed settings file, by its own metrics."""
        counts = {"applied": 0.0, "refused": 0.0}
        if self._ab.admin is None:
            return counts
        async with self._http.get(f"http://{self._ab.admin}/metrics", raise_for_status=True) as answer:
            lines = (await answer.text()).splitlines()
        for result in counts:
            sample = f'extproc_config_reloads_total{{result="{result}"}} '
            counts[result] += sum(
                float(line.removeprefix(sample)) for line in lines if line.startswith(sample)
            )
        return counts

    async def _flush(self, endpoint: str) -> None:
        """Empties a cache; blocks that a request still holds cannot go, so that it may take a moment."""
        async with asyncio.timeout(self._ab.switch_timeout):
            while not await self._is_flushed(endpoint):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    async def _is_flushed(self, endpoint: str) -> bool:
        base = endpoint.rstrip("/") if "://" in endpoint else f"http://{endpoint}"
        async with self._http.post(f"{base}/reset_prefix_cache") as answer:
            if answer.status != 200:
                raise LabError(
                    f"{endpoint} does not empty its cache (status {answer.status}): vLLM does with "
                    "VLLM_SERVER_DEV_MODE=1; `flush: []` goes without"
                )
            # Some versions say nothing, others whether it worked.
            return (await answer.text()).replace(" ", "") != '{"success":false}'

    async def restore(self) -> None:
        await self._switch.restore()
