"""Metrics as a scraper wants them: its format, zipped where it takes that."""

import asyncio
import gzip
from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector


async def answer_metrics(request: web.Request, families: Iterable[Metric]) -> web.Response:
    """In the format and encoding that the scraper prefers. What was collected is written in a thread."""
    accept = ",".join(request.headers.getall("accept", []))
    is_zipped = gzip_accepted(",".join(request.headers.getall("accept-encoding", [])))
    content_type, body = await asyncio.to_thread(_expose, families, accept, is_zipped=is_zipped)
    headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
    if is_zipped:
        headers["content-encoding"] = "gzip"
    return web.Response(body=body, headers=headers)


class _Families(Collector):
    """What was collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _expose(families: Iterable[Metric], accept: str, *, is_zipped: bool) -> tuple[str, bytes]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    return content_type, gzip.compress(body, compresslevel=1) if is_zipped else body
