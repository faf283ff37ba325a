"""Made-up traces in Mooncake's format: conversations that grow, behind system prompts that they share."""

import json
from pathlib import Path
from random import Random

BLOCK = 512


def write_trace(path: Path, conversations: int = 40, seed: int = 0, systems: int = 4) -> Path:
    """Writes as many conversations of one to six turns, their requests mixed, in order of time."""
    rng = Random(seed)
    names = iter(range(1, 1_000_000))
    shared = [[next(names) for _ in range(3)] for _ in range(systems)]
    requests = []
    for _ in range(conversations):
        blocks, at_ms = [*rng.choice(shared)], rng.uniform(0, 60_000)
        for _ in range(rng.randint(1, 6)):
            blocks = [*blocks, *(next(names) for _ in range(rng.randint(1, 3)))]
            rest = rng.randint(1, BLOCK)
            # The rest has a name too, and another one when the next turn has filled it up.
            request = {
                "timestamp": int(at_ms),
                "input_length": BLOCK * len(blocks) + rest,
                "output_length": rng.randint(1, 200),
                "hash_ids": [*blocks, next(names)],
            }
            requests.append((at_ms, request))
            at_ms += rng.uniform(1_000, 20_000)
    requests.sort(key=lambda timed: timed[0])
    path.write_text("".join(f"{json.dumps(request)}\n" for _, request in requests))
    return path
