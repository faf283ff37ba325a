"""`/metrics` beside that of vLLM 0.32.0 after two chat requests (data/metrics-0.32.0.txt)."""

from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.simulator.face import Face, serving

RECORDED = (Path(__file__).parent / "data" / "metrics-0.32.0.txt").read_text()
LABELS = '{engine="0",model_name="tiny"}'

Family = tuple[str, frozenset[tuple[str, ...]]]


def read_families(text: str) -> dict[str, Family]:
    """Returns type and label names of each family by name, without those of vLLM's web framework."""
    families = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("http_"):
            continue
        labels = frozenset(tuple(sorted(sample.labels)) for sample in family.samples)
        families[family.name] = (family.type, labels)
    return families


def read_buckets(text: str) -> dict[str, set[str]]:
    buckets = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" in sample.labels and not family.name.startswith("http_"):
                buckets[family.name].add(sample.labels["le"])
    return buckets


async def scrape(face: Face) -> str:
    async with face.client.get("/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return await answer.text()


async def test_names_types_labels_and_buckets_are_vllms() -> None:
    async with serving() as face:
        await face.chat("hello", max_tokens=2)
        await face.chat("hello", max_tokens=2)
        await face.client.get("/kv_event_sources")
        text = await scrape(face)

    assert read_families(RECORDED) == read_families(text)
    assert read_buckets(RECORDED) == read_buckets(text)


async def test_distributions_are_in_engine_seconds_whatever_the_speed() -> None:
    """51 steps of one millisecond; how late this machine saw the request come is in the whole time alone."""
    async with serving(speed=4) as face:
        await face.chat("hello", max_tokens=51)

        assert await face.metric(f"vllm:e2e_request_latency_seconds_sum{LABELS}") > 0.0505
        gaps_s = await face.metric(f"vllm:inter_token_latency_seconds_sum{LABELS}")
        assert gaps_s == pytest.approx(0.05, abs=0.0005)


async def test_counters_count_tokens_blocks_and_requests() -> None:
    async with serving() as face:
        first = await face.chat(
            "a prompt of some length, so that it fills a block or two", max_tokens=3
        )
        second = await face.chat(
            "a prompt of some length, so that it fills a block or two", max_tokens=3
        )
        prompt_tokens = first["usage"]["prompt_tokens"]
        cached_tokens = second["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached_tokens >= 16
        assert await face.metric(f"vllm:prefix_cache_queries_total{LABELS}") == 2 * prompt_tokens
        assert await face.metric(f"vllm:prefix_cache_hits_total{LABELS}") == cached_tokens
        assert await face.metric(f"vllm:prompt_tokens_total{LABELS}") == 2 * prompt_tokens
        assert await face.metric(f"vllm:prompt_tokens_cached_total{LABELS}") == cached_tokens
        assert await face.metric(f"vllm:generation_tokens_total{LABELS}") == 6
        assert await face.metric(f"vllm:e2e_request_latency_seconds_count{LABELS}") == 2
        assert await face.metric(f"vllm:inter_token_latency_seconds_count{LABELS}") == 4
        ended = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
        assert await face.metric(ended) == 2


async def test_adapters_in_use_are_named() -> None:
    async with serving(adapters=("sql",), max_loras=2) as face:
        async with face.client.post(
            "/v1/completions",
            json={"model": "sql", "prompt": "x", "max_tokens": 500, "stream": True},
        ) as answer:
            await answer.content.readline()
            text = await scrape(face)
        assert 'max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""' in text
