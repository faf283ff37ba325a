"""What was seen of the service, the engines, Envoy and Kubernetes: plain values. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from extproc.doctor.admin_ports import ClockOffset, EnvoySeen, PoolSeen
from extproc.router.lint.partings import PoolPartings
from extproc.router.settings.pool_settings import PoolSettings
from extproc.router.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The samples of a `/metrics` page by their names; of one that could not be had none."""

    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        samples = defaultdict[str, list[tuple[Mapping[str, str], float]]](list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if 0 <= sample.value < 1e18:  # NaN is neither
                        samples[sample.name].append((sample.labels, sample.value))
        except (ValueError, LookupError):
            return cls()
        return cls(samples)

    def sum(self, name: str, **labels: str) -> float:
        """The samples that carry these labels added up; 0 where there are none."""
        found = self.samples.get(name, ())
        return sum(value for named, value in found if labels.items() <= named.items())

    def count_by(self, name: str, label: str, **labels: str) -> str:
        """The same for each value of a label, as `3 5xx, 2 none`."""
        kinds = sorted({named.get(label, "") for named, _ in self.samples.get(name, ())})
        counts = {kind: self.sum(name, **labels, **{label: kind}) for kind in kinds}
        return ", ".join(f"{count:.0f} {kind}" for kind, count in counts.items() if count) or "none"

    def info(self, name: str) -> Mapping[str, str]:
        """The labels of a family's first sample."""
        return next((named for named, _ in self.samples.get(name, ())), {})


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One endpoint. `state` is the service's word; `health` what its health path answered, or why nothing.

    `first` and `last` are its metrics at the begin and the end of the window. `models` has what it
    serves, each with its parent if it is an adapter; `None`: it does not say. `refusal`: the status
    that asks for another key, 0 without one.
    """

    pool: str
    name: str
    address: str
    state: str = ""
    health: str = ""
    first: MetricsPage = MetricsPage()
    last: MetricsPage = MetricsPage()
    models: Mapping[str, str | None] | None = None
    clock: ClockOffset | None = None
    refusal: int = 0

    @property
    def cache(self) -> Mapping[str, str]:
        return self.last.info("vllm:cache_config_info")

    def count(self, name: str) -> int:
        """A number of its cache's; 0: it does not say, or nothing of use."""
        text = self.cache.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into its cache; 0: it does not say."""
        return self.count("kv_cache_size_tokens") or self.count("num_gpu_blocks") * self.count(
            "block_size"
        )

    @property
    def arrived(self) -> float:
        """Requests that came in the window: what ended in it, and what is open more than before."""
        names = (
            "vllm:request_success_total",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
        )
        is_seen = self.first.samples and self.last.samples
        return sum(self.last.sum(name) - self.first.sum(name) for name in names) if is_seen else 0.0


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """What Kubernetes says. `replicas` are ready Pods of ours, `is_guarded`: a NetworkPolicy limits them.

    `unready` has (Service, Pods ready, Pods).
    """

    replicas: int = 0
    is_guarded: bool | None = None
    unready: Sequence[tuple[str, int, int]] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was seen. `pools` are those of `/pools`, `faults` why the service is not ready.

    `first` and `last` are its metrics at the begin and the end of the window. `is_other`: it runs
    with other pools than the file says. `looked` and `unseen`: what could be looked at, and what
    not and why. `silence` is the service's address and why nothing answered there, if so. `lint`: where
    the pools' prompts part, as the service says.
    """

    settings: Settings
    pools: Sequence[PoolSeen] = ()
    first: MetricsPage = MetricsPage()
    last: MetricsPage = MetricsPage()
    faults: Sequence[str] = ()
    is_other: bool = False
    engines: Sequence[EngineSeen] = ()
    envoy: EnvoySeen = field(default_factory=EnvoySeen)
    cluster: ClusterSeen = ClusterSeen()
    clock: ClockOffset | None = None
    looked: Sequence[str] = ()
    unseen: Sequence[str] = ()
    silence: tuple[str, str] | None = None
    lint: Sequence[PoolPartings] = ()

    def of(self, pool: PoolSettings) -> list[EngineSeen]:
        return [engine for engine in self.engines if engine.pool == pool.name]

    def running(self, pool: PoolSettings) -> PoolSeen:
        """What `/pools` says of it; without a name where that was not fetched."""
        return next((each for each in self.pools if each.name == pool.name), PoolSeen("", ()))

    @property
    def replicas(self) -> int:
        """As many of us as anybody sees; 0: nobody said."""
        return max(sum(self.envoy.hosts.values()), self.cluster.replicas)
