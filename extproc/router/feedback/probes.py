"""Health probes, for sources that list no health: static, file, DNS.

The kubelet probes already, and Kubernetes lists a Pod that is not ready as such.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from extproc.router.feedback.doubts import MOST_ASKED, Doubts
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.rounds import NO_HEADERS, RoundPlan, Rounds, Sleep
from extproc.router.routing.endpoint import Endpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbePlan(RoundPlan):
    """`failures` in a row make an endpoint unhealthy (as with the kubelet), one good answer healthy."""

    path: str = "/health"
    failures: int = 3


Probe = Callable[[str], Awaitable[bool]]


class Prober:
    """Probes the endpoints of one pool, evenly spread over the interval; the results go to its cooling.

    `headers` go with every question: the engines' key.
    """

    def __init__(
        self,
        feedback: PoolFeedback,
        plan: ProbePlan,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        rng: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._headers = headers
        self._feedback = feedback
        self._plan = plan
        self._rounds = Rounds(plan, rng, sleep)
        self._failures = Counter[str]()

    async def run(self) -> None:
        self._feedback.cooling.expect_probes()
        limit = ClientTimeout(total=self._plan.timeout_s)
        # A new connection each time: a server that accepts none is not healthy.
        connector = TCPConnector(limit=self._plan.parallel, force_close=True)
        jar = DummyCookieJar()
        async with ClientSession(
            timeout=limit, connector=connector, cookie_jar=jar, headers=self._headers
        ) as session:

            async def probe(address: str) -> bool:
                return await probe_health(session, f"http://{address}{self._plan.path}")

            while True:
                await self.probe_all(probe)

    async def probe_all(self, probe: Probe) -> None:
        endpoints = list(self._feedback.pool.snapshot.ready.values())
        self._failures = Counter({e.name: self._failures[e.name] for e in endpoints})
        await self._rounds.go(endpoints, lambda endpoint: self._probe(probe, endpoint))

    async def _probe(self, probe: Probe, endpoint: Endpoint) -> None:
        is_healthy = await probe(endpoint.address)
        name, limit = endpoint.name, self._plan.failures
        self._feedback.confirm(name, is_there=is_healthy)
        before = min(self._failures[name], limit)
        after = self._failures[name] = 0 if is_healthy else before + 1
        if is_healthy or after >= limit:
            self._feedback.cooling.set_health(name, is_healthy=is_healthy)
        if (before >= limit) != (after >= limit):
            said = (
                "is healthy again"
                if is_healthy
                else f"did not say that it is healthy {limit} times"
            )
            log.warning("pool %s: %s %s", self._feedback.pool.name, name, said)


# A node that is gone answers nothing: so much later its endpoints are cooled.
_ASKED_S: Final = 1.0


class Witness:
    """Asks an endpoint for its health when a log says that it could not be connected to."""

    def __init__(
        self, feedback: PoolFeedback, doubts: Doubts, path: str, headers: Mapping[str, str]
    ) -> None:
        self._feedback, self._doubts = feedback, doubts
        self._path, self._headers = path, headers

    async def run(self) -> None:
        async with (
            ClientSession(
                timeout=ClientTimeout(total=_ASKED_S),
                connector=TCPConnector(limit=MOST_ASKED, force_close=True),
                cookie_jar=DummyCookieJar(),
                headers=self._headers,
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):

            def ask(address: str) -> None:
                tasks.create_task(self._ask(session, address))

            self._doubts.ask = ask
            try:
                await asyncio.Event().wait()
            finally:
                if self._doubts.ask is ask:  # a new setting's witness may be here already
                    self._doubts.ask = None

    async def _ask(self, session: ClientSession, address: str) -> None:
        is_there = True  # as long as nobody knows
        try:
            is_there = await probe_health(session, f"http://{address}{self._path}")
        finally:
            self._feedback.settle(address, is_there=is_there)


_SICK_FROM: Final = 500


async def probe_health(session: ClientSession, url: str) -> bool:
    """Whether the endpoint answers with a status below 500.

    A server without that path answers 404 and counts as healthy: 4xx is our own mistake.
    """
    try:
        async with session.get(url, allow_redirects=False) as answer:
            return answer.status < _SICK_FROM
    except (ClientError, OSError, TimeoutError):
        return False
