"""The proxy before the service."""

from typing import Final

from monitoring.dashboards.board import (
    CLIENTS,
    EXT_PROC,
    IN,
    NAMESPACE,
    Board,
    Panel,
    Query,
    Row,
    rate,
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
                    "Requests at Envoy",
                    "Clients' requests a second, by Envoy.",
                    (
                        Query(
                            rate("envoy_http_downstream_rq_total", CLIENTS, "instance"),
                            "{{instance}}",
                        ),
                    ),
                    "reqps",
                    width=12,
                ),
                Panel(
                    "Picks at the router",
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
                            rate(
                                "envoy_http_downstream_rq_xx", CLIENTS, "envoy_response_code_class"
                            ),
                            "{{envoy_response_code_class}}xx",
                        ),
                    ),
                    "reqps",
                    "stack",
                    12,
                ),
                Panel(
                    "Answers, by the access log",
                    "By class, from the access log; the endpoints' alone.",
                    (Query(rate("extproc_answers_total", by="class"), "{{class}}"),),
                    "reqps",
                    "stack",
                    12,
                ),
            ),
        ),
        Row(
            "Between Envoy and the router",
            (
                Panel(
                    "Fail-open requests",
                    "Requests a second that Envoy sent on without the service's answer; and timeouts.",
                    (
                        Query(
                            rate(f"{EXT_PROC}_failure_mode_allowed", CLIENTS, "instance"),
                            "{{instance}}",
                        ),
                        Query(
                            rate(f"{EXT_PROC}_message_timeouts", CLIENTS, "instance"),
                            "{{instance}} timeouts",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Healthy replicas of the router",
                    "As each Envoy sees them. 0: requests pass unrouted (fail-open).",
                    (
                        Query(
                            f'envoy_cluster_membership_healthy{{{IN},envoy_cluster_name="extproc"}}',
                            "{{instance}}",
                        ),
                    ),
                    "suffix: replicas",
                    least=1,
                ),
                Panel(
                    "ext_proc streams",
                    "Begun a second, and those that failed, by Envoy.",
                    (
                        Query(
                            rate(f"{EXT_PROC}_streams_started", CLIENTS, "instance"), "{{instance}}"
                        ),
                        Query(
                            rate(f"{EXT_PROC}_streams_failed", CLIENTS, "instance"),
                            "{{instance}} failed",
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
                    "Upstream response time",
                    "Of an endpoint's answers to their end, by cluster; in Envoy's buckets.",
                    (
                        Query(
                            "histogram_quantile(0.5, sum by (envoy_cluster_name, le) (rate("
                            f'envoy_cluster_upstream_rq_time_bucket{{{IN},envoy_cluster_name!="extproc"}}'
                            "[$__rate_interval])))",
                            "{{envoy_cluster_name}} p50",
                        ),
                        Query(
                            "histogram_quantile(0.95, sum by (envoy_cluster_name, le) (rate("
                            f'envoy_cluster_upstream_rq_time_bucket{{{IN},envoy_cluster_name!="extproc"}}'
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
                                f'{IN},envoy_cluster_name!="extproc"',
                                "envoy_cluster_name",
                            ),
                            "{{envoy_cluster_name}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Failed connections",
                    "A second, by cluster.",
                    (
                        Query(
                            rate("envoy_cluster_upstream_cx_connect_fail", by="envoy_cluster_name"),
                            "{{envoy_cluster_name}}",
                        ),
                    ),
                    "suffix:/s",
                ),
            ),
        ),
        Row(
            "Envoy itself",
            (
                Panel(
                    "Envoy heap",
                    "In use, in per cent of the bound of the overload manager, by Envoy.",
                    (
                        Query(
                            f"envoy_overload_envoy_resource_monitors_fixed_heap_pressure{{{IN}}}",
                            "{{instance}}",
                        ),
                    ),
                    "percent",
                    doubtful=80,
                    bad=95,
                ),
                Panel(
                    "Refused by the overload manager",
                    "Requests a second that were refused or cut.",
                    (
                        Query(
                            rate("envoy_http_downstream_rq_overload_close", CLIENTS, "instance"),
                            "{{instance}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Path not allowed (404)",
                    "Requests a second for a path that is not served.",
                    (Query(rate("envoy_http_rbac_denied", CLIENTS, "instance"), "{{instance}}"),),
                    "reqps",
                ),
            ),
        ),
    ),
    (NAMESPACE,),
)
