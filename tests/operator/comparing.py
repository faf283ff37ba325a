"""Comparisons of a router's strategies as Benchmarks."""

from typing import Any

from tests.operator.operating import build_operator_spec

Object = dict[str, Any]


PREFIX_HASH: Object = {"name": "prefix_hash", "load_factor": 1.5}


def write_settings(port: int) -> str:
    return f"""\
# What the operators wrote.
pools:
- name: llama
  endpoints: {{static: ["127.0.0.1:{port}"]}}
  strategy: {{name: random}}
"""


def comparison_spec(port: int, admin: str, duration: float = 2.0, **more: Any) -> Object:
    ab = {
        "arms": ["least_load", PREFIX_HASH],
        "admin": admin,
        "repeats": 1,
        "tolerance": 1,
        "flush": [],
    }
    spec = {
        "mode": "ab",
        "router": {"config-map": "extproc"},
        "ab": {**ab, "switch-timeout": "120s"},
    }
    return build_operator_spec(port, duration, **{**spec, **more})
