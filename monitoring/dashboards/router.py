"""All pools at a glance."""

from typing import Final

from monitoring.dashboards.board import (
    GOOD,
    IN,
    NAMESPACE,
    Board,
    Panel,
    Query,
    Row,
    quantile,
    quantiles,
    rate,
)

_NOW: Final = Row(
    "Now",
    (
        Panel(
            "Alerts",
            "What fires or is about to. docs/how-to/runbook.md says what to do.",
            (Query(f'ALERTS{{alertname=~"Extproc.*",{IN}}}', may_be_empty=True),),
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
            "Prefix cache hit rate",
            "Share of the prompts' tokens, as vLLM counts them. Needs `signals`.",
            (Query(f"pool:extproc_measured_tokens_cached:ratio_rate10m{{{IN}}}", "{{pool}}"),),
            "percentunit",
            "figure",
            4,
        ),
        Panel(
            "Shed",
            "Share of a pool's requests that were refused with 429.",
            (Query(f"pool:extproc_requests_shed:ratio_rate5m{{{IN}}}", "{{pool}}"),),
            "percentunit",
            "figure",
            4,
        ),
        Panel(
            "Fail-open requests",
            "Share of the requests that Envoy sent on without an answer of the service.",
            (Query(f"namespace:envoy_requests_passed_by:ratio_rate5m{{{IN}}}"),),
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
            (Query(rate("extproc_requests_total", f'{IN},pool!=""', "pool"), "{{pool}}"),),
            "reqps",
            "stack",
        ),
    ),
)


_PAYS: Final = Row(
    "Whether it pays",
    (
        Panel(
            "Predicted and found",
            "Share of the prompts' tokens that was believed to be in a cache, and that vLLM found there. "
            "The two should be close.",
            (
                Query(f"pool:extproc_predicted_tokens_cached:ratio_rate10m{{{IN}}}", "{{pool}} predicted"),
                Query(f"pool:extproc_measured_tokens_cached:ratio_rate10m{{{IN}}}", "{{pool}} found"),
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
            (Query(f"pool:extproc_in_flight:max_to_mean{{{IN}}}", "{{pool}}"),),
        ),
        Panel(
            "Time to first byte",
            "From a request's first byte at the proxy to its answer's; of good answers.",
            quantiles("extproc_first_byte_seconds", GOOD, by="pool", legend="{{pool}}"),
            "s",
            width=12,
        ),
        Panel(
            "Time to first byte by zone",
            "Of good answers, p95, by the endpoint's zone; empty where no source tells zones.",
            (
                Query(
                    quantile(0.95, "extproc_first_byte_seconds", f'{GOOD},zone!=""', "pool, zone, le"),
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
                    f"avg by (pool, state) (extproc_pool_endpoints{{{IN}}})",
                    "{{pool}} {{state}}",
                ),
            ),
        ),
        Panel(
            "Age of the lists",
            "Since a source last confirmed the endpoints, or the objectives where they are followed.",
            (
                Query(f"max by (pool) (extproc_pool_age_seconds{{{IN}}})", "{{pool}}"),
                Query(
                    f"max by (pool) (extproc_objectives_age_seconds{{{IN}}})",
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
                    f"max by (pool, why) (extproc_pool_fault{{{IN}}})", "{{pool}} {{why}}", may_be_empty=True
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
                    f"rate(process_cpu_seconds_total{{{IN}}}[$__rate_interval])"
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
                    f"process_resident_memory_bytes{{{IN}}} and on (namespace, job, instance) extproc_info",
                    "{{instance}}",
                ),
            ),
            "bytes",
        ),
        Panel(
            "Streams open",
            "Requests in flight, by replica.",
            (Query(f"extproc_streams_open{{{IN}}}", "{{instance}}"),),
        ),
        Panel(
            "Bodies that could not be read",
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
                Query(f"max(extproc_config_refused{{{IN}}})", "file is not in force"),
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
