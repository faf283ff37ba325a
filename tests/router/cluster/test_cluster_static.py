from extproc.router.cluster.source import StaticSource
from extproc.router.routing.endpoint import Endpoint
from tests.router.cluster.harness import RecordingSink, running

ENDPOINTS = [Endpoint("a", "10.0.0.1:8000"), Endpoint("b", "10.0.0.2:8000")]


async def test_static_source_tells_its_list_once_and_then_confirms_it(sink: RecordingSink) -> None:
    async with running(StaticSource(ENDPOINTS, confirm_s=0.001), sink):
        await sink.until(lambda told: told.confirmed_total >= 3)

    assert sink.lists == [ENDPOINTS]
    assert sink.restarts == []
