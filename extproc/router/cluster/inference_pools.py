"""InferencePools as the Kubernetes API sends them, and what one says. Pure.

Fields follow the reference of `inference.networking.k8s.io/v1` (Gateway API Inference Extension 1.0).
"""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from extproc.router.cluster.kube_api import ObjectMeta

V1: Final = "inference.networking.k8s.io/v1"


class Selector(Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class TargetPort(Struct):
    number: int = 0


class PoolSpec(Struct, rename="camel"):
    selector: Selector | None = None
    target_ports: list[TargetPort] | None = None


class InferencePool(Struct):
    metadata: ObjectMeta
    spec: PoolSpec | None = None

    @property
    def terms(self) -> "PoolTerms":
        spec = self.spec or PoolSpec()
        labels = (spec.selector or Selector()).match_labels or {}
        ports = tuple(dict.fromkeys(port.number for port in spec.target_ports or ()))
        # As the API's `labelSelector` has them.
        return PoolTerms(",".join(f"{key}={labels[key]}" for key in sorted(labels)), ports)


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """What an InferencePool selects: the pods of a label selector, each at all of these ports."""

    selector: str
    ports: tuple[int, ...]

    @property
    def fault(self) -> tuple[str, str] | None:
        """Why there can be no endpoints: a fixed word, and the rest of a sentence about the pool."""
        if not self.selector:
            # An empty selector would be every pod of the namespace, ours too.
            return "no_selector", "has no labels in its selector"
        return None if self.ports else ("no_port", "has no target port")
