"""What traces cost: CPU of the service per request through a real Envoy, off, of 1 % and of all requests.

Every arm gets the same requests, each with a `traceparent` of its own, one in a hundred of them sampled (or
all). Once the client's trace alone, once with Envoy's own spans between (its block uncommented), which tell
their ids in each stream's metadata. A round yields one ratio to an arm of the same round.
"""

import argparse
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import orjson

from tests.benchmarks.bench_gateway import Figure, of, show
from tests.benchmarks.gateway_arms import (
    Arm,
    Round,
    build_endpoints,
    build_gateway,
    build_requests,
    measure,
    under,
)
from tests.stack.otlp import receiving, tracing_to
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool

OFF, ONE, ALL = "no spans", "1 % sampled", "all sampled"
ENVOY_OFF, ENVOY_ONE, ENVOY_ALL = (f"Envoy's spans, too: {name}" for name in (OFF, ONE, ALL))
REFERENCES: Mapping[str, str] = MappingProxyType(
    {ONE: OFF, ALL: OFF, ENVOY_OFF: OFF, ENVOY_ONE: ENVOY_OFF, ENVOY_ALL: ENVOY_OFF}
)
SENT = "extproc_spans_total"


def with_traces(share: float) -> list[bytes]:
    """The gateway's requests, `share` of them sampled."""
    rng, requests = random.Random(1), build_requests()
    sampled = round(1 / share)
    heads = [
        b"\r\ntraceparent: 00-%032x-%016x-%02x\r\n"
        % (rng.getrandbits(128), rng.getrandbits(64), number % sampled == 0)
        for number in range(len(requests))
    ]
    return [request.replace(b"\r\n", head, 1) for request, head in zip(requests, heads, strict=True)]


@contextmanager
def run_arms(directory: Path, names: Sequence[str]) -> Iterator[dict[str, tuple[Arm, Service]]]:
    ports = iter(free_ports(6 + 4 * len(names)))
    endpoints = [next(ports) for _ in range(4)]
    addresses = [f"127.0.0.1:{port}" for port in endpoints]
    with ExitStack() as running:
        receiver = running.enter_context(receiving(keeps=False))
        parts = build_endpoints(under(directory, "endpoints"), next(ports), next(ports), endpoints)
        running.enter_context(parts).wait_ready()
        arms = {}
        for name in names:
            below, port = under(directory, name.replace(":", "")), next(ports)
            environment = {} if name.endswith(OFF) else tracing_to(receiver.port)
            environment.pop("OTEL_BSP_SCHEDULE_DELAY", None)  # as it is unless somebody says otherwise
            service = Service(below, port=port, admin_port=next(ports), environment=environment)
            service.configure([pool(addresses, {"name": "prefix_cache"})])
            running.enter_context(service).wait_ready()
            otlp = receiver.port if name.startswith("Envoy") else 0
            gateway = build_gateway(below, next(ports), next(ports), port, endpoints, otlp=otlp)
            running.enter_context(gateway).wait_ready()
            arms[name] = (Arm(name, gateway, service), service)
        yield arms


def run(arm: Arm, service: Service, total: int, clients: int) -> Round:
    """One arm's round; the spans that it leaves behind are sent before the next one begins."""
    before = made(service)
    took = measure(arm, total, clients, with_traces(1.0 if arm.name.endswith(ALL) else 0.01))
    if arm.name.endswith(ALL):
        service.wait_until(lambda: made(service) >= before + total)
    return took


def made(service: Service) -> float:
    return service.metric(SENT)


def figures(rounds: Sequence[Round]) -> Iterator[Figure]:
    for name in dict.fromkeys(one.arm for one in rounds):
        yield f"{name}: service CPU", of(rounds, name, "server_us"), "us/req"
        yield f"{name}: Envoy CPU", of(rounds, name, "envoy_us"), "us/req"
    for name, reference in REFERENCES.items():
        pairs = zip(of(rounds, name, "server_us"), of(rounds, reference, "server_us"), strict=True)
        aim = " (aim <= 1.03)" if name in {ONE, ENVOY_ONE} else ""
        yield f"service CPU, {name} / {reference}{aim}", [one / other for one, other in pairs], ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=4_000, help="per arm and round")
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args()
    total, clients = arguments.requests, arguments.clients
    names = [OFF, ONE, ALL, ENVOY_OFF, ENVOY_ONE, ENVOY_ALL]
    with tempfile.TemporaryDirectory() as directory, run_arms(Path(directory), names) as arms:
        for arm, service in arms.values():
            run(arm, service, total // 4, clients)
        rounds = [
            run(arm, service, total, clients)
            for number in range(arguments.rounds)
            for arm, service in list(arms.values())[:: 1 if number % 2 == 0 else -1]
        ]
        spans = {
            name: {result: service.metric(SENT, result=result) for result in ("sent", "refused", "dropped")}
            for name, (_, service) in arms.items()
        }
    told = list(figures(rounds))
    show("traces", told)
    for name, counts in spans.items():
        print(f"{name}: spans {counts}")
    if arguments.json:
        values = [{"name": name, "samples": samples, "unit": unit} for name, samples, unit in told]
        arguments.json.write_bytes(orjson.dumps({"title": "traces", "rows": values, "spans": spans}))


if __name__ == "__main__":
    main()
