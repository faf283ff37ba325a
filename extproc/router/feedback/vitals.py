"""What vLLM's `/metrics` say that a strategy wants to know. Pure: bytes in, `Vitals` out.

A page is 50 kB and more, of which eight families matter; reading it with a parser of everything would take
fifty times as long. Engines of one server (data parallel) are added up.
"""

import re
from math import isfinite
from typing import Final

from extproc.errors import ProtocolError
from extproc.router.routing.vitals import Vitals

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
    reader = _Reader(page)
    # In the order in which vLLM writes them.
    started_s = reader.sum(_STARTED)
    running = reader.sum(_RUNNING)
    if running is None:
        raise ProtocolError("no metrics of vLLM")
    waiting, queried, hit, prompt = map(reader.sum, (_WAITING, _QUERIED, _HIT, _PROMPT))
    prefills, prefill_s = map(reader.sum, (_PREFILLS, _PREFILL_S))
    config = reader.lines(_CONFIG)
    return Vitals(
        running,
        waiting or 0.0,
        sum(map(_kv_tokens, config)) or None,
        queried or 0.0,
        hit or 0.0,
        prompt or 0.0,
        prefills or 0.0,
        prefill_s or 0.0,
        started_s or 0.0,
        max((int(block[1]) for line in config if (block := _BLOCK.search(line))), default=0),
    )


class _Reader:
    """Finds families one after the other: looks behind the last one first, and then before it."""

    def __init__(self, page: bytes) -> None:
        self._page = page
        self._at = 0

    def sum(self, name: bytes) -> float | None:
        """The samples of a family added up; `None` where there are none."""
        lines = self.lines(name)
        return sum(map(_number, lines)) if lines else None

    def lines(self, name: bytes) -> list[bytes]:
        """The samples of one family, which stand together."""
        page, found = self._page, list[bytes]()
        at = self._find(name)
        while page.startswith(name, at) and len(found) < _MOST_LINES:
            end = page.find(b"\n", at)
            end = len(page) if end < 0 else end
            if page[at + len(name) : at + len(name) + 1] in {b"{", b" "}:
                found.append(page[at:end])
            self._at = at
            at = end + 1
        return found

    def _find(self, name: bytes) -> int:
        """Where the family begins; the page's end if nowhere."""
        page, line = self._page, b"\n" + name
        if page.startswith(name):
            return 0
        for start, stop in ((max(0, self._at - 1), len(page)), (0, self._at + len(line))):
            at = page.find(line, start, stop)
            if at >= 0:
                return at + 1
        return len(page)


def _number(line: bytes) -> float:
    try:
        value = float(line.rpartition(b" ")[2])
    except ValueError:
        raise ProtocolError("a sample without a number") from None
    if not isfinite(value) or value < 0:
        raise ProtocolError("a count that is none")
    return value


def _kv_tokens(line: bytes) -> int:
    size, blocks, block = _SIZE.search(line), _BLOCKS.search(line), _BLOCK.search(line)
    if size is not None:
        return int(size[1])
    return int(blocks[1]) * int(block[1]) if blocks is not None and block is not None else 0
