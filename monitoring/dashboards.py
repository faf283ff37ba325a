"""What the dashboards show, and why: rows of panels, each a question with its queries.

`$namespace`, `$pool` and `$__rate_interval` are filled in by Grafana, and by the tests, which ask every query
of a real Prometheus. One that shows a fault, or what not everybody has, may find nothing (`may_be_empty`).
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["lines", "stack", "figure", "heat", "table"]

# Where there is no namespace, the variable is `.*`, and that matches.
_IN: Final = 'namespace=~"$namespace"'
_POOLS: Final = f'{_IN},pool=~"$pool"'
# A refusal is quick, and would make the others look so.
_GOOD: Final = f'{_IN},class="2xx"'
_CLIENTS: Final = f'{_IN},envoy_http_conn_manager_prefix="clients"'
_EXT_PROC: Final = "envoy_http_ext_proc_extproc"


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the name of its lines; a legend names labels as `{{pool}}`."""

    expr: str
    legend: str = ""
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One question. `unit` is one of Grafana's names, `width` in 24ths of the page."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the head of the page: the values of `label` in a metric."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def rate(metric: str, labels: str = _IN, by: str = "") -> str:
    """The sum of a counter's rates, by some labels."""
    head = f"sum by ({by}) " if by else "sum"
    return f"{head}(rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, labels: str = _IN, by: str = "le") -> str:
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', labels, by)})"


def quantiles(histogram: str, labels: str = _IN, by: str = "", legend: str = "") -> tuple[Query, ...]:
    """The median and the 95th percentile, by some labels."""
    labelled = f"{by}, le" if by else "le"
    return tuple(
        Query(quantile(share, histogram, labels, labelled), f"{legend} {name}".strip())
        for share, name in ((0.5, "p50"), (0.95, "p95"))
    )


NAMESPACE: Final = Variable("namespace", "extproc_info", "namespace")
POOL: Final = Variable("pool", "extproc_pool_endpoints", "pool")

_NOW: Final = Row(
    "Now",
    (
        Panel(
            "Alerts",
            "What fires or is about to. docs/runbook.md says what to do.",
            (Query(f'ALERTS{{alertname=~"Extproc.*",{_IN}}}', may_be_empty=True),),
            kind="table",
            width=8,
        ),
        Panel(
            "Requests",
            "A second, whatever became of them.",
            (Query(rate("extproc_requests_total")),),
            "reqps",
            "figure",
            4,
        ),
        Panel(
            "Found in caches",
            "Share of the prompts' tokens, as vLLM counts them. Needs `signals`.",
            (Query(f"pool:extproc_measured_tokens_cached:ratio_rate10m{{{_IN}}}", "{{pool}}"),),
            "percentunit",
            "figure",
            4,
        ),
        Panel(
            "Shed",
            "Share of a pool's requests that were refused with 429.",
            (Query(f"pool:extproc_requests_shed:ratio_rate5m{{{_IN}}}", "{{pool}}"),),
            "percentunit",
            "figure",
            4,
        ),
        Panel(
            "Passed by",
            "Share of the requests that Envoy sent on without an answer of the service.",
            (Query(f"namespace:envoy_requests_passed_by:ratio_rate5m{{{_IN}}}"),),
            "percentunit",
            "figure",
            4,
        ),
    ),
)

_WHERE: Final = Row(
    "Where requests go, and why",
    (
        Panel(
            "Picks by reason",
            "`session`, `prefix` and `home` are affinity; `spill` left it for load; `cold` had none.",
            (Query(rate("extproc_picks_total", by="reason") + " > 0", "{{reason}}"),),
            "reqps",
            "stack",
        ),
        Panel(
            "Requests by outcome",
            "`routed` is all others' sum where all is well.",
            (Query(rate("extproc_requests_total", by="outcome") + " > 0", "{{outcome}}"),),
            "reqps",
            "stack",
        ),
        Panel(
            "Requests by pool",
            "Those that found one.",
            (Query(rate("extproc_requests_total", f'{_IN},pool!=""', "pool"), "{{pool}}"),),
            "reqps",
            "stack",
        ),
    ),
)

_PAYS: Final = Row(
    "Whether it pays",
    (
        Panel(
            "Foreseen and found",
            "Share of the prompts' tokens that was believed to be in a cache, and that vLLM found there. "
            "The two should be close.",
            (
                Query(f"pool:extproc_foreseen_tokens_cached:ratio_rate10m{{{_IN}}}", "{{pool}} foreseen"),
                Query(f"pool:extproc_measured_tokens_cached:ratio_rate10m{{{_IN}}}", "{{pool}} found"),
            ),
            "percentunit",
        ),
        Panel(
            "Prefill saved",
            "Engine seconds a second that tokens believed to be cached would have taken to compute: "
            "so many engines would be busy with nothing else.",
            (Query(rate("extproc_saved_prefill_seconds_total", by="pool"), "{{pool}}"),),
        ),
        Panel(
            "Balance",
            "Requests in flight on the busiest endpoint, over the mean. 1 is even. "
            "Of a few requests it says nothing.",
            (Query(f"pool:extproc_in_flight:max_to_mean{{{_IN}}}", "{{pool}}"),),
        ),
        Panel(
            "Time to the first byte",
            "From a request's first byte at the proxy to its answer's; of good answers.",
            quantiles("extproc_first_byte_seconds", _GOOD, by="pool", legend="{{pool}}"),
            "s",
            width=12,
        ),
        Panel(
            "Time to the first byte by zone",
            "Of good answers, p95, by the endpoint's zone; empty where no source tells zones.",
            (
                Query(
                    quantile(0.95, "extproc_first_byte_seconds", f'{_GOOD},zone!=""', "pool, zone, le"),
                    "{{pool}} {{zone}}",
                    may_be_empty=True,
                ),
            ),
            "s",
            width=12,
        ),
    ),
)

_KNOWN: Final = Row(
    "What is known",
    (
        Panel(
            "Endpoints by state",
            "`ready` for picks; left out (`cooling`, `busy`, `unhealthy`); `draining`. The replicas' mean.",
            (
                Query(
                    f"avg by (pool, state) (extproc_pool_endpoints{{{_IN}}})",
                    "{{pool}} {{state}}",
                ),
            ),
        ),
        Panel(
            "Age of the lists",
            "Since a source last confirmed the endpoints, or the objectives where they are followed.",
            (
                Query(f"max by (pool) (extproc_pool_age_seconds{{{_IN}}})", "{{pool}}"),
                Query(
                    f"max by (pool) (extproc_objectives_age_seconds{{{_IN}}})",
                    "{{pool}} objectives",
                    may_be_empty=True,
                ),
            ),
            "s",
        ),
        Panel(
            "Sources that fail",
            "1 while a source has no good list to tell.",
            (
                Query(
                    f"max by (pool, why) (extproc_pool_fault{{{_IN}}})", "{{pool}} {{why}}", may_be_empty=True
                ),
            ),
        ),
    ),
)

_COSTS: Final = Row(
    "What it costs",
    (
        Panel(
            "Time of a pick",
            "From a request's last message read to its answer ready.",
            quantiles("extproc_pick_duration_seconds"),
            "s",
        ),
        Panel(
            "CPU",
            "Cores, by replica.",
            (
                Query(
                    f"rate(process_cpu_seconds_total{{{_IN}}}[$__rate_interval])"
                    " and on (namespace, job, instance) extproc_info",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Memory",
            "Resident, by replica. The manifests' limit is 512 MiB.",
            (
                Query(
                    f"process_resident_memory_bytes{{{_IN}}} and on (namespace, job, instance) extproc_info",
                    "{{instance}}",
                ),
            ),
            "bytes",
        ),
        Panel(
            "Streams open",
            "Requests in flight, by replica.",
            (Query(f"extproc_streams_open{{{_IN}}}", "{{instance}}"),),
        ),
        Panel(
            "Bodies that were no help",
            "Requests routed without their body, by why.",
            (Query(rate("extproc_prompt_errors_total", by="why"), "{{why}}"),),
            "reqps",
        ),
        Panel(
            "Faults",
            "Streams, access logs, watches, configurations that went wrong, a second.",
            (
                Query(rate("extproc_stream_errors_total", by="why"), "stream {{why}}"),
                Query(rate("extproc_access_log_faults_total", by="why"), "access log {{why}}"),
                Query(rate("extproc_watch_restarts_total", by="why"), "watch {{why}}"),
                Query(
                    rate("extproc_objectives_watch_restarts_total", by="why"),
                    "objectives' watch {{why}}",
                    may_be_empty=True,
                ),
                Query(rate("extproc_xds_nacks_total", by="type"), "Envoy refuses {{type}}"),
                Query(rate("extproc_config_reloads_total", by="result"), "configuration {{result}}"),
                Query(f"max(extproc_config_refused{{{_IN}}})", "file is not in force"),
            ),
        ),
        Panel(
            "Spans",
            "A second: `sent`; `refused` by their receiver, or not taken in time; `dropped` since too many "
            "waited. 0 where no traces are made.",
            (Query(rate("extproc_spans_total", by="result"), "{{result}}"),),
        ),
    ),
)

ROUTER: Final = Board(
    "extproc-router",
    "extproc: router",
    "Where requests go, why, and whether it pays.",
    (_NOW, _WHERE, _PAYS, _KNOWN, _COSTS),
    (NAMESPACE,),
)

ONE_POOL: Final = Board(
    "extproc-pool",
    "extproc: one pool",
    "A pool's endpoints beside one another.",
    (
        Row(
            "Load",
            (
                Panel(
                    "In flight",
                    "Requests on each endpoint, of all replicas.",
                    (Query(f"pool_endpoint:extproc_in_flight:sum{{{_POOLS}}}", "{{endpoint}}"),),
                ),
                Panel(
                    "Answers",
                    "A second, by endpoint: each one's share.",
                    (Query(rate("extproc_answers_total", _POOLS, "endpoint"), "{{endpoint}}"),),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Balance",
                    "Requests in flight on the busiest endpoint, over the mean. 1 is even.",
                    (Query(f"pool:extproc_in_flight:max_to_mean{{{_POOLS}}}", "{{pool}}"),),
                ),
            ),
        ),
        Row(
            "Affinity",
            (
                Panel(
                    "Picks by reason",
                    "`session`, `prefix` and `home` are affinity; `spill` left it for load; `cold` had none.",
                    (Query(rate("extproc_picks_total", _POOLS, "reason") + " > 0", "{{reason}}"),),
                    "reqps",
                    "stack",
                    6,
                ),
                Panel(
                    "Tokens foreseen, by reason",
                    "Prompts' tokens a second that were believed to be in the picked endpoint's cache.",
                    (
                        Query(
                            rate("extproc_foreseen_tokens_total", f'{_POOLS},cached="yes"', "reason"),
                            "{{reason}}",
                        ),
                    ),
                    kind="stack",
                    width=6,
                ),
                Panel(
                    "Prefill saved, by reason",
                    "Engine seconds a second that those tokens would have taken to compute.",
                    (Query(rate("extproc_saved_prefill_seconds_total", _POOLS, "reason"), "{{reason}}"),),
                    kind="stack",
                    width=6,
                ),
                Panel(
                    "Found, by endpoint",
                    "Share of the tokens that came to it which its cache had. Needs `signals`.",
                    (
                        Query(
                            rate("extproc_measured_tokens_total", f'{_POOLS},cached="yes"', "endpoint")
                            + " / "
                            + rate("extproc_measured_tokens_total", _POOLS, "endpoint"),
                            "{{endpoint}}",
                        ),
                    ),
                    "percentunit",
                    width=6,
                ),
            ),
        ),
        Row(
            "Time",
            (
                Panel(
                    "Time to the first byte",
                    "From a request's first byte at the proxy to its answer's; of good answers.",
                    quantiles("extproc_first_byte_seconds", f'{_POOLS},class="2xx"'),
                    "s",
                    width=6,
                ),
                Panel(
                    "By class",
                    "The same by the answer's class, p95: refusals that are quick, failures that are slow.",
                    (Query(quantile(0.95, "extproc_first_byte_seconds", _POOLS, "class, le"), "{{class}}"),),
                    "s",
                    width=6,
                ),
                Panel(
                    "How it is spread",
                    "Requests by their time to the first byte.",
                    (Query(rate("extproc_first_byte_seconds_bucket", _POOLS, "le"), "{{le}}"),),
                    "s",
                    "heat",
                    12,
                ),
            ),
        ),
        Row(
            "Failures",
            (
                Panel(
                    "Answers that failed",
                    "Share of each endpoint's: 5xx, no connection, broken off.",
                    (
                        Query(
                            f"pool_endpoint:extproc_answers_failed:ratio_rate5m{{{_POOLS}}}", "{{endpoint}}"
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Answers by class",
                    "`none`: no connection, or lost before the first byte; `unknown`: the client left first.",
                    (Query(rate("extproc_answers_total", _POOLS, "class"), "{{class}}"),),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Cooled down",
                    "Times in the last five minutes.",
                    (
                        Query(
                            f"sum by (endpoint) (increase(extproc_endpoint_coolings_total{{{_POOLS}}}[5m]))",
                            "{{endpoint}}",
                        ),
                    ),
                ),
                Panel(
                    "Endpoints by state",
                    "The replicas' mean.",
                    (
                        Query(
                            f"avg by (state) (extproc_pool_endpoints{{{_POOLS}}})",
                            "{{state}}",
                        ),
                    ),
                    kind="stack",
                ),
                Panel(
                    "Refused",
                    "Requests a second that the pool had no room or no endpoint for.",
                    (
                        Query(
                            rate("extproc_requests_total", f'{_POOLS},outcome!="routed"', "outcome"),
                            "{{outcome}}",
                        ),
                    ),
                    "reqps",
                    "stack",
                ),
                Panel(
                    "Served elsewhere",
                    "Picks a second that another endpoint answered, as a gateway told.",
                    (Query(rate("extproc_picks_served_elsewhere_total", _POOLS, "pool"), "{{pool}}"),),
                    "reqps",
                ),
            ),
        ),
    ),
    (NAMESPACE, POOL),
)

ENVOY: Final = Board(
    "extproc-envoy",
    "extproc: Envoy side by side",
    "The same requests as each Envoy and the service see them.",
    (
        Row(
            "Requests",
            (
                Panel(
                    "At Envoy",
                    "Clients' requests a second, by Envoy.",
                    (Query(rate("envoy_http_downstream_rq_total", _CLIENTS, "instance"), "{{instance}}"),),
                    "reqps",
                    width=12,
                ),
                Panel(
                    "At the service",
                    "Picks a second, by replica.",
                    (Query(rate("extproc_picks_total", by="instance"), "{{instance}}"),),
                    "reqps",
                    width=12,
                ),
                Panel(
                    "Answers at Envoy",
                    "By class of their status, Envoy's own and the service's included.",
                    (
                        Query(
                            rate("envoy_http_downstream_rq_xx", _CLIENTS, "envoy_response_code_class"),
                            "{{envoy_response_code_class}}xx",
                        ),
                    ),
                    "reqps",
                    "stack",
                    12,
                ),
                Panel(
                    "Answers, as the service heard",
                    "By class, from the access log; the endpoints' alone.",
                    (Query(rate("extproc_answers_total", by="class"), "{{class}}"),),
                    "reqps",
                    "stack",
                    12,
                ),
            ),
        ),
        Row(
            "Between the two",
            (
                Panel(
                    "Passed by",
                    "Requests a second that Envoy sent on without the service's answer; and timeouts.",
                    (
                        Query(
                            rate(f"{_EXT_PROC}_failure_mode_allowed", _CLIENTS, "instance"), "{{instance}}"
                        ),
                        Query(
                            rate(f"{_EXT_PROC}_message_timeouts", _CLIENTS, "instance"),
                            "{{instance}} timeouts",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Healthy replicas of the service",
                    "As each Envoy sees them. 0: it is passed by.",
                    (
                        Query(
                            f'envoy_cluster_membership_healthy{{{_IN},envoy_cluster_name="extproc"}}',
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Streams",
                    "Begun a second, and those that failed, by Envoy.",
                    (
                        Query(rate(f"{_EXT_PROC}_streams_started", _CLIENTS, "instance"), "{{instance}}"),
                        Query(
                            rate(f"{_EXT_PROC}_streams_failed", _CLIENTS, "instance"), "{{instance}} failed"
                        ),
                    ),
                    "reqps",
                ),
            ),
        ),
        Row(
            "Endpoints, as Envoy sees them",
            (
                Panel(
                    "Time of whole answers",
                    "Of an endpoint's answers to their end, by cluster; in Envoy's buckets.",
                    (
                        Query(
                            "histogram_quantile(0.5, sum by (envoy_cluster_name, le) (rate("
                            f'envoy_cluster_upstream_rq_time_bucket{{{_IN},envoy_cluster_name!="extproc"}}'
                            "[$__rate_interval])))",
                            "{{envoy_cluster_name}} p50",
                        ),
                        Query(
                            "histogram_quantile(0.95, sum by (envoy_cluster_name, le) (rate("
                            f'envoy_cluster_upstream_rq_time_bucket{{{_IN},envoy_cluster_name!="extproc"}}'
                            "[$__rate_interval])))",
                            "{{envoy_cluster_name}} p95",
                        ),
                    ),
                    "ms",
                ),
                Panel(
                    "Retries",
                    "A second, by cluster: the next of the named endpoints was asked.",
                    (
                        Query(
                            rate(
                                "envoy_cluster_upstream_rq_retry",
                                f'{_IN},envoy_cluster_name!="extproc"',
                                "envoy_cluster_name",
                            ),
                            "{{envoy_cluster_name}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Connections that failed",
                    "A second, by cluster.",
                    (
                        Query(
                            rate("envoy_cluster_upstream_cx_connect_fail", by="envoy_cluster_name"),
                            "{{envoy_cluster_name}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Envoy itself",
            (
                Panel(
                    "Heap",
                    "In use, in per cent of the bound of the overload manager, by Envoy.",
                    (
                        Query(
                            f"envoy_overload_envoy_resource_monitors_fixed_heap_pressure{{{_IN}}}",
                            "{{instance}}",
                        ),
                    ),
                    "percent",
                ),
                Panel(
                    "Refused for want of memory",
                    "Requests a second that were refused or cut.",
                    (
                        Query(
                            rate("envoy_http_downstream_rq_overload_close", _CLIENTS, "instance"),
                            "{{instance}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "No door",
                    "Requests a second for a path that is not served.",
                    (Query(rate("envoy_http_rbac_denied", _CLIENTS, "instance"), "{{instance}}"),),
                    "reqps",
                ),
            ),
        ),
    ),
    (NAMESPACE,),
)


def _so_far(metric: str) -> str:
    """The pace of a count that is a gauge, since it begins anew with each run."""
    return f"deriv({metric}[30s])"


BENCHMARK: Final = Board(
    "extproc-benchmark",
    "extproc: benchmark runs",
    "A run while it goes (`bench run --metrics-port`), and those that are over (`--pushgateway`).",
    (
        Row(
            "The run",
            (
                Panel(
                    "Requests",
                    "Sent and ended a second.",
                    (
                        Query(_so_far("extproc_bench_sent"), "sent"),
                        Query(_so_far("extproc_bench_finished"), "ended"),
                    ),
                    "reqps",
                ),
                Panel("In flight", "Sent and not ended.", (Query("extproc_bench_in_flight", "in flight"),)),
                Panel(
                    "Failures",
                    "So far, by kind.",
                    (Query("extproc_bench_failures", "{{kind}}", may_be_empty=True),),
                ),
                Panel(
                    "Time to the first token",
                    "From the intended start.",
                    quantiles("extproc_bench_ttft_seconds", labels=""),
                    "s",
                ),
                Panel(
                    "Time per output token",
                    "After the first; and the gaps between chunks.",
                    (
                        *quantiles("extproc_bench_tpot_seconds", labels="", legend="token"),
                        *quantiles("extproc_bench_itl_seconds", labels="", legend="gap"),
                    ),
                    "s",
                ),
                Panel(
                    "Whole time",
                    "To the last byte, from the intended start.",
                    quantiles("extproc_bench_e2e_seconds", labels=""),
                    "s",
                ),
                Panel(
                    "Tokens",
                    "Of completed requests, a second.",
                    (Query(_so_far("extproc_bench_tokens"), "{{kind}}"),),
                ),
                Panel(
                    "How late the client was",
                    "Beyond some milliseconds the run measures itself.",
                    quantiles("extproc_bench_lag_seconds", labels=""),
                    "s",
                ),
                Panel(
                    "The router meanwhile",
                    "Picks by reason.",
                    (Query(rate("extproc_picks_total", "", "reason") + " > 0", "{{reason}}"),),
                    "reqps",
                    "stack",
                ),
            ),
        ),
        Row(
            "Runs that are over",
            (
                Panel(
                    "Time to the first token, p95",
                    "Of the measured part.",
                    (Query('extproc_bench_ttft_seconds{quantile="0.95"}', "{{benchmark}}"),),
                    "s",
                ),
                Panel(
                    "Found in caches",
                    "Share of the prompts' tokens.",
                    (Query("extproc_bench_prefix_hit_ratio", "{{benchmark}}"),),
                    "percentunit",
                ),
                Panel(
                    "Tokens a second",
                    "Input and output.",
                    (Query("extproc_bench_tokens_per_second", "{{benchmark}}"),),
                ),
                Panel(
                    "Completed",
                    "Requests a second.",
                    (Query("extproc_bench_completed_requests_per_second", "{{benchmark}}"),),
                    "reqps",
                ),
                Panel(
                    "Failed",
                    "Share of all requests.",
                    (Query("extproc_bench_failed_ratio", "{{benchmark}}"),),
                    "percentunit",
                ),
                Panel(
                    "Valid",
                    "1: the result holds, and its thresholds are met.",
                    (
                        Query("extproc_bench_valid", "{{benchmark}} valid"),
                        Query("extproc_bench_thresholds_met", "{{benchmark}} thresholds"),
                    ),
                ),
            ),
        ),
    ),
)

BOARDS: Final = (ROUTER, ONE_POOL, ENVOY, BENCHMARK)
