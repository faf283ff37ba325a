"""The doctor as the command runs it, in this process; and what it might have seen."""

import asyncio
from typing import Any

import yaml

from extproc.doctor.collect import look_around
from extproc.doctor.evidence import Evidence, MetricsPage
from extproc.doctor.report import judge_evidence
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings


def settings(*addresses: str, listen: str = "127.0.0.1:9002", tls: Any = None, **fields: Any) -> Settings:
    """Those of a service with one pool, `tiny`; `share` is the whole service's."""
    server = {"listen": listen, **({"tls": tls} if tls else {})}
    share = {"share": fields.pop("share")} if "share" in fields else {}
    return parse_settings(
        yaml.safe_dump({"server": server, "pools": [pool(*addresses, **fields)], **share}), {}
    )


def pool(*addresses: str, **fields: Any) -> Any:
    return {"name": "tiny", "endpoints": {"static": [*addresses]}, **fields}


def page(text: str) -> MetricsPage:
    """Reads `picks_total{reason="session"} 5` as of the pool, `vllm:…` as of an engine; `;` parts them."""
    lines = [line if line.startswith("vllm:") else f"extproc_{line}" for line in text.split("; ")]
    return MetricsPage.parse("\n".join(lines).replace("{reason", '{pool="tiny",reason') + "\n")


def look(given: Settings | None = None, url: str = "http://127.0.0.1:1", **options: Any) -> Evidence:
    options = {"envoy": None, "namespace": None, "window_s": 0.0} | options
    return asyncio.run(look_around(url, given=given, **options))


def rules(evidence: Evidence) -> dict[str, str]:
    """What was seen of each fault, by the fault's rule; the worst first."""
    return {each["rule"]: each["seen"] for each in judge_evidence(evidence)}
