"""The configuration: strict, every fault with its place, every default documented once."""

import re
from inspect import Parameter, signature
from pathlib import Path

import pytest
import yaml

from extproc.errors import SettingsError
from extproc.router.routing.strategies.base import Strategy
from extproc.router.routing.strategies.prefix_hash import PrefixHashSettings
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.settings.reading import REMOVED, load_settings, parse_settings
from extproc.router.settings.server_settings import TlsSettings
from extproc.router.settings.tree import Settings, list_settings
from tests.budgets import SETTINGS
from tests.tables import table

GOOD = """
server: {listen: "unix:/run/extproc/ext_proc.sock", drain_s: 5}
pools:
  - {name: llama, models: [llama-3.1-8b-instruct], adapters: [sql-lora],
     endpoints: {static: ["10.0.0.1:8000", "[fd00:0::1]:8000"]},
     strategy: {name: prefix_hash, prefix_chars: 50, load_floor: 0, key: conversation}}
  - {name: qwen, strategy: {name: round_robin},
     endpoints: {kubernetes: {namespace: default, service: vllm, port: http}}}
"""

MINIMAL = "pools: [{name: a, endpoints: {static: ['10.0.0.1:8000']}}]"

DNS = "endpoints: {dns: 'v:1'}"


def pool_yaml(endpoints: str = "{dns: 'v:1'}", **fields: str) -> str:
    """A file with one pool."""
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return f"pools: [{{name: a, endpoints: {endpoints}{more}}}]"


def pools_of(*fields: str) -> str:
    """A file with a pool for each of these fields."""
    return (
        f"pools: [{', '.join(f'{{name: p{n}, {DNS}, {each}}}' for n, each in enumerate(fields))}]"
    )


def settings_faults(text: str, **environment: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, environment, where="f.yaml")
    return str(caught.value)


def test_a_full_file_is_read() -> None:
    settings = parse_settings(GOOD, {})
    llama, qwen = settings.pools

    assert llama.endpoints.static == ["10.0.0.1:8000", "[fd00::1]:8000"]
    assert isinstance(llama.strategy, PrefixHashSettings)
    read = llama.strategy
    assert (read.prefix_chars, read.load_floor, read.load_factor) == (50, 0, 1.25)
    assert read.key == ["conversation"]
    assert qwen.models is None
    assert qwen.endpoints.kubernetes is not None


def test_there_are_no_more_settings_than_one_can_read() -> None:
    places = set(list_settings())

    assert len(places) <= SETTINGS  # each costs all users a line of documentation
    assert {
        "server.tls.key",
        "pools.strategy.load_factor",
        "share.mesh.peers.kubernetes.port",
    } <= places


@table("place", REMOVED)
def test_a_removed_setting_is_answered_with_what_to_do_instead(place: str) -> None:
    """In the file with its line; as a variable, too, where it was one."""
    assert place not in set(list_settings())
    value: object = 1
    for step in reversed(place.split(".")):
        value = {step: [value]} if step == "pools" else {step: value}
        if step == "learn":
            value = {"name": "prefix_cache", step: 1}

    assert re.search(rf"{place} was removed in 0\.\d: ", settings_faults(yaml.safe_dump(value)))
    if place.startswith("server."):
        variable = f"EXTPROC_{place.replace('.', '__').upper()}"
        assert f"{place} was removed in 0.2: " in settings_faults(MINIMAL, **{variable: "1"})


@table(
    ("change", "expected"),
    [
        ("server: {lissten: x}", "f.yaml:1: server.lissten: there is no such setting"),
        (
            "server: {listen: 127.0.0.1}",
            "f.yaml:1: server.listen: '127.0.0.1' is no address: HOST:PORT, :PORT or",
        ),
        (
            pool_yaml("{kubernetes: {service: v, port: ['99999']}}"),
            "a port's number goes without quotes",
        ),
        (
            "pools: []\npools: 1",
            "f.yaml:2: pools is given twice (line 1)\nf.yaml:2: pools: expected a list",
        ),
        (
            "share: {mesh: {listen: ':99999', peers: {static: []}}}",
            "share.mesh.listen: 99999 is not a port",
        ),
        ("server: {drain_s: '30'}", "server.drain_s: expected a number"),
        ("server: {listn: x}", "server.listn: there is no such setting; did you mean listen?"),
        ("pools: [{name: a, endpoint: {static: []}}]", "pools.0.endpoints: is missing"),
        (
            pool_yaml(strategy="{name: prefix_cach}"),
            "prefix_cach; did you mean prefix_cache? (choose from ",
        ),
        (
            pool_yaml(strategy="{name: random, key: x}"),
            "pools.strategy.key: random has no key; prefix_hash has",
        ),
        (
            pool_yaml(strategy="{name: least_load, engine: x}"),
            "pools.strategy.engine: least_load has no engine; prefix_cache has",
        ),
        (
            "server: {gateways: 2}",
            "server.gateways: there is no such setting; there is pools.strategy.gateways",
        ),
        ("server: {share: {}}", "there is no such setting; share is at the top level"),
        ("server: {listen: ':9002', admin: ':9002'}", "listen and admin have the same port, 9002"),
        (
            "server: {listen: ':9002'}\n"
            + pool_yaml("{static: ['1.1.1.1:9002', '127.0.0.1:9002']}"),
            "f.yaml:2: pools.0.endpoints.static.1: 127.0.0.1:9002 is the service's own port, server.listen",
        ),
        (
            pool_yaml("{kubernetes: {service: v, port: 8000, namespace: My_NS}}"),
            "namespace: 'My_NS' is no name to Kubernetes",
        ),
        (
            pool_yaml("{kubernetes: {service: v, port: 99999}}"),
            "99999 is no port: a number from 1 to 65535, a name, or a list of up to 8 of these",
        ),
        (pool_yaml("{static: ['http://1.1.1.1:8']}"), "'http://1.1.1.1:8': leave out http://"),
        (pool_yaml("{static: [vllm-0:8000]}"), "not an IP address; a name goes with `dns:`"),
        (pool_yaml(strategy="5"), "pools.0.strategy: expected a mapping"),
        ("server: {tls: {certificate: a}}", "server.tls: give certificate and key, or self_signed"),
        (
            "server: {tls: {self_signed: true, key: a}}",
            "server.tls: self_signed goes with no files",
        ),
        ("server: {health: ':65536'}", "server.health: 65536 is not a port"),
        (
            "server: {pass_headers: [X-A]}",
            "server.pass_headers.0: 'X-A' is no header's name: small letters",
        ),
        (
            pool_yaml(objectives="{batch: -1}"),
            "pools.0: objectives and fairness need max_in_flight",
        ),
        (
            "pools:\n- name: a b\n  endpoints: {static: []}",
            "f.yaml:2: pools.0.name: 'a b' is no name: up to 63 letters",
        ),
        (
            f"pools:\n- {{name: a, models: [m], {DNS}}}\n- name: a\n  models:\n  - x\n  - m\n  {DNS}",
            "f.yaml:3: pools.1.name: the name a is used twice\nf.yaml:6: pools.1.models.1: m is served by",
        ),
        (
            "pools:"
            + "".join(
                f"\n- {{name: {x}, models: [{x}], record: {{file: {file}}}, {DNS}}}"
                for x, file in (("a", "t"), ("b", "./t"))
            ),
            "pools.1.record.file: t has another pool's rows",
        ),
        (pool_yaml("{static: [vllm:8000]}"), "'vllm' is not an IP address"),
        (pool_yaml("{static: ['1.1.1.1:1', '1.1.1.1:1']}"), "given twice"),
        (pool_yaml("{static: [], file: x}"), "give exactly one of"),
        (pool_yaml("{}"), "give exactly one of"),
        (
            pool_yaml(strategy="{name: prefix_cache, engine: l5}"),
            "pools.0.strategy.engine: 'l5' is none of 'l4-llama8b-fp8', ",
        ),
        (
            pool_yaml(strategy="{name: prefix_cache, engine: {step_ms: 3, kv_tokens: 9000}}"),
            "pools.0.strategy.engine.prefill_ms_per_token: is missing",
        ),
        (pool_yaml(strategy="{engine: x}"), "pools.0.strategy: its name is missing"),
        (pool_yaml("{inference_pool: {}}"), "inference_pool.name"),
        (pool_yaml("{inference_pool: {name: vllm, port: 8000}}"), "inference_pool.port"),
        (pool_yaml("{kubernetes: {service: vllm, port: [8000, 8000]}}"), "a port is given twice"),
        (pool_yaml("{kubernetes: {service: vllm, port: []}}"), "kubernetes.port"),
        (pool_yaml("{dns: 'vllm'}"), "endpoints.dns: 'vllm' is not HOST:PORT"),
        (pool_yaml("{dns: 'vllm:0'}"), "endpoints.dns: 'vllm:0' is not name:port"),
        (pool_yaml("{dns: '10.0.0.1:80'}"), "give it as static"),
        (pool_yaml(models="[]"), "an empty list serves no request"),
        (
            pools_of("models: [m]", "adapters: [m]"),
            "pools.1.adapters.0: m is served by the pool p0, too",
        ),
        (
            pools_of("when_down: open", "when_down: open"),
            "one pool can be open when the service is down, and p0",
        ),
        (pool_yaml(strategy="{name: best}"), "there is no best (choose from prefix_cache, "),
        (pool_yaml(strategy="{name: prefix_hash, key: [x]}"), "'x' is not a key"),
        (pool_yaml(strategy="{name: round_robin, positions: 9}"), "has no positions"),
        *(
            (pool_yaml(probe=each), "f.yaml:1: pools.0.probe")
            for each in ("true", "{path: health}")
        ),
        *(
            (pool_yaml(probe=each), "f.yaml:1: pools.0.probe")
            for each in ("{interval_s: 0}", "{timeout_s: 0}")
        ),
        (pool_yaml(probe="true"), "pools.0.probe: expected a mapping (name: value)"),
        (
            pool_yaml(signals="{events: 99999}"),
            "pools.0.signals.events: must be less than or equal to 65535",
        ),
        *((pool_yaml(cool_after=each), "f.yaml:1: pools.0.cool_after") for each in ("0", "'3'")),
        ("[1, 2]", "expected a mapping"),
        ("a: [", "not YAML"),
        ("a: 2026-13-45", "f.yaml:1: not YAML: month must be in 1..12"),
        ("server: {listen: '0.0.0.0:99999'}", "f.yaml:1: server.listen: 99999 is not a port"),
        ("[" * 100_000, "f.yaml:1: nested too deeply"),
        ("pools:\n- name: a\x00b", "f.yaml:2: not YAML: special characters are not allowed"),
        (
            "pools:\n- name: [a",
            "f.yaml:2: not YAML: while parsing a flow sequence, expected ',' or ']'",
        ),
    ],
)
def test_a_fault_is_reported_with_its_place(change: str, expected: str) -> None:
    assert expected in settings_faults(change)


def test_a_section_that_may_be_false_has_one_fault() -> None:
    assert settings_faults(pool_yaml(signals="{event: true}")).count("pools.0.signals") == 1


def test_the_environment_overrides_the_server_section() -> None:
    given = {
        "LISTEN": "127.0.0.1:1",
        "DRAIN_S": "7",
        "TLS__KEY": "key.pem",
        "TLS__CERTIFICATE": "certificate.pem",
    }
    environment = {"PATH": "x"} | {
        f"EXTPROC_SERVER__{name}": value for name, value in given.items()
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
def test_a_misspelt_variable_is_reported_with_the_nearest_one(name: str, nearest: str) -> None:
    fault = settings_faults(GOOD, **{name: "1"})

    assert fault.startswith(f"{name}: there is no such variable; {nearest}")


def test_what_kubernetes_sets_for_services_is_no_variable_of_ours() -> None:
    ours = (
        *("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_9002_TCP"),
        "PORT_9002_TCP_ADDR",
    )
    names = [f"EXTPROC_{name}" for name in (*ours, "ROUTER_PORT_9002_TCP_PROTO")]

    assert parse_settings(GOOD, dict.fromkeys(names, "tcp://10.0.0.1:9002")) == parse_settings(
        GOOD, {}
    )


def test_a_fault_of_a_variable_is_reported_with_its_name() -> None:
    assert settings_faults(GOOD, EXTPROC_SERVER__LISTEN="[").startswith(
        "EXTPROC_SERVER__LISTEN:1: not YAML"
    )
    assert settings_faults(GOOD, EXTPROC_SERVER__DRAIN_S="x").startswith(
        "EXTPROC_SERVER__DRAIN_S: server.drain_s: "
    )
    wrong = settings_faults("server: 1\npools: []", EXTPROC_SERVER__DRAIN_S="1")
    assert "EXTPROC_SERVER__DRAIN_S: server is not a mapping" in wrong


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
    fields = {
        field: info.get_default() for field, info in section.model_fields.items() if field != "name"
    }
    keywords = {
        parameter.name: list(parameter.default) if parameter.name == "key" else parameter.default
        for parameter in signature(kind).parameters.values()
        if parameter.kind is Parameter.KEYWORD_ONLY and parameter.name != "rule"  # no setting
    }

    assert fields == keywords


@table(
    ("when_down", "opened"),
    [
        *(([""], "p0"), (["open"], "p0"), (["closed"], None)),
        *((["", ""], None), (["", "open"], "p1"), (["closed", ""], None)),
    ],
)
def test_a_pool_alone_is_open_and_one_of_several_is_not(
    when_down: list[str], opened: str | None
) -> None:
    fields = [
        f"when_down: {word}" if word else f"models: [m{n}]" for n, word in enumerate(when_down)
    ]

    assert parse_settings(pools_of(*fields), {}).open_pool == opened


@table(
    ("port", "ports"),
    [
        *(("http", ("http",)), ("8000", (8000,))),
        *(("[8000, 8001]", (8000, 8001)), ("[rank-0, 8001]", ("rank-0", 8001))),
    ],
)
def test_a_services_port_may_be_several(port: str, ports: tuple[int | str, ...]) -> None:
    [pool] = parse_settings(pool_yaml(f"{{kubernetes: {{service: vllm, port: {port}}}}}"), {}).pools

    assert pool.endpoints.kubernetes is not None
    assert pool.endpoints.kubernetes.ports == ports
