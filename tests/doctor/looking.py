"""The doctor as the command runs it, in this process."""

import asyncio
from typing import Any

import yaml

from extproc.doctor.collect import look_around
from extproc.doctor.evidence import Evidence
from extproc.doctor.report import judge_evidence
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings


def settings(*pools: Any, **sections: Any) -> Settings:
    server = {"listen": "127.0.0.1:9002"} | sections.pop("server", {})
    return parse_settings(yaml.safe_dump({"server": server, "pools": list(pools), **sections}), {})


def pool(*addresses: str, strategy: Any = None, **fields: Any) -> Any:
    strategy = strategy or {"name": "prefix_cache"}
    return {"name": "tiny", "endpoints": {"static": [*addresses]}, "strategy": strategy, **fields}


def look(
    given: Settings | None = None,
    url: str = "http://127.0.0.1:1",
    envoy: str | None = None,
    window_s: float = 0.0,
) -> Evidence:
    return asyncio.run(look_around(url, envoy, None, given, window_s))


def rules(evidence: Evidence) -> dict[str, str]:
    """What was found: what was seen of it, by its rule."""
    return {each["rule"]: each["seen"] for each in judge_evidence(evidence)}
