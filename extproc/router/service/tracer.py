"""Whether traces are made, which the standard variables of OpenTelemetry say.

Where they do not, nothing of it is imported, and no request costs more.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from extproc.router.service.otel import OtelTracer

log = logging.getLogger(__name__)

# How long the last spans have to leave, at the end of a drain.
FLUSH_S: Final = 3.0

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wants_traces(environment: Mapping[str, str]) -> bool:
    """By the specification, but that without any variable nothing is sent: to localhost, it would say."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    return exporter != "none" if exporter else any(environment.get(name) for name in _ENDPOINTS)


def build_tracer(
    environment: Mapping[str, str], count: Callable[[str, int], None]
) -> "OtelTracer | None":
    """`count` gets a result and a number of spans, from any thread.

    `None`: traces are not configured, or impossible, which the log says. Requests are served all
    the same: the variables may be a whole cluster's.
    """
    if not wants_traces(environment):
        return None
    try:
        from extproc.router.service.otel import OtelTracer, build_exporter  # noqa: PLC0415  # 12 MB, only where configured

        return OtelTracer(build_exporter(environment), environment, count)
    except ImportError as error:
        log.error("no traces: %s is not here; install the extra `otel`", error.name)  # noqa: TRY400  # one line
    except ValueError as error:
        log.error("no traces: %s", error)  # noqa: TRY400
    return None
