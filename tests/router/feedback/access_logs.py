"""Messages of an Envoy's access log, and a stream of them."""

from collections.abc import Mapping
from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import Address, Locality, Metadata, Node, SocketAddress
from envoy_data_plane.envoy.data.accesslog.v3 import (
    AccessLogCommon,
    AccessLogType,
    HttpAccessLogEntry,
    HttpRequestProperties,
    HttpResponseProperties,
    ResponseFlags,
)
from envoy_data_plane.envoy.service.accesslog.v3 import (
    StreamAccessLogsMessage,
    StreamAccessLogsMessageHttpAccessLogEntries,
    StreamAccessLogsMessageIdentifier,
)
from envoy_data_plane.google.protobuf import Struct, Value

from extproc.grpc_server.calls import Status

DESTINATION = "x-gateway-destination-endpoint"


def entry(  # noqa: PLR0917  # a log entry has this many fields
    pool: str | None = "llama",
    address: tuple[str, int] | None = ("10.0.0.1", 8000),
    status: int | None = 200,
    duration_ms: int = 500,
    first_byte_ms: int | None = 100,
    flag: str | None = None,
    attempts: int = 1,
    destinations: tuple[str, ...] = (),
    headers: Mapping[str, str] = {},
    type_: AccessLogType = AccessLogType.DownstreamEnd,
    pick: str | None = None,
    received_ms: int | None = 0,
) -> HttpAccessLogEntry:
    """An entry with everything that Envoy also sends and we do not read."""
    spaces = {"other": struct_of(x="y")}
    if pool is not None:
        ticket = {} if pick is None else {"pick": pick}
        spaces["extproc"] = struct_of(pool=pool, endpoint="e", prefix="0" * 16, **ticket)
    if destinations:
        spaces["envoy.lb"] = struct_of(**{DESTINATION: ",".join(destinations)})
    where = None if address is None else SocketAddress(address=address[0], port_value=address[1])
    common = AccessLogCommon(
        time_to_last_rx_byte=time_of(received_ms),
        time_to_first_upstream_rx_byte=time_of(first_byte_ms),
        time_to_last_downstream_tx_byte=timedelta(milliseconds=duration_ms),
        upstream_remote_address=None if where is None else Address(socket_address=where),
        upstream_cluster="vllm",
        response_flags=None if flag is None else ResponseFlags(**{flag: True}),  # type: ignore[arg-type]  # all but one are booleans
        metadata=Metadata(filter_metadata=spaces),
        duration=time_of(duration_ms),
        upstream_request_attempt_count=attempts,
        access_log_type=type_,
    )
    return HttpAccessLogEntry(
        common_properties=common,
        request=HttpRequestProperties(
            path="/v1/chat/completions?secret", request_id="mine", user_agent="x"
        ),
        response=HttpResponseProperties(response_code=status, response_headers=dict(headers)),
    )


def log_message(*entries: HttpAccessLogEntry) -> bytes:
    node = Node(id="envoy", locality=Locality(zone="a"))
    return bytes(
        StreamAccessLogsMessage(
            identifier=StreamAccessLogsMessageIdentifier(node=node, log_name="extproc"),
            http_logs=StreamAccessLogsMessageHttpAccessLogEntries(log_entry=list(entries)),
        )
    )


def time_of(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def struct_of(**fields: str) -> Struct:
    return Struct(fields={key: Value(string_value=value) for key, value in fields.items()})


class LogClient:
    """A call whose client is the test."""

    def __init__(self) -> None:
        self.metadata: Mapping[str, str] = {}
        self.peer = "test"
        self.sent: list[bytes] = []
        self.ended: list[Status] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def finish(self, status: Status = Status.OK, details: str = "") -> None:
        self.ended.append(status)
