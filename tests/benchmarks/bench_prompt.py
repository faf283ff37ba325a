"""What reading a request costs: body to routing key, beside `orjson.loads` of the same body.

Prints a table of microseconds, and writes it as JSON where `--json` says.
"""

import argparse
import json
import random
import statistics
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson

from extproc.routing.prefix import Key, parse_key, prefix_of, routing_key
from extproc.routing.prompt import parse

PATH = "/v1/chat/completions"
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog,", "far", "away")


def prose(rng: random.Random, characters: int) -> str:
    words: list[str] = []
    while characters > 0:
        words.append(rng.choice(WORDS))
        characters -= len(words[-1]) + 1
    return " ".join(words)


def chat(turns: int, characters: int) -> bytes:
    rng = random.Random(turns)
    messages = [
        {"role": "user" if index % 2 else "assistant", "content": prose(rng, characters)}
        for index in range(1, turns + 1)
    ]
    system = {"role": "system", "content": prose(rng, 200)}
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


def measure(run: Callable[[], object], seconds: float) -> dict[str, float]:
    """Minimum, median and maximum of microseconds per call, over runs of at least a millisecond."""
    once = timeit.timeit(run, number=1)
    number = max(1, int(0.001 / once))
    rounds = max(5, int(seconds / (number * once)))
    spent = [total / number * 1e6 for total in timeit.repeat(run, number=number, repeat=rounds)]
    return {"min": min(spent), "median": statistics.median(spent), "max": max(spent)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--seconds", type=float, default=0.5, help="per row")
    options = parser.parse_args()
    rows = []
    print(f"{'body':30}{'key':20}{'min us':>10}{'median us':>11}{'max us':>11}{'to orjson':>11}")
    for name, (path, body) in bodies().items():
        reference = measure(partial(orjson.loads, body), options.seconds)
        for key in ("reference: orjson.loads", "first_user_message", "conversation", "prompt_head"):
            spent = reference if key.startswith("reference") else None
            spent = spent or measure(partial(route, path, body, parse_key(key)), options.seconds)
            ratio = spent["median"] / reference["median"]
            rows.append({"body": name, "bytes": len(body), "key": key, "us": spent, "ratio": ratio})
            print(
                f"{name:30}{key.removeprefix('reference: '):20}{spent['min']:>10.1f}"
                f"{spent['median']:>11.1f}{spent['max']:>11.1f}{ratio:>11.2f}"
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
