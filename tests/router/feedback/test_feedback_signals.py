"""vLLM's metrics, as a real one tells them, and whatever else may stand there."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.router.feedback.scraper import read_signals
from extproc.router.routing.signals import EndpointSignals
from tests.tables import table

PAGE = (Path(__file__).parents[2] / "simulator/data/metrics-0.32.0.txt").read_bytes()

LEAST = b"vllm:num_requests_running 0\n"


def labelled(name: str, value: object, engine: int = 0) -> bytes:
    return f'vllm:{name}{{engine="{engine}",model_name="a"}} {value}\n'.encode()


def test_the_page_of_a_real_vllm_is_read() -> None:
    signals = read_signals(PAGE)

    assert (signals.kv_tokens, signals.block_tokens) == (1_048_576, 32)
    assert signals.started_s > 1.7e9
    assert 0 < signals.hit_tokens < signals.queried_tokens
    assert min(signals.prompt_tokens, signals.prefills, signals.prefill_s) > 0


def test_every_figure_is_found_in_its_place_and_names_that_begin_alike_are_others() -> None:
    figures = {
        "num_requests_running": 1,
        "num_requests_waiting": 2,
        "prefix_cache_queries_total": 30,
        "prefix_cache_hits_total": 4,
        "prompt_tokens_total": 50,
        "request_prefill_time_seconds_count": 6,
        "request_prefill_time_seconds_sum": 0.7,
        "e2e_request_latency_seconds_count": 9,
        "e2e_request_latency_seconds_sum": 11,
    }
    named = figures | {"num_requests_waiting_by_reason": 9, "prompt_tokens_total_more": 9}
    page = b"".join(f"# HELP vllm:{name} Text.\n".encode() + labelled(name, named[name]) for name in named)

    assert read_signals(page + b"process_start_time_seconds 8.0\n") == EndpointSignals(
        1, 2, None, 30, 4, 50, 6, 0.7, 8, 0, 9, 11
    )


def test_engines_of_one_server_are_added_up() -> None:
    config = b'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="100"} 1.0\n'
    page = (
        labelled("num_requests_running", 3) + labelled("num_requests_running", 4, 1) + config % 0 + config % 1
    )

    assert read_signals(page) == EndpointSignals(running=7, kv_tokens=3_200, block_tokens=16)


@table(
    ("labels", "kv_tokens"),
    [
        (b'kv_cache_size_tokens="500",block_size="16",num_gpu_blocks="100"', 500),
        (b'block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="100"', 1_600),
        (b'effective_attention_block_size="8",num_gpu_blocks="100"', None),
        (b'block_size="16",num_gpu_blocks="None"', None),
    ],
)
def test_the_size_of_a_cache_is_told_in_two_ways(labels: bytes, kv_tokens: int | None) -> None:
    assert read_signals(LEAST + b"vllm:cache_config_info{%b} 1.0" % labels).kv_tokens == kv_tokens


@table(
    "page",
    [
        b"",
        b"<html>",
        labelled("num_requests_waiting", 1),
        *(labelled("num_requests_running", v) for v in ("NaN", "x", "", -1, "inf")),
    ],
)
def test_a_page_that_is_not_vllms_is_refused(page: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_signals(page)


@given(st.binary(max_size=300), st.integers(0, len(PAGE)))
def test_any_bytes_are_read_or_refused(data: bytes, at: int) -> None:
    for page in (data, PAGE[:at] + data, LEAST + data, b"vllm:num_requests_running{" + data):
        try:
            signals = read_signals(page)
        except ProtocolError:
            continue

        assert signals.running >= 0
