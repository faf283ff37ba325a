"""Explains a decision without taking it: the same picker, and what the strategy has to say."""

from extproc.router.routing.picker import Ask, Found, Picker


def explain(picker: Picker, ask: Ask, found: Found | None = None) -> dict[str, object]:
    """Says which endpoint `ask` would get now, and why; JSON-ready. Counts nothing.

    `found` is what `picker` found in it, if that was done ahead. Raises `RequestError` as the decision
    itself would.
    """
    decision = picker.decide(ask, found or picker.find(ask))
    pick, key = decision.pick, decision.key
    told: dict[str, object] = {
        "pool": pick.pool.name,
        "strategy": pick.strategy,
        "reason": str(pick.reason),
        "endpoint": pick.endpoint.name,
        "address": pick.endpoint.address,
        "fallbacks": [endpoint.address for endpoint in pick.fallbacks],
        "left_out": dict(pick.pool.left_out()),
        "prefix": None if key is None else f"{key:016x}",
        "body_fault": None if decision.fault is None else decision.fault.message,
    }
    return told | pick.reading.explain(pick.pool.candidates(decision.adapter, ask.subset))
