"""gRPC health: what `Check` and `Watch` answer, and when a watcher gets another answer (grpc.health.v1)."""

import tracemalloc

import pytest
from grpc_health.v1 import health_pb2 as pb

from extproc.grpc_server.calls import Status
from extproc.router.service.health import Health
from extproc.router.stream.names import CHECK, EXT_PROC, WATCH
from tests.grpc_server.calls import RecordedCall


class Readiness:
    def __init__(self) -> None:
        self.is_ready = False
        self.health = Health(lambda: self.is_ready)

    def turn(self, *, is_ready: bool) -> None:
        self.is_ready = is_ready
        self.health.update()

    def ask(self, path: str, name: str) -> RecordedCall:
        call = RecordedCall()
        handler = self.health.routes()[path](call)
        handler.on_message(pb.HealthCheckRequest(service=name).SerializeToString())
        handler.on_half_close()
        return call


def statuses_sent(call: RecordedCall) -> list[str]:
    return [
        pb.HealthCheckResponse.ServingStatus.Name(pb.HealthCheckResponse.FromString(message).status)
        for message in call.sent
    ]


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.mark.parametrize("name", ["", "readiness", "inference-extension", EXT_PROC])
def test_a_check_shows_whether_requests_can_be_routed_now(readiness: Readiness, name: str) -> None:
    """Whenever it was looked at last."""
    before = readiness.ask(CHECK, name)
    readiness.is_ready = True
    after = readiness.ask(CHECK, name)

    assert [["NOT_SERVING"], ["SERVING"]] == [statuses_sent(before), statuses_sent(after)]
    assert before.status is after.status is Status.OK


def test_a_process_that_answers_lives_and_an_unknown_name_is_not_found(
    readiness: Readiness,
) -> None:
    unknown = readiness.ask(CHECK, "nobody")

    assert ["SERVING"] == statuses_sent(readiness.ask(CHECK, "liveness"))
    assert (unknown.status, unknown.sent) == (Status.NOT_FOUND, [])


def test_a_watcher_hears_of_changes_alone(readiness: Readiness) -> None:
    call, other = readiness.ask(WATCH, ""), readiness.ask(WATCH, "liveness")
    for is_ready in (False, True, True, False):
        readiness.turn(is_ready=is_ready)

    assert ["NOT_SERVING", "SERVING", "NOT_SERVING"] == statuses_sent(call)
    assert ["SERVING"] == statuses_sent(other)
    assert call.status is other.status is None


def test_nothing_is_kept_of_an_unknown_name_that_is_watched(readiness: Readiness) -> None:
    """Once twenty streams that watch names of 40 MB took 970 MB."""
    tracemalloc.start()
    call = readiness.ask(WATCH, "n" * 1_000_000)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert statuses_sent(call) == ["SERVICE_UNKNOWN"]
    assert kept_bytes < 100_000


def test_a_watcher_of_an_unknown_name_gets_that_and_a_gone_one_nothing(
    readiness: Readiness,
) -> None:
    unknown, gone = readiness.ask(WATCH, "nobody"), RecordedCall()
    handler = readiness.health.routes()[WATCH](gone)
    handler.on_message(b"")
    handler.on_close()
    readiness.turn(is_ready=True)

    assert (statuses_sent(unknown), unknown.status) == (["SERVICE_UNKNOWN"], None)
    assert ["NOT_SERVING"] == statuses_sent(gone)


@pytest.mark.parametrize("path", [CHECK, WATCH])
@pytest.mark.parametrize("message", [None, b"\xff"])
def test_a_call_without_a_request_is_refused(
    readiness: Readiness, path: str, message: bytes | None
) -> None:
    call = RecordedCall()
    handler = readiness.health.routes()[path](call)
    if message is not None:
        handler.on_message(message)
    handler.on_half_close()
    handler.on_close()

    assert call.status is Status.INVALID_ARGUMENT
    assert call.sent == []
