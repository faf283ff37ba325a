"""Explains a decision without taking it: the same picker, and what the strategy has to say."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from time import monotonic
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from extproc.errors import ExtprocError
from extproc.router.routing.picker import Found, Picker, Query
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.service.pools import Pools
from extproc.router.service.running_pool import PoolContext
from extproc.router.service.wiring import PoolWiring
from extproc.router.settings.tree import Settings
from extproc.router.telemetry import Metrics


def explain_decision(picker: Picker, query: Query, found: Found | None = None) -> dict[str, object]:
    """Says which endpoint `query` would get now, and why; JSON-ready. Counts nothing.

    `found` is what `picker` found in it, if that was done ahead. Raises `RequestError` as the
    decision itself would.
    """
    decision = picker.decide(query, found or picker.find(query))
    pick, key = decision.pick, decision.key
    said: dict[str, object] = {
        "pool": pick.pool.name,
        "strategy": pick.strategy,
        "reason": str(pick.reason),
        "endpoint": pick.endpoint.name,
        "address": pick.endpoint.address,
        "fallbacks": [endpoint.address for endpoint in pick.fallbacks],
        "left_out": dict(pick.pool.left_out()),
        "prefix": None if key is None else f"{key:016x}",
        "body_fault": None if decision.fault is None else decision.fault.message,
    }
    if pick.pool.prefill is not None:
        prefill = pick.prefill
        said["prefill"] = prefill and {
            "endpoint": prefill.endpoint.name,
            "address": prefill.destination,
        }
        said["prefill_candidates"] = (
            [row.explain() for row in prefill.reading.costs] if prefill else []
        )
    return said | pick.reading.explain(pick.pool.candidates(decision.adapter, query.subset))


async def explain_once(
    settings: Settings,
    base: Path,
    environment: Mapping[str, str],
    *,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
) -> dict[str, object]:
    """Asks the sources once and explains the decision for `body`, by a picker that has seen no request.

    Raises `ExtprocError` where a source has no list within `timeout_s`, and what the decision
    raises.
    """
    outside = ClockAndRandom(Random(), monotonic)  # noqa: S311  # chances, not secrets
    pools = Pools(PoolContext(PoolWiring(base, outside, environment), Metrics()))
    pools.apply(settings.pools)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(each.keeper.synced.wait() for each in pools))
        return explain_decision(pools.picker, Query("POST", path, headers, body, is_trial=True))
    except TimeoutError:
        raise ExtprocError("; ".join(pools.faults())) from None
    finally:
        await pools.stop()


def fetch_explanation(
    url: str, *, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float
) -> dict[str, object]:
    """Gets a decision's explanation from the admin port of a service; `url` may leave out `http://`.

    Raises `ExtprocError` where nothing answers, or a refusal does.
    """
    base = (url if "://" in url else f"http://{url}").rstrip("/")
    url = f"{base}/explain?{urlencode({'path': path})}"
    request = Request(url, body, dict(headers), method="POST")  # noqa: S310  # as below
    try:
        with urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # the operator's own address
            said: dict[str, object] = json.loads(answer.read())
            return said
    except HTTPError as error:
        raise ExtprocError(
            f"{base} answers {error.code}: {error.read(4096).decode(errors='replace').strip()}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        hint = "is the service running, and is `server.admin` there? With a configuration FILE none is needed"
        raise ExtprocError(f"{base} does not explain it ({why}): {hint}") from None
