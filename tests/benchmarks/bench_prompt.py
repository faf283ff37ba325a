"""What reading a request costs: from its body to its routing key, by body and key.

Reference in the same run: `orjson.loads` of the same bodies. `python -m tests.benchmarks.bench_prompt`.
"""

import json
import random
from functools import partial

import orjson

from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.prompt.prefix import Key, parse_key, prefix_of, routing_key
from tests.benchmarks.report import Row, report, time_us

KEYS = ("first_user_message", "conversation", "prompt_head")
PATH = "/v1/chat/completions"


def chat(turns: int, characters: int) -> bytes:
    text = "the quick brown fox jumps over lazy dogs " * (characters // 41 + 1)
    messages = [
        {"role": "user" if index % 2 else "assistant", "content": text[:characters]}
        for index in range(1, turns + 1)
    ]
    system = {"role": "system", "content": text[:200]}
    return orjson.dumps({"model": "llama-3.1-8b-instruct", "messages": [system, *messages], "stream": True})


def image(megabytes: int) -> bytes:
    url = "data:image/png;base64," + "iVBORw0K" * (megabytes * 131_072)
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})


def chinese(megabytes: int, *, is_escaped: bool) -> bytes:
    text = "世界你好" * (megabytes * 1_048_576 // (24 if is_escaped else 12))
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return json.dumps(body).encode() if is_escaped else orjson.dumps(body)


def token_ids(count: int) -> bytes:
    rng = random.Random(count)
    return orjson.dumps({"model": "m", "prompt": [rng.randrange(128_000) for _ in range(count)]})


def bodies() -> dict[str, tuple[str, bytes]]:
    return {
        "chat, 2 KB": (PATH, chat(7, 250)),
        "chat, 64 KB": (PATH, chat(63, 1_000)),
        "chat, 2 MB": (PATH, chat(2_000, 1_000)),
        "image, 2 MB": (PATH, image(2)),
        "Chinese, 2 MB": (PATH, chinese(2, is_escaped=False)),
        "Chinese as \\u escapes, 2 MB": (PATH, chinese(2, is_escaped=True)),
        "token ids, 2 MB": ("/v1/completions", token_ids(320_000)),
    }


def route(path: str, body: bytes, key: Key) -> int:
    prompt = parse(path, "application/json", body)
    prefix = prefix_of(prompt, (key,), 100, {})
    return routing_key(prefix or "", model=prompt.model or "", cache_salt=prompt.cache_salt)


def main() -> None:
    rows = []
    for name, (path, body) in bodies().items():
        calls = max(3, 1_000_000 // len(body))
        rows.append(Row(f"{name}: orjson.loads", time_us(partial(orjson.loads, body), calls), "µs"))
        for key in KEYS:
            once = partial(route, path, body, parse_key(key))
            rows.append(Row(f"{name}: {key}", time_us(once, calls), "µs"))
    report("prompt: from body to routing key", rows, reference="chat, 2 MB: orjson.loads")


if __name__ == "__main__":
    main()
