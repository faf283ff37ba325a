"""What it saves to tell Envoy to keep a body that the routing does not need (`mode_override`).

Two Envoys ask one service whose pool is balanced by round robin: one lets the service skip bodies, one does
not and sends them all the same. CPU is the service's user + system time; `alone` is one request at a time.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.gateway_arms import Arm, answer_at_once, drop_access_log, measure
from tests.benchmarks.report import Row, report
from tests.stack.gateway import Gateway, Tree, edited, ext_proc_filter, load
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool
from tests.stack.stack import SHIPPED_PORTS

ROUNDS = 5
TOTAL = 2_000
CLIENTS = 32
NAMES = ("body sent", "body skipped")


def never_skip(tree: Tree) -> None:
    ext_proc_filter(tree)["allow_mode_override"] = False


@contextmanager
def run_arms(directory: Path) -> Iterator[list[Arm]]:
    ports = free_ports(12)
    endpoints, service_ports = ports[6:10], ports[10:12]
    service = Service(directory, port=service_ports[0], admin_port=service_ports[1])
    service.configure([pool([f"127.0.0.1:{port}" for port in endpoints], {"name": "round_robin"})])

    def gateway(name: str, own: Sequence[int], *, skips: bool = True, is_upstream: bool = False) -> Gateway:
        below = directory / name.replace(" ", "-")
        below.mkdir()
        moved = dict(zip(SHIPPED_PORTS, (*own, *service_ports, *endpoints), strict=True))
        tree = edited(load("standalone.yaml"), moved, [drop_access_log, *([] if skips else [never_skip])])
        tree = answer_at_once(tree, endpoints) if is_upstream else tree
        return Gateway(below, tree, port=own[0], admin_port=own[1])

    with service, gateway("endpoints", ports[0:2], is_upstream=True):
        service.wait_ready()
        sent, skipped = gateway(NAMES[0], ports[2:4], skips=False), gateway(NAMES[1], ports[4:6])
        with sent, skipped:
            arms = [Arm(NAMES[0], sent, service), Arm(NAMES[1], skipped, service)]
            for arm in arms:
                arm.gateway.wait_ready()
                arm.gateway.wait_until(arm.gateway.sees_service)
            yield arms


def main() -> None:
    loaded, alone = {}, {}
    with tempfile.TemporaryDirectory() as directory, run_arms(Path(directory)) as arms:
        for arm in arms:
            measure(arm, TOTAL // 4, CLIENTS)
        loaded = {arm.name: [measure(arm, TOTAL, CLIENTS) for _ in range(ROUNDS)] for arm in arms}
        alone = {arm.name: [measure(arm, TOTAL // 4, 1) for _ in range(ROUNDS)] for arm in arms}
    rows = [Row(f"service CPU, {name}", [one.server_us for one in loaded[name]], "µs/req") for name in NAMES]
    rows += [Row(f"Envoy CPU, {name}", [one.envoy_us for one in loaded[name]], "µs/req") for name in NAMES]
    rows += [
        Row(f"alone, {name}", [1e6 / one.requests_per_s for one in alone[name]], "µs/req") for name in NAMES
    ]
    report("skip", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
