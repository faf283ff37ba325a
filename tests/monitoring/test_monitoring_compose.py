"""Prometheus and Grafana beside the composed stack: what they are given is there, and fits together."""

from pathlib import Path
from typing import Any

import yaml

from monitoring.generate import COMPONENT, ROOT
from tests.slow.compose.docker import IMAGES

COMPOSE = ROOT / "examples" / "compose"
CONFIG = ROOT / "monitoring" / "prometheus.yaml"


def read_compose(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def services() -> dict[str, Any]:
    found: dict[str, Any] = read_compose(COMPOSE / "compose.yaml")["services"]
    return found


def mounts(service: str) -> dict[str, Path]:
    """Returns what is mounted, by its place in the container."""
    volumes = (volume.split(":") for volume in services()[service]["volumes"])
    return {place: (COMPOSE / source).resolve() for source, place, _ in volumes}


def test_images_are_the_ones_that_users_get() -> None:
    """Where no registry is reached local ones stand in; so their names are held against the manifests'."""
    kustomization = read_compose(ROOT / "manifests/overlays/sidecar/kustomization.yaml")
    [envoy] = [image for image in kustomization["images"] if image["name"] == "envoyproxy/envoy"]
    text = (COMPOSE / "compose.yaml").read_text()

    assert f"${{ENVOY_IMAGE:-envoyproxy/envoy:{envoy['newTag']}}}" in text
    assert all(f"${{{name}:-{image}}}" in text for name, image in IMAGES.items())
    assert f"ARG BASE_IMAGE={IMAGES['BASE_IMAGE']}\n" in (ROOT / "Dockerfile").read_text()


def test_prometheus_has_its_configuration_with_the_rules_beside_it() -> None:
    assert mounts("prometheus") == {
        "/etc/prometheus/prometheus.yml": CONFIG,
        "/etc/prometheus/rules.yaml": ROOT / "monitoring" / "rules.yaml",
    }
    assert read_compose(CONFIG)["rule_files"] == ["rules.yaml"]


def test_what_is_scraped_is_where_the_stack_has_it() -> None:
    jobs = {job["job_name"]: job for job in read_compose(CONFIG)["scrape_configs"]}
    targets = {
        name: job["static_configs"][0]["targets"] for name, job in jobs.items() if name != "vllm"
    }
    [names] = jobs["vllm"]["dns_sd_configs"]
    admin = read_compose(COMPOSE / "extproc.yaml")["server"]["admin"].rpartition(":")[2]
    listeners = read_compose(ROOT / "envoy" / "sidecar.yaml")["static_resources"]["listeners"]
    [metrics] = [each for each in listeners if each["name"] == "metrics"]

    assert targets["extproc"] == [f"extproc:{admin}"]
    assert targets["envoy"] == [f"envoy:{metrics['address']['socket_address']['port_value']}"]
    assert services()["vllm-0"]["networks"]["default"]["aliases"] == names["names"]
    assert {"extproc", "envoy"} <= {*services()}


def test_grafana_finds_prometheus_and_the_dashboards_and_both_need_the_profile() -> None:
    mounted = mounts("grafana")
    [source] = read_compose(mounted["/etc/grafana/provisioning/datasources/extproc.yaml"])[
        "datasources"
    ]
    [provider] = read_compose(mounted["/etc/grafana/provisioning/dashboards/extproc.yaml"])[
        "providers"
    ]
    profiled = {
        name for name, service in services().items() if service.get("profiles") == ["monitoring"]
    }

    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"]
    assert mounted[provider["options"]["path"]] == COMPONENT / "dashboards"
    assert profiled == {"prometheus", "grafana"}
