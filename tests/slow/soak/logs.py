"""Reads what the parts wrote: the books' entries, and lines that nobody expects."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from tests.slow.soak.books import DecisionEntry, EndpointEntry, GatewayEntry

_DECIDED: Final = re.compile(r"routed (\S+) to <Pick (\S+) of |answered (\S+): ")
# What parts say of the faults that they are exposed to, by part and level.
ALLOWED: Final[Mapping[str, Sequence[str]]] = {
    "service": (
        r"pool vllm: \S+ fails and is cooled down",
        r"pool vllm: \S+ is healthy again",
        r"pool vllm: \S+ did not say that it is healthy",
        r"the changed configuration is refused, the old one stays",
        r"pool vllm: (\d+ endpoints give no metrics|every endpoint gives its metrics)",
        r"no connection to NATS",
        r"NATS: ",
    ),
    "envoy": (
        r"\[warning\]\[ext_proc\] .*Received gRPC error on stream: 1[34]",  # the service is away
        r"caught ENVOY_SIGTERM",
    ),
    "vllm": (r"Endpoint|the simulation is",),
    "nats": (r"\[INF\]", r"Plaintext passwords detected"),
}
_LEVELS: Final = ("WARNING", "ERROR", "CRITICAL")


def read_objects(path: Path, start: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields the lines that are JSON objects, between two bytes; a line that a kill tore is none."""
    with path.open("rb") as file:
        file.seek(start)
        lines = file if end is None else file.read(end - start).splitlines()
        for line in lines:
            if line.startswith(b"{"):
                try:
                    yield orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue


def read_lines(path: Path, gateway: int, start: int = 0) -> list[GatewayEntry]:
    """Reads an Envoy's access log."""
    return [_line(fields, gateway) for fields in read_objects(path, start)]


def _line(fields: dict[str, Any], gateway: int) -> GatewayEntry:
    began_s = _seconds(fields["time"])
    ended_s = began_s + fields["duration_ms"] / 1_000
    rest = (fields[name] or "" for name in ("details", "flags", "endpoint", "served_by"))
    return GatewayEntry(fields["request_id"], gateway, began_s, ended_s, fields["status"], *rest)


def read_picked(
    path: Path, gateway: int, start: int = 0, end: int | None = None
) -> list[DecisionEntry]:
    """Reads the decisions in a service's log."""
    return [
        DecisionEntry(found[1] or found[3], gateway, _seconds(fields["time"]), found[2] or "")
        for fields in read_objects(path, start, end)
        if (found := _DECIDED.match(fields["message"]))
    ]


def read_served(path: Path, endpoint: str) -> list[EndpointEntry]:
    """Reads an endpoint's log of its requests."""
    ends: dict[str, dict[str, Any]] = {}
    begins: list[tuple[str, float]] = []
    for fields in read_objects(path):
        if "begin" in fields:
            begins.append((fields["begin"], fields["at"]))
        else:
            ends[fields["end"]] = fields
    never = {"at": None, "status": None}
    pairs = [(name, began_s, ends.get(name, never)) for name, began_s in begins]
    return [
        EndpointEntry(name, endpoint, began_s, end["at"], end["status"])
        for name, began_s, end in pairs
    ]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def unexpected(kind: str, path: Path) -> Iterator[str]:
    """Yields the lines of a part's log that should not be there; `kind` is one of `ALLOWED`."""
    is_allowed = re.compile("|".join(ALLOWED[kind]) or r"(?!)").search
    for line in path.read_text(errors="replace").splitlines():
        message = _READERS[kind](line)
        if message and not is_allowed(message):
            yield f"{path.name}: {line[:300]}"


def _message_of_service(line: str) -> str:
    """What a line of a service says that an operator has to look at."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    return f"{fields['message']}" if fields["level"] in _LEVELS else ""


_READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "service": _message_of_service,
    "envoy": lambda line: "" if line.startswith("{") else line,
    "vllm": str,
    "nats": str,
}
