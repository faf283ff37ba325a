"""Everything that runs: a broker, endpoints, gateways that share their picks; and what may be done to it."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from tests.slow.share.broker import Broker
from tests.slow.share.proxies import Proxy, build_proxy, over_mesh, over_nats, share
from tests.slow.soak.books import Outage, Tally, envoy, service_name
from tests.slow.soak.endpoint import KV_TOKENS
from tests.slow.soak.parts import LONG_S, SoakEndpoint, ask_patiently, holds, read_requests
from tests.slow.soak.plan import Kind, PlannedFault
from tests.slow.soak.watch import PASSED_BY_S
from tests.stack.fetch import get_json
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.service import pool
from tests.waiting import wait_until

GATEWAYS: Final = 2
ENDPOINTS: Final = 4
PREFIX_CACHE: Final = {"name": "prefix_cache", "kv_tokens": KV_TOKENS}
_OTHERS: Final = (
    {"name": "prefix_hash"},
    {"name": "least_load"},
    {**PREFIX_CACHE, "kv_tokens": 60_000},
)


class Deployment:
    """Outages and faults are noted as they happen; what was counted at a part's end, as `tallies`."""

    def __init__(self, directory: Path, carrier: str) -> None:
        self.outages: list[Outage] = []
        self.faults: list[str] = []
        self.tallies: list[Tally] = []
        ports = free_ports(ENDPOINTS)
        self.endpoints = [SoakEndpoint(directory, port) for port in ports]
        self._list = directory / "list" / "endpoints.yaml"
        self._list.parent.mkdir()
        self.broker = Broker(directory, *free_ports(1)) if carrier == "nats" else None
        lines = free_ports(GATEWAYS)
        carry = over_mesh(lines) if self.broker is None else over_nats(self.broker)
        self._shares = [share(carry(port)) for port in lines]
        self.proxies = [
            build_proxy(directory / f"gateway-{place}", ports) for place in range(GATEWAYS)
        ]
        # Where the log of each part's present life begins.
        self._starts: dict[str, int] = {}

    def processes(self) -> dict[str, Process]:
        """By the names that outages have."""
        proxies = enumerate(self.proxies)
        gateways = {
            name: part
            for place, proxy in proxies
            for name, part in (
                (envoy(place), proxy.gateway),
                (service_name(place), proxy.services[0]),
            )
        }
        endpoints = {endpoint.address: endpoint for endpoint in self.endpoints}
        broker = {} if self.broker is None else {"broker": self.broker}
        return {**gateways, **endpoints, **broker}

    @contextmanager
    def running(self) -> Iterator["Deployment"]:
        self.write_list(self.endpoints)
        with ExitStack() as stack:
            if self.broker is not None:
                stack.enter_context(self.broker).wait_ready()
            for endpoint in self.endpoints:
                stack.enter_context(endpoint)
            for proxy in self.proxies:
                self.configure(proxy)
                stack.enter_context(proxy.services[0])
            for part in (*self.endpoints, *(proxy.services[0] for proxy in self.proxies)):
                part.wait_until(part.is_ready, LONG_S)
            for proxy in self.proxies:
                stack.enter_context(proxy.gateway).wait_ready()
                self._until(proxy.sees_services, "an Envoy does not see its service")
            self._until_all_share()
            yield self

    def write_list(self, endpoints: Sequence[SoakEndpoint]) -> None:
        rows = [{"name": one.name, "address": "127.0.0.1", "port": one.port} for one in endpoints]
        draft = self._list.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(rows))
        draft.replace(self._list)

    def configure(self, proxy: Proxy, strategy: dict[str, Any] = PREFIX_CACHE) -> None:
        proxy.services[0].configure(
            [pool([], strategy, endpoints={"file": str(self._list)}, signals={"scrape_s": 5})],
            share=self._shares[self.proxies.index(proxy)],
            log_level="DEBUG",
        )

    def do(self, step: PlannedFault) -> None:
        """Does what the step says, waits, and makes all well again. Takes seconds."""
        proxy, endpoint = self.proxies[step.gateway], self.endpoints[step.endpoint]
        match step.kind:
            case Kind.ENDPOINT_KILLED:
                self._restart(
                    endpoint.address, endpoint, endpoint.kill, step.lasts_s, endpoint.is_ready
                )
            case Kind.ENDPOINT_LEAVES:
                self.write_list([one for one in self.endpoints if one is not endpoint])
                time.sleep(step.lasts_s)
                self.write_list(self.endpoints)
            case Kind.ENDPOINT_FAILS:
                endpoint.fail(error_rate=0.5)
                time.sleep(step.lasts_s)
                endpoint.fail()
            case Kind.STRATEGY:
                self.configure(proxy, _OTHERS[int(step.at_s) % len(_OTHERS)])
                time.sleep(step.lasts_s)
                self.configure(proxy)
            case Kind.BAD_FILE:
                self._refuse(proxy, step)
            case Kind.SERVICE_STOPPED:
                self._stop_service(proxy, step)
            case Kind.SERVICE_KILLED | Kind.SERVICE_ENDED:
                self._end_service(proxy, step)
            case Kind.ENVOY_KILLED:
                gateway = proxy.gateway
                self._restart(
                    envoy(step.gateway), gateway, gateway.kill, step.lasts_s, gateway.is_ready
                )
                self._until(proxy.sees_services, "an Envoy does not see its service")
            case Kind.BROKER_KILLED | Kind.BROKER_STOPPED:
                assert self.broker is not None
                self._hurt_broker(self.broker, step)

    def _refuse(self, proxy: Proxy, step: PlannedFault) -> None:
        def refused() -> float:
            return proxy.services[0].metric("extproc_config_reloads_total", result="refused")

        before = refused()
        proxy.services[0].write("pools: [")
        self._until(lambda: refused() > before, f"{step}: was not refused")
        self.configure(proxy)

    def _stop_service(self, proxy: Proxy, step: PlannedFault) -> None:
        part = proxy.services[0]
        with self._away(service_name(step.gateway)):
            part.send(signal.SIGSTOP)
            time.sleep(step.lasts_s)
            part.send(signal.SIGCONT)
            time.sleep(PASSED_BY_S)  # the Envoy may be about to find that it hung
            self._until(proxy.sees_services, "an Envoy does not see its service")

    def _end_service(self, proxy: Proxy, step: PlannedFault) -> None:
        name, part = service_name(step.gateway), proxy.services[0]

        def end() -> None:
            self._count(name, ask_patiently(partial(read_requests, part)), is_last=False)
            if step.kind is Kind.SERVICE_ENDED and (status := part.stop()):
                self.faults.append(f"{name} ended with status {status}")
            part.kill()

        self._restart(
            name, part, end, step.lasts_s, lambda: part.is_ready() and proxy.sees_services()
        )
        self._until_all_share()

    def _hurt_broker(self, broker: Broker, step: PlannedFault) -> None:
        """No outage of anything that answers requests: nobody waits for it."""
        if step.kind is Kind.BROKER_KILLED:
            broker.kill()
            time.sleep(step.lasts_s)
            broker.start()
            broker.wait_ready()
        else:
            broker.send(signal.SIGSTOP)
            time.sleep(step.lasts_s)
            broker.send(signal.SIGCONT)
        self._until_all_share()

    def _restart(
        self,
        name: str,
        part: Process,
        end: Callable[[], object],
        away_s: float,
        is_back: Callable[[], bool],
    ) -> None:
        with self._away(name):
            end()
            time.sleep(away_s)
            self._starts[name] = part.log.stat().st_size
            part.start()
            part.wait_until(lambda: holds(is_back), LONG_S)

    @contextmanager
    def _away(self, part: str) -> Iterator[None]:
        from_s = time.time()
        try:
            yield
        finally:
            self.outages.append(Outage(part, from_s, time.time()))

    def _until(self, claim: Callable[[], bool], fault: str) -> None:
        try:
            wait_until(lambda: holds(claim), limit_s=LONG_S)
        except AssertionError:
            self.faults.append(fault)

    def _until_all_share(self) -> None:
        self._until(self._all_share, "gateways do not hear each other")

    def _all_share(self) -> bool:
        services = [proxy.services[0] for proxy in self.proxies]
        shared = [
            sum(part.metric("extproc_share_peers", state=state) for state in ("prompt", "late"))
            for part in services
        ]
        return shared == [len(services) - 1] * len(services)

    def in_flight(self) -> dict[str, float]:
        """What each part says is open, by its word for it; all of it is 0 when nobody asks."""
        return ask_patiently(self._in_flight)

    def _in_flight(self) -> dict[str, float]:
        counts: dict[str, float] = {}
        for place, proxy in enumerate(self.proxies):
            counters = proxy.gateway.counters()
            for name in ("cluster.vllm.upstream_rq_active", "http.clients.downstream_rq_active"):
                counts[f"{envoy(place)} {name}"] = counters[name]
            part = proxy.services[0]
            for name in ("extproc_streams_open", "extproc_endpoint_in_flight"):
                counts[f"{service_name(place)} {name}"] = part.metric(name)
            counts[f"{service_name(place)} /pools"] = sum(
                shown["in_flight"] for shown in part.pools()
            )
        for endpoint in self.endpoints:
            counts[f"{endpoint.name} /load"] = get_json(f"http://{endpoint.address}/load")[
                "server_load"
            ]
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
                counts[f"{endpoint.name} {name}"] = endpoint.metric(name)
        return counts

    def unwell(self) -> list[str]:
        """Tells what has not come back when all faults are over."""
        return ask_patiently(lambda: [*self._unwell()])

    def _unwell(self) -> Iterator[str]:
        for place, proxy in enumerate(self.proxies):
            part = proxy.services[0]
            # One that failed shortly before the end is on trial, and nobody asks it any more.
            ready = sum(
                part.metric("extproc_pool_endpoints", state=state) for state in ("ready", "cooling")
            )
            if ready != ENDPOINTS:
                yield f"{service_name(place)} has {ready:g} endpoints ready"
            for name, labels in (
                ("extproc_config_refused", {}),
                ("extproc_share_peers", {"state": "lost"}),
            ):
                if left := part.metric(name, **labels):
                    yield f"{service_name(place)} says {name} {left:g} {labels or ''}"

    def count_all(self) -> None:
        """Notes what every Envoy and service has counted in its present life, when nobody asks any more."""
        for place, proxy in enumerate(self.proxies):
            counters = ask_patiently(partial(proxy.gateway.counters, "http.clients."))
            self._count(envoy(place), counters["http.clients.downstream_rq_total"])
            self._count(
                service_name(place), ask_patiently(partial(read_requests, proxy.services[0]))
            )

    def _count(self, name: str, counted: float, *, is_last: bool = True) -> None:
        self.tallies.append(Tally(name, self._starts.get(name, 0), int(counted), is_last))
