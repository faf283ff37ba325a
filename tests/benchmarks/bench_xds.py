"""What a change of endpoints costs on the event loop before it is on its way to Envoy.

Reference in the same run: a change of one of 100 endpoints. `python -m tests.benchmarks.bench_xds`.
"""

from collections.abc import Callable
from itertools import count

from extproc.router.routing.endpoint import Endpoint
from extproc.router.xds.requests import Request
from extproc.router.xds.resources import ASSIGNMENTS, Catalog
from extproc.router.xds.state import Subscriber
from tests.benchmarks.report import Row, report, time_us

COUNTS = (100, 2_000)


def endpoints(number: int, generation: int = 0) -> list[Endpoint]:
    return [
        Endpoint(f"default/vllm-{index}", f"10.{generation % 250}.{index // 250}.{index % 250 + 1}:8000")
        for index in range(number)
    ]


def subscribed(catalog: Catalog) -> Callable[[], None]:
    """One Envoy: reads what it is owed, and says that it has it."""
    subscriber = Subscriber(catalog)
    nonce = ""

    def read() -> None:
        nonlocal nonce
        subscriber.on(Request(ASSIGNMENTS, ("llama",), nonce))
        response = subscriber.next()
        assert response is not None, "nothing was owed"
        nonce = response.nonce
        bytes(response)

    return read


def one_changed(number: int) -> Callable[[], None]:
    """One endpoint starts or ends to drain."""
    catalog, pool, turns = Catalog(["llama"]), endpoints(number), count()
    catalog.replace("llama", pool)
    read = subscribed(catalog)

    def once() -> None:
        first = Endpoint(pool[0].name, pool[0].address, is_ready=next(turns) % 2 == 0)
        catalog.replace("llama", [first, *pool[1:]])
        read()

    once()
    return once


def all_new(number: int) -> Callable[[], None]:
    """The first list, or a pool whose every pod was replaced."""
    catalog, generations = Catalog(["llama"]), count()
    read = subscribed(catalog)

    def once() -> None:
        catalog.replace("llama", endpoints(number, next(generations)))
        read()

    return once


def main() -> None:
    rows = [Row(f"one of {number:,} changed", time_us(one_changed(number), 10, 7), "us") for number in COUNTS]
    rows += [Row(f"{number:,} new", time_us(all_new(number), 1, 7), "us") for number in COUNTS]
    report("A change of endpoints, to the bytes for one Envoy", rows, reference="one of 100 changed")


if __name__ == "__main__":
    main()
