"""Explains a decision without taking it: the same picker, its steps told one by one."""

from itertools import islice
from typing import Final

from extproc.routing.picker import Ask, Picker
from extproc.routing.strategies.prefix_hash import PrefixHash

# A walk longer than this tells nobody anything.
_WALK_LENGTH: Final = 16


def explain(picker: Picker, ask: Ask) -> dict[str, object]:
    """Says which endpoint `ask` would get now, and why; JSON-ready. Counts nothing.

    Raises `RequestError` as the decision itself would.
    """
    decision = picker.pick(ask)
    decision.pick.release()
    pick, key = decision.pick, decision.key
    pool = pick.pool
    told: dict[str, object] = {
        "pool": pool.name,
        "strategy": pick.strategy,
        "reason": pick.reason.value,
        "endpoint": pick.endpoint.name,
        "address": pick.endpoint.address,
        "fallbacks": [endpoint.address for endpoint in pick.fallbacks],
        "prefix": None if key is None else f"{key:016x}",
        "body_fault": None if decision.fault is None else decision.fault.message,
    }
    if key is not None and isinstance(pool.strategy, PrefixHash):
        candidates = pool.candidates(decision.adapter, ask.subset)
        bound = pool.strategy.bound(candidates)
        told["bound"] = round(bound, 3)
        told["walk"] = [
            {
                "endpoint": name,
                "in_flight": candidates.in_flight(name),
                "is_within": candidates.in_flight(name) <= bound,
            }
            for name in islice(candidates.walk(key), _WALK_LENGTH)
        ]
    return told
