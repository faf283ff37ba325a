"""What vLLM's `/metrics` say that a strategy wants to know. Pure: bytes in, `Vitals` out.

A page is 50 kB and more, of which eight families matter; reading it with a parser of everything would take
fifty times as long. Engines of one server (data parallel) are added up.
"""

import re
from collections.abc import Iterator
from math import isfinite
from typing import Final

from extproc.errors import ProtocolError
from extproc.routing.vitals import Vitals

# Names as of vLLM 0.32; older ones have them, too, but for `kv_cache_size_tokens`.
_RUNNING: Final = b"vllm:num_requests_running"
_WAITING: Final = b"vllm:num_requests_waiting"
_QUERIED: Final = b"vllm:prefix_cache_queries_total"
_HIT: Final = b"vllm:prefix_cache_hits_total"
_PROMPT: Final = b"vllm:prompt_tokens_total"
_PREFILLS: Final = b"vllm:request_prefill_time_seconds_count"
_PREFILL_S: Final = b"vllm:request_prefill_time_seconds_sum"
_CONFIG: Final = b"vllm:cache_config_info"
_STARTED: Final = b"process_start_time_seconds"

_SIZE: Final = re.compile(rb'[{,]kv_cache_size_tokens="(\d{1,12})"')
_BLOCKS: Final = re.compile(rb'[{,]num_gpu_blocks="(\d{1,12})"')
_BLOCK: Final = re.compile(rb'[{,]block_size="(\d{1,6})"')

# Engines of one server, and models of one engine.
_MOST_LINES: Final = 256


def read_vitals(page: bytes) -> Vitals:
    """Raises `ProtocolError` for a page that is not vLLM's, or has numbers that are none."""
    running = _sum(page, _RUNNING)
    if running is None:
        raise ProtocolError("no metrics of vLLM")
    return Vitals(
        running,
        _sum(page, _WAITING) or 0.0,
        _kv_tokens(page),
        _sum(page, _QUERIED) or 0.0,
        _sum(page, _HIT) or 0.0,
        _sum(page, _PROMPT) or 0.0,
        _sum(page, _PREFILLS) or 0.0,
        _sum(page, _PREFILL_S) or 0.0,
        _sum(page, _STARTED) or 0.0,
        max((int(block[1]) for line in _lines(page, _CONFIG) if (block := _BLOCK.search(line))), default=0),
    )


def _sum(page: bytes, name: bytes) -> float | None:
    """The samples of a family added up; `None` where there are none."""
    values = [_number(line) for line in _lines(page, name)]
    return sum(values) if values else None


def _lines(page: bytes, name: bytes) -> Iterator[bytes]:
    """Yields the samples of one family, which stand together."""
    at = 0 if page.startswith(name) else page.find(b"\n" + name) + 1
    for _ in range(_MOST_LINES):
        if not page.startswith(name, at):
            return
        end = page.find(b"\n", at)
        line = page[at : end if end >= 0 else len(page)]
        if line[len(name) : len(name) + 1] in {b"{", b" "}:
            yield line
        if end < 0:
            return
        at = end + 1


def _number(line: bytes) -> float:
    try:
        value = float(line.rpartition(b" ")[2])
    except ValueError:
        raise ProtocolError("a sample without a number") from None
    if not isfinite(value) or value < 0:
        raise ProtocolError("a count that is none")
    return value


def _kv_tokens(page: bytes) -> int | None:
    """What all engines' caches hold together."""
    sizes = [_kv_tokens_of(line) for line in _lines(page, _CONFIG)]
    return sum(sizes) or None


def _kv_tokens_of(line: bytes) -> int:
    size, blocks, block = _SIZE.search(line), _BLOCKS.search(line), _BLOCK.search(line)
    if size is not None:
        return int(size[1])
    return int(blocks[1]) * int(block[1]) if blocks is not None and block is not None else 0
