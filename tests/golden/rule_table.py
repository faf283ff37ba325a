"""The golden table: what the default rule takes in each edge cell, to the digit. `make golden` writes it.

A simulated run is exact: the same arrivals and the same draws give the same figures. So this table
is no limit that a change must stay below. It shows every change of the rule, also one that nobody
meant, as a diff. A single draw among equal endpoints may decide much: in `agents` a sixth of the
mean and three quarters of the 99th percentile. So each cell runs with several, and `agents` with
most.

The cells are small, so that all of them take ten seconds of CPU. For what a rule is worth, see
docs/why: there runs are ten times as long. Each term of the rule decides some cell:
tests/slow/golden shows it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from extproc.simulator.fleet.cell import MatrixCell

FILE: Final = Path(__file__).with_name("rule.txt")

_RULE: Final = "prefix_cache"
_HEAD: Final = f"{'cell':<10}{'ties':>5}{'TTFT mean ms':>15}{'TTFT p99 ms':>14}{'hit rate':>11}"


def _cell(workload: str, **axes: object) -> MatrixCell:
    return MatrixCell(arm=_RULE, **{"workload": workload, "endpoints": 4, "seed": 1, **axes})  # type: ignore[arg-type]  # by name


CELLS: Final[Mapping[str, MatrixCell]] = {
    # Coding agents on fast engines, at the edge of what their caches hold.
    "swe": _cell("swe", load=1.0, endpoints=3, warmup_s=150, measured_s=150),
    # 1,000 tenants of very unequal demand, more than the fleet sustains.
    "zipf": _cell("zipf", load=1.1, seed=12, warmup_s=100, measured_s=120),
    # 16 requests at once behind a new prefix, more than the fleet sustains.
    "tot": _cell("tot", load=1.2, seed=13, warmup_s=100, measured_s=100),
    # Contexts that outgrow the caches, so that hits depend on which conversation stays where.
    "agents": _cell("agents", load=0.75, warmup_s=300, measured_s=450),
    "tenants": _cell("tenants", load=0.75, warmup_s=80, measured_s=100),
    # Caches of 26,000 tokens: nothing stays for long.
    "small": _cell("small", load=0.8, warmup_s=30, measured_s=35),
    # Jobs of hundreds of requests that begin at once behind a prefix nobody has.
    "fewshot": _cell("fewshot", load=0.8, warmup_s=40, measured_s=60),
    # Answers of 3,000 tokens fill the caches while they are made.
    "longout": _cell("longout", load=0.85, endpoints=3, warmup_s=300, measured_s=500),
    # Two gateways that share nothing: a conversation's home.
    "unshared": _cell("sessions", load=0.75, gateways=2, warmup_s=30, measured_s=40),
    # Pictures of 1,200 tokens fill the caches, beyond what the fleet sustains.
    "image": _cell("image", load=1.2, seed=3, warmup_s=200, measured_s=100),
    # Prompts of token ids, without a turn to be seen.
    "ids": _cell("ids", load=0.9, warmup_s=120, measured_s=60),
    # One engine of four is several times as fast, and nothing is set: metrics have to tell it.
    "unequal": _cell(
        "tenants",
        load=None,
        rate=7.0,
        profiles=("h100-llama8b-bf16", *["l4-llama8b-fp8"] * 3),
        warmup_s=60,
        measured_s=60,
    ),
    # The two k6 cases of KubeAI's documents: closed loops on 8 x H100 and on 2 x L4.
    "seed-002": _cell(
        "k6-chat", users=320, endpoints=8, requests=2400, profiles=("h100-llama70b-fp8",)
    ),
    "seed-004": _cell(
        "k6-chat", users=80, endpoints=2, requests=1200, profiles=("l4-llama8b-fp8-22k",)
    ),
}


def ties(name: str) -> range:
    """The draws that a cell runs with."""
    return range(4 if name == "agents" else 2)


def render_row(name: str, draw: int, rule: str = _RULE) -> str:
    """Runs a cell with one draw of its ties, by the `rule` or another arm, and lays its figures out."""
    run = replace(CELLS[name], arm=rule, ties=draw).run()
    mean, p99 = (_four_digits(each) for each in (run.ttft.mean_ms, run.ttft.p99_ms))
    return f"{name:<10}{draw:>5}{mean:>15}{p99:>14}{run.hit_rate:>11.4f}"


def read_rows(name: str) -> list[str]:
    """The written rows of a cell."""
    return [line for line in FILE.read_text().splitlines() if line.split()[0] == name]


def _four_digits(value: float) -> str:
    digits = max(0, 3 - len(f"{int(value)}") + 1)
    return f"{value:.{digits}f}"


def main() -> None:
    rows = [_HEAD]
    for name in CELLS:
        for draw in ties(name):
            rows.append(render_row(name, draw))
            print(rows[-1], flush=True)
    FILE.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
