"""What the dashboards show, and why: rows of panels, each a question with its queries.

`$namespace`, `$pool` and `$__rate_interval` are filled in by Grafana, and by the tests, which ask
every query of a real Prometheus. One that shows a fault, or what not everybody has, may find
nothing (`may_be_empty`).
"""

from typing import Final

from monitoring.dashboards.benchmark import BENCHMARK
from monitoring.dashboards.board import Board, Panel, Query, Row, Variable
from monitoring.dashboards.envoy import ENVOY
from monitoring.dashboards.pool import ONE_POOL
from monitoring.dashboards.router import ROUTER

__all__ = ["BOARDS", "Board", "Panel", "Query", "Row", "Variable"]

BOARDS: Final = (ROUTER, ONE_POOL, ENVOY, BENCHMARK)
