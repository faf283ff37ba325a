"""Oracles: how much of a run's prompts an ideal cache would have had, under the run's own timing."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from extproc.simulator.engine.runs import Path, RunCache
from extproc.simulator.fleet.flight import Flight


@dataclass(slots=True)
class _Held:
    path: Path
    shared: int = 0
    private: int = 0


def ideal_hit_rate(
    flights: Collection[Flight], block_size: int, blocks: int | None, since_s: float = 0.0
) -> float:
    """Returns the share of prompt tokens that one cache of the whole fleet would have had, 0..1.

    `flights` are answered ones. The cache takes and frees blocks when they were admitted and ended, so
    running requests pin theirs. `blocks` is its size, `None` for one that never evicts. A request that does
    not fit (the run had preempted another one for it) is computed and forgotten. Only what was due from
    `since_s` on is counted.
    """
    moves = sorted(_moves(flights), key=lambda move: move[:2])
    total = sum(-(-flight.tokens // block_size) for flight in flights)
    cache = RunCache(total if blocks is None else blocks)
    held: dict[int, _Held] = {}
    hits = asked = 0
    for _, is_admission, flight in moves:
        if is_admission:
            request = _Held(flight.session.path(flight.turn, block_size, flight.number))
            held[flight.number] = request
            found = _admit(cache, request, flight.asked.prompt_tokens, block_size)
            if flight.due_at >= since_s:
                hits += found
                asked += flight.asked.prompt_tokens
        else:
            _grow(cache, held[flight.number], flight.tokens - 1, block_size)
            request = held.pop(flight.number)
            cache.release(request.path, request.shared, request.private)
    return hits / asked if asked else 0.0


def _moves(flights: Collection[Flight]) -> Iterator[tuple[float, bool, Flight]]:
    """Admissions and ends; of one moment the ends come first."""
    for flight in flights:
        yield flight.admitted_at, True, flight
        yield flight.ended_at, False, flight


def _admit(cache: RunCache, request: _Held, tokens: int, block_size: int) -> int:
    """Returns how many tokens of the prompt were cached."""
    request.shared, _ = cache.match(request.path, (tokens - 1) // block_size)
    cache.share(request.path, request.shared)
    hits = request.shared * block_size
    _grow(cache, request, tokens, block_size)
    return hits


def _grow(cache: RunCache, request: _Held, tokens: int, block_size: int) -> None:
    missing = -(-tokens // block_size) - request.shared - request.private
    if missing > cache.free:
        return
    cache.take(missing)
    full = tokens // block_size
    cache.seal(request.path, request.shared, full)
    request.private += missing - (full - request.shared)
    request.shared = full
