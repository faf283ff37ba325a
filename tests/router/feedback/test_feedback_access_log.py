"""Envoy's gRPC access log as envoy-data-plane writes it, read by us; and whatever else a stream may bring."""

from typing import Any

import pytest
from envoy_data_plane.envoy.config.core.v3 import Address, Pipe
from envoy_data_plane.envoy.data.accesslog.v3 import AccessLogType
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.grpc_server.calls import Status
from extproc.router.feedback.access_log import (
    MAX_ENTRIES,
    MAX_MESSAGE_BYTES,
    METHOD,
    AccessLogs,
    read_entries,
)
from extproc.router.feedback.outcome import EndpointFault, Exchange, Outcome, Verdict, outcomes
from tests.router.feedback.access_logs import LogClient, entry, log_message
from tests.tables import table

FAULTS = {
    **dict.fromkeys(
        (
            "downstream_connection_termination",
            "downstream_protocol_error",
            "downstream_remote_reset",
        ),
        EndpointFault.CLIENT,
    ),
    "upstream_connection_failure": EndpointFault.CONNECTION,
    **{
        f"upstream_{what}": EndpointFault.ENDPOINT
        for what in (
            "connection_termination",
            "remote_reset",
            "request_timeout",
            "protocol_error",
        )
    },
}
OTHERS = (
    "no_healthy_upstream",
    "upstream_overflow",
    "no_route_found",
    "upstream_retry_limit_exceeded",
)

milliseconds = st.integers(0, 10**7)
ips = st.ip_addresses(v=4).map(str)


class StreamOutcomes:
    """What came of a stream of messages."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.faults: list[str] = []
        self.client = LogClient()
        logs = AccessLogs(
            lambda each: self.outcomes.extend(outcomes(each, 0.0)), self.faults.append
        )
        self.stream = logs.routes()[METHOD](self.client)


@given(
    st.fixed_dictionaries(
        {
            "pool": st.none() | st.text(st.characters(codec="utf-8"), max_size=9),
            "address": st.none() | st.tuples(ips, st.integers(1, 65535)),
            "status": st.none() | st.integers(100, 599) | st.sampled_from([429, 503]),
            "duration_ms": milliseconds,
            "first_byte_ms": st.none() | milliseconds,
            "flag": st.none() | st.sampled_from([*FAULTS, *OTHERS]),
            "attempts": st.integers(0, 5),
            "destinations": st.lists(ips, max_size=3).map(tuple),
            "received_ms": st.none() | milliseconds,
        }
    ),
    st.none() | st.integers(0, 99).map(str),
)
def test_what_the_other_codec_writes_is_the_exchange_it_wrote(
    fields: dict[str, Any], retry_after: str | None
) -> None:
    headers = {"x-other": "1"} | ({} if retry_after is None else {"retry-after": retry_after})
    (exchange,) = read_entries(log_message(entry(**fields, headers=headers)))
    address, status, first_byte_ms = (
        fields[name] for name in ("address", "status", "first_byte_ms")
    )

    assert exchange.duration_s == pytest.approx(fields["duration_ms"] / 1e3)
    assert (exchange.first_byte_s or 0) == pytest.approx((first_byte_ms or 0) / 1e3)
    assert (exchange.first_byte_s is None) == (first_byte_ms is None)
    received_ms = fields["received_ms"]
    assert exchange.received_s == (
        None if received_ms is None else pytest.approx(received_ms / 1e3)
    )
    assert exchange == Exchange(
        "" if address is None else f"{address[0]}:{address[1]}",
        status or 0,
        exchange.duration_s,
        exchange.first_byte_s,
        FAULTS.get(fields["flag"], EndpointFault.NONE),
        fields["attempts"],
        list(fields["destinations"]) if fields["attempts"] > 1 and fields["destinations"] else (),
        retry_after if status in {429, 503} else None,
        request_id="mine",
        received_s=exchange.received_s,
    )
    assert "secret" not in repr(exchange)  # what the client wrote


TICKET = "00000000000000ff"


@table("pick", [None, "", "ff", "g" * 16, "0" * 15 + "-", "_" * 16, "f" * 17, "0" * 16])
def test_a_number_that_we_never_gave_is_none(pick: str | None) -> None:
    (exchange,) = read_entries(log_message(entry(pick=pick)))

    assert exchange.ticket == 0


def test_only_what_has_a_number_is_taken() -> None:
    settled: list[Exchange] = []
    logs = AccessLogs(settled.append, lambda _: None)
    logs.receive(
        log_message(entry(), entry(pick=TICKET), entry(pick=TICKET, address=None, status=503))
    )

    assert [(exchange.ticket, exchange.request_id, exchange.address) for exchange in settled] == [
        (0, "mine", "10.0.0.1:8000"),
        (255, "", "10.0.0.1:8000"),
        (255, "", ""),
    ]


def test_an_ipv6_address_is_spelt_as_ours_are_and_one_without_ip_and_port_is_none() -> None:
    at_a_path = entry(address=None)
    assert at_a_path.common_properties is not None
    at_a_path.common_properties.upstream_remote_address = Address(pipe=Pipe(path="/tmp/vllm"))
    exchanges = read_entries(log_message(entry(address=("fd00::1", 8000)), at_a_path))

    assert [exchange.address for exchange in exchanges] == ["[fd00::1]:8000", ""]


def test_entries_of_exchanges_that_go_on_are_left_out() -> None:
    kinds = (AccessLogType.DownstreamPeriodic, AccessLogType.NotSet, AccessLogType.UpstreamEnd)
    found = list(
        read_entries(log_message(*(entry(status=200 + kind, type_=kind) for kind in kinds)))
    )

    assert [exchange.status for exchange in found] == [200]


def test_a_stream_reports_every_outcome_in_order_and_sends_nothing() -> None:
    received = StreamOutcomes()
    retried = entry(
        pick=TICKET,
        address=("10.0.0.2", 80),
        attempts=2,
        destinations=("10.0.0.1:80", "10.0.0.2:80"),
        status=500,
    )
    received.stream.on_message(log_message(entry(pick=TICKET), retried))
    received.stream.on_message(log_message())
    assert [(outcome.address, outcome.verdict) for outcome in received.outcomes] == [
        ("10.0.0.1:8000", Verdict.ANSWERED),
        ("10.0.0.1:80", Verdict.FAILED),
        ("10.0.0.2:80", Verdict.FAILED),
    ]
    assert (received.client.sent, received.client.ended, received.faults) == ([], [], [])

    received.stream.on_half_close()
    received.stream.on_close()

    assert received.client.ended == [Status.OK]


@given(st.binary(max_size=300))
def test_bytes_that_are_no_log_are_counted_and_never_raise(data: bytes) -> None:
    received = StreamOutcomes()
    received.stream.on_message(data)
    received.stream.on_message(log_message(entry(pick=TICKET)))

    assert set(received.faults) <= {"unreadable"}
    assert received.outcomes[-1].address == "10.0.0.1:8000"


def test_a_message_that_is_cut_short_or_too_large_is_counted_and_not_read() -> None:
    received = StreamOutcomes()
    received.stream.on_message(log_message(entry(pick=TICKET))[:-1])
    received.stream.on_message(bytes(MAX_MESSAGE_BYTES + 1))
    received.stream.on_skipped(10**9)

    assert (received.outcomes, received.faults) == ([], ["unreadable", "unreadable", "too_large"])
    with pytest.raises(ProtocolError, match="too large"):
        read_entries(bytes(MAX_MESSAGE_BYTES + 1))


def test_of_a_message_of_nothing_but_entries_a_bounded_number_is_read() -> None:
    received = StreamOutcomes()
    one = b"\x0a\x04\x0a\x02\x6a\x00"  # an entry with an empty address
    found = list(read_entries(b"\x12" + _varint(len(one) * 10_000) + one * 10_000))

    assert len(found) == MAX_ENTRIES
    assert received.faults == []


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
