"""What Envoy pays for long answers when it asks the service: its CPU for a request, beside Envoy alone.

64 clients get answers of 76 chunks, 10 ms apart, of which the service sees none. The aim: 1.25 at
most.
"""

import asyncio
from functools import partial
from operator import add, truediv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.bench_cost import ANSWER, HEAD, Endpoint, serve_answers
from tests.benchmarks.bench_gateway import ALONE, DEFAULT, measure_all, run_arms
from tests.benchmarks.report import Row, report

CHUNKS: Final = 76
CHUNK: Final = b'data: {"choices":[{"delta":{"content":"lorem"}}]}\n\n'


class Speaker(Endpoint):
    """Answers prompts chunk by chunk."""

    def write(self, answer: bytes) -> None:
        is_prompts = answer.endswith(ANSWER)
        super().write(HEAD % (CHUNKS * len(CHUNK)) if is_prompts else answer)
        for number in range(CHUNKS * is_prompts):
            asyncio.get_running_loop().call_later(0.01 * (1 + number), super().write, CHUNK)


def main() -> None:
    with (
        TemporaryDirectory() as name,
        run_arms(Path(name), [DEFAULT], partial(serve_answers, endpoint=Speaker)) as arms,
    ):
        rounds = measure_all(arms, 7, 512, 64)
    alone, ours = ([one for one in rounds if one.arm == arm] for arm in (ALONE, DEFAULT))
    base, envoy = ([one.envoy_us for one in each] for each in (alone, ours))
    cpu = {"Envoy, asking": envoy, "both": [*map(add, envoy, (one.server_us for one in ours))]}
    rows = [Row(what, each, "µs CPU") for what, each in {ALONE: base, **cpu}.items()]
    rows += [
        Row(f"{what}, to {ALONE}", [*map(truediv, each, base)], "times")
        for what, each in cpu.items()
    ]
    report(f"a request with an answer of {CHUNKS} chunks", rows, reference=ALONE)


if __name__ == "__main__":
    main()
