"""A pool's endpoints from a name in the DNS, as of a headless Service.

DNS answers a Service without ready pods and a misspelt name alike: the name does not exist.
So an answer without addresses is a failure, and the last good list stays.
"""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from random import Random

from dns.asyncresolver import Resolver
from dns.exception import DNSException, Timeout
from dns.rdatatype import AAAA, A
from dns.resolver import NXDOMAIN, Answer, NoAnswer

from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.reason import describe_error
from extproc.router.cluster.restarting import is_cancelled
from extproc.router.cluster.source import Sink
from extproc.router.routing.endpoint import Endpoint, join_address, parse_target


class DnsSource:
    """Tells every address that the host of `target` (`name:port`) has, again after the answer's TTL.

    The TTL is taken as no less than `least_s` and no more than `most_s`, and lengthened by up to a
    fifth so that many routers do not query at once. The search domains of resolv.conf apply;
    /etc/hosts is not read. With addresses of both families only those of IPv4 are used, since
    nothing says which two are one pod's. Raises `AddressError` if `target` is not `name:port`.
    """

    def __init__(
        self,
        target: str,
        *,
        least_s: float = 1.0,
        most_s: float = 30.0,
        rng: Random,
        open_resolver: Callable[[], Resolver] = Resolver,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._host, self._port = parse_target(target)
        self._least_s = least_s
        self._most_s = most_s
        self._rng = rng
        self._open_resolver = open_resolver
        self._sleep = sleep
        self._backoff = Backoff(rng)

    async def run(self, sink: Sink) -> None:
        while True:
            try:
                answer = await self._resolve()
            except (DNSException, OSError) as error:
                sink.restarted(_word(error), describe_error(error))
                delay_s = self._backoff.next_s()
            else:
                delay_s = self._accept(answer, sink)
            if is_cancelled():
                # Python 3.11's `wait_for`, by which dnspython waits, forgets it where the answer
                # comes just then (python/cpython#86296); the source would run for ever.
                raise asyncio.CancelledError
            await self._sleep(delay_s)

    async def _resolve(self) -> Answer:
        # Opened anew, since resolv.conf may have changed.
        resolver = self._open_resolver()
        try:
            answer = await resolver.resolve(self._host, A, search=True)
        except NoAnswer:
            answer = await resolver.resolve(self._host, AAAA, search=True)
        if not any(_is_one_host(record.address) for record in answer):
            raise NXDOMAIN
        return answer

    def _accept(self, answer: Answer, sink: Sink) -> float:
        self._backoff.reset()
        found = [record.address for record in answer if _is_one_host(record.address)]
        addresses = sorted(join_address(address, self._port) for address in found)
        sink.replace([Endpoint(address, address) for address in addresses])
        ttl_s = min(self._most_s, max(self._least_s, answer.chaining_result.minimum_ttl))
        return ttl_s * self._rng.uniform(1.0, 1.2)


def _is_one_host(text: str) -> bool:
    """Not 0.0.0.0, which is this machine, or an address of many. Blocking resolvers answer with the first."""
    address = ip_address(text)
    return not (address.is_unspecified or address.is_multicast or text == "255.255.255.255")


def _word(error: Exception) -> str:
    match error:
        case NXDOMAIN() | NoAnswer():
            return "dns_no_address"
        case Timeout():
            return "dns_timeout"
    return "dns_failure"
