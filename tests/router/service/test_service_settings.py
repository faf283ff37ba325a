"""The configuration: strict, every fault with its place, every default documented once."""

from inspect import Parameter, signature
from pathlib import Path

import pytest
import yaml

from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import Strategy
from extproc.router.routing.strategies.prefix_hash import PrefixHashSettings
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.service.wiring import build_probe
from extproc.router.settings.endpoints import EndpointsSettings
from extproc.router.settings.reading import REMOVED, load_settings, parse_settings
from extproc.router.settings.server_settings import TlsSettings
from extproc.router.settings.tree import Settings, list_settings
from tests.tables import table

GOOD = """
server:
  listen: unix:/run/extproc/ext_proc.sock
  drain_s: 5
pools:
  - name: llama
    models: [llama-3.1-8b-instruct]
    adapters: [sql-lora]
    endpoints:
      static: [10.0.0.1:8000, "[fd00:0::1]:8000"]
    strategy: {name: prefix_hash, prefix_chars: 50, load_floor: 0}
  - name: qwen
    endpoints: {kubernetes: {namespace: default, service: vllm, port: http}}
    strategy: {name: round_robin}
"""

MINIMAL = "pools: [{name: a, endpoints: {static: ['10.0.0.1:8000']}}]"

DNS = "endpoints: {dns: 'v:1'}"


def faults(text: str, **environment: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, environment, where="f.yaml")
    return str(caught.value)


def test_a_full_file_is_read() -> None:
    settings = parse_settings(GOOD, {})
    llama, qwen = settings.pools

    assert llama.endpoints.static == ["10.0.0.1:8000", "[fd00::1]:8000"]
    assert isinstance(llama.strategy, PrefixHashSettings)
    assert (llama.strategy.prefix_chars, llama.strategy.load_floor, llama.strategy.load_factor) == (
        50,
        0,
        1.25,
    )
    assert qwen.models is None
    assert qwen.endpoints.kubernetes is not None


# A setting that one user in a thousand needs costs all others a line of documentation.
MOST_SETTINGS = 75


def test_there_are_no_more_settings_than_one_can_read() -> None:
    places = set(list_settings())

    assert len(places) <= MOST_SETTINGS
    assert {"server.tls.key", "pools.strategy.load_factor", "share.mesh.peers.kubernetes.port"} <= places


@table("place", REMOVED)
def test_a_removed_setting_is_answered_with_what_to_do_instead(place: str) -> None:
    """In the file with its line; as a variable, too, where it was one."""
    assert place not in set(list_settings())
    value: object = 1
    for step in reversed(place.split(".")):
        value = {step: [value]} if step == "pools" else {step: value}

    assert f"{place} was removed in 0.2: " in faults(yaml.safe_dump(value))
    if place.startswith("server."):
        assert f"{place} was removed in 0.2: " in faults(
            MINIMAL, **{f"EXTPROC_{place.replace('.', '__').upper()}": "1"}
        )


@table(
    ("change", "expected"),
    [
        ("server: {lissten: x}", "f.yaml:1: server.lissten: there is no such setting"),
        ("server: {listen: 127.0.0.1}", "f.yaml:1: server.listen: '127.0.0.1' does not match"),
        (
            "pools: [{name: a, endpoints: {kubernetes: {service: v, port: ['99999']}}}]",
            "kubernetes: a port's number goes without quotes",
        ),
        (
            "pools: []\nserver: {drain_s: x}\npools: 1",
            "f.yaml:3: pools is given twice (line 1)\nf.yaml:3: pools: expected a list",
        ),
        (
            "share: {cluster: c, secret: {env: S}, mesh: {listen: ':99999', peers: {static: []}}}",
            "share.mesh.listen: 99999 is not a port",
        ),
        ("server: {drain_s: '30'}", "server.drain_s: expected a number"),
        ("server: {listn: x}", "server.listn: there is no such setting; did you mean listen?"),
        ("pools: [{name: a, endpoint: {static: []}}]", "pools.0.endpoints: is missing"),
        (
            f"pools: [{{name: a, {DNS}, strategy: {{name: prefix_cach}}}}]",
            "pools.0.strategy: there is no prefix_cach; did you mean prefix_cache? (choose from ",
        ),
        (f"pools: [{{name: a, {DNS}, strategy: 5}}]", "pools.0.strategy: expected a mapping"),
        ("server: {tls: {certificate: a}}", "server.tls: give certificate and key, or self_signed"),
        ("server: {tls: {self_signed: true, key: a}}", "server.tls: self_signed goes with no files"),
        ("server: {health: ':65536'}", "server.health: 65536 is not a port"),
        ("server: {pass_headers: [X-A]}", "server.pass_headers.0: 'X-A' does not match"),
        (
            f"pools: [{{name: a, {DNS}, objectives: {{batch: -1}}}}]",
            "pools.0: objectives and fairness need max_in_flight",
        ),
        ("pools:\n- name: a b\n  endpoints: {static: []}", "f.yaml:2: pools.0.name: 'a b' does not match"),
        (
            f"pools:\n- {{name: a, models: [m], {DNS}}}\n- name: a\n  models:\n  - x\n  - m\n  {DNS}",
            "f.yaml:3: pools.1.name: the name a is used twice\nf.yaml:6: pools.1.models.1: m is served by",
        ),
        ("pools: [{name: a, endpoints: {static: [vllm:8000]}}]", "'vllm' is not an IP address"),
        ("pools: [{name: a, endpoints: {static: ['1.1.1.1:1', '1.1.1.1:1']}}]", "given twice"),
        ("pools: [{name: a, endpoints: {static: [], file: x}}]", "give exactly one of"),
        ("pools: [{name: a, endpoints: {}}]", "give exactly one of"),
        ("pools: [{name: a, endpoints: {dns: 'vllm'}}]", "endpoints.dns: 'vllm' does not match"),
        ("pools: [{name: a, endpoints: {dns: 'vllm:0'}}]", "endpoints.dns: 'vllm:0' is not name:port"),
        ("pools: [{name: a, endpoints: {dns: '10.0.0.1:80'}}]", "give it as static"),
        ("pools: [{name: a, models: [], endpoints: {static: []}}]", "an empty list serves no request"),
        (
            "pools: [{name: a, endpoints: {static: []}}, {name: a, endpoints: {static: []}}]",
            "pools.1.name: the name a is used twice",
        ),
        (
            f"pools: [{{name: a, models: [m], {DNS}}}, {{name: b, adapters: [m], {DNS}}}]",
            "pools.1.adapters.0: m is served by the pool a, too",
        ),
        (
            "pools: [{name: a, endpoints: {static: []}, strategy: {name: best}}]",
            "there is no best (choose from prefix_cache, ",
        ),
        (
            "pools: [{name: a, endpoints: {static: []}, strategy: {name: prefix_hash, key: [x]}}]",
            "'x' is not a key",
        ),
        (
            "pools: [{name: a, endpoints: {static: []}, strategy: {name: round_robin, positions: 9}}]",
            "no such setting",
        ),
        ("[1, 2]", "expected a mapping"),
        ("a: [", "not YAML"),
        ("a: 2026-13-45", "f.yaml:1: not YAML: month must be in 1..12"),
        ("server: {listen: '0.0.0.0:99999'}", "f.yaml:1: server.listen: 99999 is not a port"),
        ("[" * 100_000, "f.yaml:1: nested too deeply"),
        ("pools:\n- name: a\x00b", "f.yaml:2: not YAML: special characters are not allowed"),
        ("pools:\n- name: [a", "f.yaml:2: not YAML: while parsing a flow sequence, expected ',' or ']'"),
    ],
)
def test_a_fault_is_told_with_its_place(change: str, expected: str) -> None:
    assert expected in faults(change)


def test_every_fault_is_told_at_once() -> None:
    text = "server:\n  foo: 1\n  bar: 2\npools:\n- endpoints: {static: []}\n"

    assert [line.split(": ")[0] for line in faults(text).splitlines()] == ["f.yaml:2", "f.yaml:3", "f.yaml:5"]


def test_the_environment_overrides_the_server_section() -> None:
    environment = {
        "EXTPROC_SERVER__LISTEN": "127.0.0.1:1",
        "EXTPROC_SERVER__DRAIN_S": "7",
        "EXTPROC_SERVER__TLS__KEY": "key.pem",
        "EXTPROC_SERVER__TLS__CERTIFICATE": "certificate.pem",
        "PATH": "x",
    }
    settings = parse_settings(GOOD, environment)

    assert (settings.server.listen, settings.server.drain_s) == ("127.0.0.1:1", 7)
    assert settings.server.tls == TlsSettings(certificate="certificate.pem", key="key.pem")
    assert parse_settings(MINIMAL, environment).server.drain_s == 7


@table(
    ("name", "nearest"),
    [
        ("EXTPROC_SERVER__LISSTEN", "EXTPROC_SERVER__LISTEN"),
        ("EXTPROC_SERVER_LISTEN", "EXTPROC_SERVER__LISTEN"),
        ("EXTPROC_LOG_LEVEL", "EXTPROC_SERVER__LOG_LEVEL"),
        ("EXTPROC_SERVER__TLS__CERT", "EXTPROC_SERVER__TLS"),
        ("EXTPROC_SERVER__MAX_BODY", "EXTPROC_SERVER__MAX_BODY_BYTES"),
        ("EXTPROC_POOLS__0__NAME", "EXTPROC_SERVER"),
        ("EXTPROC_SERVER__PORT", "EXTPROC_SERVER"),
        ("EXTPROC_", "EXTPROC_SERVER"),
    ],
)
def test_a_misspelt_variable_is_told_with_the_nearest_one(name: str, nearest: str) -> None:
    told = faults(GOOD, **{name: "1"})

    assert told.startswith(f"{name}: there is no such variable; {nearest}")


def test_what_kubernetes_tells_of_services_is_no_variable_of_ours() -> None:
    links = dict.fromkeys(
        [
            "EXTPROC_SERVICE_HOST",
            "EXTPROC_SERVICE_PORT",
            "EXTPROC_SERVICE_PORT_GRPC",
            "EXTPROC_PORT",
            "EXTPROC_PORT_9002_TCP",
            "EXTPROC_PORT_9002_TCP_ADDR",
            "EXTPROC_ROUTER_PORT_9002_TCP_PROTO",
        ],
        "tcp://10.0.0.1:9002",
    )

    assert parse_settings(GOOD, links) == parse_settings(GOOD, {})


def test_a_fault_of_a_variable_is_told_with_its_name() -> None:
    assert faults(GOOD, EXTPROC_SERVER__LISTEN="[").startswith("EXTPROC_SERVER__LISTEN:1: not YAML")
    assert faults(GOOD, EXTPROC_SERVER__DRAIN_S="x").startswith("EXTPROC_SERVER__DRAIN_S: server.drain_s: ")
    assert "EXTPROC_SERVER__DRAIN_S: server is not a mapping" in faults(
        "server: 1\npools: []", EXTPROC_SERVER__DRAIN_S="1"
    )


def test_a_key_may_be_a_single_word() -> None:
    pool = {
        "name": "a",
        "endpoints": {"static": []},
        "strategy": {"name": "prefix_hash", "key": "conversation"},
    }
    strategy = parse_settings(yaml.safe_dump({"pools": [pool]}), {}).pools[0].strategy

    assert isinstance(strategy, PrefixHashSettings)
    assert strategy.key == ["conversation"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing.yaml: cannot be read"):
        load_settings(tmp_path / "missing.yaml")


def test_the_schema_describes_every_setting() -> None:
    schema = Settings.model_json_schema()
    undescribed = [
        f"{name}.{field}"
        for name, section in schema["$defs"].items()
        for field, value in section["properties"].items()
        if "description" not in value and field not in {"name", "endpoints", "namespace", "service"}
    ]

    assert undescribed == []


@table("kind", STRATEGIES.kinds.values(), ids=lambda kind: kind.name)
def test_a_strategy_has_the_settings_that_its_section_has(kind: type[Strategy]) -> None:
    section = kind.settings
    fields = {field: info.get_default() for field, info in section.model_fields.items() if field != "name"}
    keywords = {
        parameter.name: list(parameter.default) if parameter.name == "key" else parameter.default
        for parameter in signature(kind).parameters.values()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }

    assert fields == keywords


def pools_of(*when_down: str) -> Settings:
    fields = {"open": ", when_down: open", "closed": ", when_down: closed", "": ""}
    pools = [
        f"{{name: p{number}, models: [m{number}], endpoints: {{dns: 'v:1'}}{fields[word]}}}"
        for number, word in enumerate(when_down)
    ]
    return parse_settings(f"pools: [{', '.join(pools)}]", {})


@table(
    ("when_down", "opened"),
    [
        ([""], "p0"),
        (["open"], "p0"),
        (["closed"], None),
        (["", ""], None),
        (["", "open"], "p1"),
        (["closed", "closed"], None),
    ],
)
def test_a_pool_alone_is_open_and_one_of_several_is_not(when_down: list[str], opened: str | None) -> None:
    assert pools_of(*when_down).open_pool == opened


def test_one_pool_at_most_is_open() -> None:
    with pytest.raises(SettingsError, match="one pool can be open when the service is down, and p0 is"):
        pools_of("open", "open")


def endpoints(text: str) -> EndpointsSettings:
    [pool] = parse_settings(f"pools: [{{name: vllm, endpoints: {text}}}]", {}).pools
    return pool.endpoints


@table(
    ("port", "ports"),
    [
        ("http", ("http",)),
        ("8000", (8000,)),
        ("[8000, 8001]", (8000, 8001)),
        ("[rank-0, 8001]", ("rank-0", 8001)),
    ],
)
def test_a_services_port_may_be_several(port: str, ports: tuple[int | str, ...]) -> None:
    kubernetes = endpoints(f"{{kubernetes: {{service: vllm, port: {port}}}}}").kubernetes

    assert kubernetes is not None
    assert kubernetes.ports == ports


def test_an_inference_pool_is_named_and_its_namespace_may_be_the_pods_own() -> None:
    pool = endpoints("{inference_pool: {name: vllm}}").inference_pool

    assert pool is not None
    assert (pool.name, pool.namespace) == ("vllm", None)


@table(
    ("text", "said"),
    [
        ("{kubernetes: {service: vllm, port: [8000, 8000]}}", "a port is given twice"),
        ("{kubernetes: {service: vllm, port: []}}", "port"),
        ("{inference_pool: {}}", "inference_pool.name"),
        ("{inference_pool: {name: vllm, port: 8000}}", "inference_pool.port"),
        ("{inference_pool: {name: vllm}, dns: 'a:1'}", "exactly one of"),
    ],
)
def test_endpoints_that_say_too_much_or_too_little_are_refused(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        endpoints(text)


def test_who_is_found_healthy_by_the_kubelet_is_not_asked() -> None:
    asked = {
        text: build_probe(parse_settings(f"pools: [{{name: vllm, endpoints: {text}}}]", {}).pools[0])
        is not None
        for text in (
            "{static: ['10.0.0.1:1']}",
            "{kubernetes: {service: vllm, port: 1}}",
            "{inference_pool: {name: vllm}}",
        )
    }

    assert list(asked.values()) == [True, False, False]
