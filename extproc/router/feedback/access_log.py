"""Envoy's gRPC access log: messages become exchanges. The only importer of its generated code.

Envoy opens one stream per worker and sends what happened in batches; nothing is answered until the
stream ends. Losing a stream loses entries, never a request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from extproc.errors import ProtocolError
from extproc.grpc_server.calls import Call, Handler, Routes, Status
from extproc.router.feedback import access_log_pb2 as pb
from extproc.router.feedback.outcome import EndpointFault, Exchange
from extproc.router.stream.names import DECISION_NAMESPACE, DESTINATION, LB_NAMESPACE, TICKET

METHOD: Final = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"

# Envoy's batches are 16 KiB and one entry, and its first message names the sender in 64 kB. What is
# larger is no log of ours, and reading it would keep requests waiting.
MAX_MESSAGE_BYTES: Final = 262_144
MAX_ENTRIES: Final = 1_000

_TICKET_DIGITS: Final = 16
_HEX: Final = "0123456789abcdef"

_MAY_BE_BUSY: Final = frozenset({429, 503})
_ENDED: Final = frozenset({0, 6})  # AccessLogType: NotSet, DownstreamEnd


def read_entries(message: bytes) -> Iterator[Exchange]:
    """Reads one `StreamAccessLogsMessage`, up to `MAX_ENTRIES` of it. Raises `ProtocolError`."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise ProtocolError("an access log message that is too large")
    try:
        logs = pb.StreamAccessLogsMessage.FromString(message).http_logs
    except DecodeError:
        raise ProtocolError("not a StreamAccessLogsMessage") from None
    entries = islice(logs.log_entry, MAX_ENTRIES)
    return (
        _exchange(entry) for entry in entries if entry.common_properties.access_log_type in _ENDED
    )


def _exchange(entry: pb.HTTPAccessLogEntry) -> Exchange:
    # Every step into a message costs as much as a small function call: none is taken without need.
    # A map's message that is missing is made empty by reading it.
    common, response = entry.common_properties, entry.response
    spaces = common.metadata.filter_metadata
    ours = spaces[DECISION_NAMESPACE].fields
    number = ours[TICKET].string_value if TICKET in ours else ""
    # Anybody may write to this port: what is no number is none of ours.
    ticket = int(number, 16) if len(number) == _TICKET_DIGITS and not number.strip(_HEX) else 0
    attempts = common.upstream_request_attempt_count
    has_begun = common.HasField("time_to_first_upstream_rx_byte")
    status = response.response_code.value
    return Exchange(
        _address(common.upstream_remote_address.socket_address),
        status,
        _seconds(common.duration),
        _seconds(common.time_to_first_upstream_rx_byte) if has_begun else None,
        _fault(common.response_flags) if common.HasField("response_flags") else EndpointFault.NONE,
        attempts,
        _destinations(spaces) if attempts > 1 else (),
        response.response_headers.get("retry-after") if status in _MAY_BE_BUSY else None,
        ticket,
        "" if ticket else entry.request.request_id,
        _seconds(common.time_to_last_rx_byte) if common.HasField("time_to_last_rx_byte") else None,
    )


def _destinations(spaces: Mapping[str, Struct]) -> Sequence[str]:
    text = spaces[LB_NAMESPACE].fields[DESTINATION].string_value
    return text.split(",") if text else ()


def _address(address: pb.SocketAddress) -> str:
    """The endpoint's `ip:port` in our spelling; empty where there is none, or a unix socket."""
    ip = address.address
    if not ip:
        return ""
    return f"[{ip}]:{address.port_value}" if ":" in ip else f"{ip}:{address.port_value}"


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _fault(flags: pb.ResponseFlags) -> EndpointFault:
    if (
        flags.downstream_connection_termination
        or flags.downstream_remote_reset
        or flags.downstream_protocol_error
    ):
        return EndpointFault.CLIENT
    if flags.upstream_connection_failure:
        return EndpointFault.CONNECTION
    is_endpoints = (
        flags.upstream_connection_termination
        or flags.upstream_remote_reset
        or flags.upstream_request_timeout
        or flags.upstream_protocol_error
    )
    return EndpointFault.ENDPOINT if is_endpoints else EndpointFault.NONE


class AccessLogs:
    """`envoy.service.accesslog.v3.AccessLogService`: hands on what has a number.

    `on_fault` counts messages that could not be used, by one of a few fixed words.
    """

    def __init__(
        self, take_exchange: Callable[[Exchange], None], on_fault: Callable[[str], None]
    ) -> None:
        self._take_exchange = take_exchange
        self.on_fault = on_fault

    def routes(self) -> Routes:
        return {METHOD: self.open}

    def open(self, call: Call) -> Handler:
        return _Stream(self, call)

    def receive(self, message: bytes) -> None:
        """Takes every entry of one message. Bytes that are none are counted, and no more."""
        try:
            for exchange in read_entries(message):
                if exchange.ticket or exchange.request_id:
                    self._take_exchange(exchange)
        except ProtocolError:
            self.on_fault("unreadable")


class _Stream:
    def __init__(self, logs: AccessLogs, call: Call) -> None:
        self._logs = logs
        self._call = call

    def on_message(self, message: bytes | bytearray) -> None:
        self._logs.receive(bytes(message))

    def on_skipped(self, _size: int) -> None:
        self._logs.on_fault("too_large")

    def on_half_close(self) -> None:
        self._call.finish(Status.OK)

    def on_close(self) -> None:
        pass
