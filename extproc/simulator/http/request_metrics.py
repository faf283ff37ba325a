"""What vLLM's HTTP server counts of requests: the metrics of its FastAPI instrumentation."""

from collections.abc import Awaitable, Callable
from time import perf_counter

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

# Paths that vLLM leaves out of these metrics.
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
# fmt: off
FINE_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)
# fmt: on
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "Total number of requests by method, status and handler.",
            ["handler", "method", "status"],
            registry=registry,
        )
        self._request_bytes = Summary(
            "http_request_size_bytes",
            "Content length of incoming requests by handler. Only value of header is respected. "
            "Otherwise ignored. No percentile calculated. ",
            ["handler"],
            registry=registry,
        )
        self._response_bytes = Summary(
            "http_response_size_bytes",
            "Content length of outgoing responses by handler. Only value of header is respected. "
            "Otherwise ignored. No percentile calculated. ",
            ["handler"],
            registry=registry,
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile "
            "calculations. ",
            buckets=FINE_S,
            registry=registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is "
            "important. ",
            ["handler", "method"],
            buckets=(0.1, 0.5, 1),
            registry=registry,
        )

    async def measure(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers a request and counts it; one whose client goes away is not counted."""
        if request.path in UNCOUNTED:
            return await handler(request)
        began_s = perf_counter()
        response = await handler(request)
        self._count(request, response, perf_counter() - began_s)
        return response

    def _count(self, request: web.Request, response: web.StreamResponse, took_s: float) -> None:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "none"
        self._requests.labels(path, request.method, f"{response.status // 100}xx").inc()
        self._request_bytes.labels(path).observe(request.content_length or 0)
        self._response_bytes.labels(path).observe(response.content_length or 0)
        self._fine.observe(took_s)
        self._coarse.labels(path, request.method).observe(took_s)
