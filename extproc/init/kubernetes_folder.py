"""`extproc init kubernetes`: a folder for `kubectl apply -k` that names vLLM's Service in one place."""

import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

import yaml

from extproc import __version__
from extproc.documents import suggest_name
from extproc.errors import SettingsError
from extproc.router.routing.strategies.prefix_cache.engine import ENGINES
from extproc.router.settings.reading import parse_settings

# In a checkout a link to the folder beside the package; part of the wheel.
_MANIFESTS: Final = Path(__file__).parents[1] / "manifests"
# What each kind of gateway is built on.
_BASES: Final = {
    "envoy": "overlays/gateway",
    "envoy-gateway": "overlays/envoy-gateway",
    "istio": "overlays/istio",
    "existing": "base",
}
# What makes the gateway answer at 127.0.0.1:8080, and without one the service's admin port at 9090.
_FORWARD: Final = {
    "envoy": "-n {namespace} port-forward service/llm-gateway 8080:80",
    "envoy-gateway": "-n envoy-gateway-system port-forward $(kubectl -n envoy-gateway-system get service"
    " -o name -l gateway.envoyproxy.io/owning-gateway-namespace={namespace}"
    ",gateway.envoyproxy.io/owning-gateway-name=llm) 8080:80",
    "istio": "-n {namespace} port-forward service/llm-istio 8080:80",
    "existing": "-n {namespace} port-forward deployment/extproc 9090",
}

_CONFIGURATION: Final = """\
# Where requests go. Only this file names vLLM. After a change run `kubectl apply -k`. The running service has
# it within about a minute, because the kubelet copies it late. `extproc init` prints every other setting.
pools:
- name: {pool}
  # models: [{model}]  # with a second pool: the requests for these come here
  endpoints:
    # Any Service of your vLLM Pods. The port is the Pods' own: its number, or its name in the Service.{read}
    kubernetes: {{service: {service}, port: {target_port}}}
  fallbacks: 2  # further endpoints, for the gateway's retries
{prefill}  strategy:
    name: prefix_cache
    engine: {engine}  # the nearest of `extproc schema`'s list; `extproc calibrate` measures yours
"""
_PREFILL: Final = """\
  prefill:  # computes prompts where that is sooner; the Pods above need llm-d's sidecar: docs/how-to/prefill-decode.md
    endpoints: {{kubernetes: {{service: {prefill_service}, port: {target_port}}}}}
    gbit_per_s: 100  # of the network between the two
"""
_REPLICAS: Final = """\
    gateways: 2  # replicas; with an autoscaler its minReplicas
share:  # the replicas tell each other what they picked; a change needs a restart
  cluster: extproc
  secret: {{env: SHARE_SECRET}}  # the file share-secret, as the Pods get it
  mesh: {{peers: {{kubernetes: {{service: extproc-peers, port: share}}}}}}
"""
_WATCHING: Final = """\
  shadow: {{}}  # watches the requests that your gateway shows, and routes none: docs/start/shadow.md
"""
_READ: Final = (
    "\n    # kustomization.yaml reads this line, so it has to stay one line in this form."
)
_KUSTOMIZATION: Final = """\
# Written by `extproc init kubernetes --gateway {gateway}`. `kubectl apply -k` takes this folder as it is.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: "{namespace}"
resources:
- manifests/{base}
{components}images:
- {image}
configMapGenerator:
- name: extproc
  behavior: replace
  files: [extproc.yaml]
  options: {{disableNameSuffixHash: true{route_port}}}  # the running service takes a change, without a restart
# What the replicas encrypt their messages with. Where this folder is kept in Git without the file, make a Secret
# `extproc-share` with the key `secret` yourself, and take these three lines out.
secretGenerator:
- name: extproc-share
  files: [secret={secret}]
# The next pages add some of these: components: [manifests/components/operator]
patches:
# The service and Envoy may reach every Pod of this namespace: the labels of your vLLM Pods are not known.
# Name them in `podSelector: {{matchLabels: {{…}}}}` to allow less.
- target: {{kind: NetworkPolicy, name: extproc|envoy}}
  patch: |-
    - {{op: replace, path: /spec/egress/2, value: {{to: [{{podSelector: {{}}}}]}}}}
"""
# `kubectl delete -k` of one namespace must not take what another one's Gateway needs.
_CLASS: Final = """\
- target: {{kind: GatewayClass}}
  options: {{allowNameChange: true}}
  patch: |-
    - {{op: replace, path: /metadata/name, value: llm-{namespace}}}
- target: {{kind: Gateway}}
  patch: |-
    - {{op: replace, path: /spec/gatewayClassName, value: llm-{namespace}}}
"""
# Beside the copied base, for the pages that come after the first one.
_OPTIONAL: Final = ("monitoring", "operator", "operator-monitoring", "vllm-monitoring")
_SECRET: Final = "share-secret"  # noqa: S105  # a file's name
_PULLING: Final = """\
- target: {{kind: Deployment}}
  patch: |-
    - {{op: add, path: /spec/template/spec/imagePullSecrets, value: [{{name: {pull_secret}}}]}}
"""
_COMPONENTS: Final = """\
# With your Gateway's name in gateway/*.yaml (it is `llm` there), uncomment:
# components: [gateway]
"""
_SHADOWS: Final = {"envoy-gateway": "envoy-gateway", "istio": "istio", "existing": "envoy-gateway"}
_ONE_WATCHER: Final = """\
# One replica sees all requests.
- target: {kind: Deployment}
  patch: |-
    - {op: replace, path: /spec/replicas, value: 1}
"""
_SHADOW_COMPONENTS: Final = """\
# With your Gateway's name in shadow/*.yaml (it is `llm`, and its listener `http`), uncomment:
# components: [shadow]
"""
_SHOWING: Final = """
Nothing is routed. Your gateway shows its requests to the service as soon as you
{how}
"""
_HOW_SHOWN: Final = {
    "pasted": "  paste the first two blocks of envoy/shadow.yaml into its configuration, with the service's address:"
    "\n  STRICT_DNS, extproc.{namespace}.svc.cluster.local, port 9002",
    "component": "  write its name into shadow/*.yaml, and uncomment `components` in kustomization.yaml",
}
_ROLLED: Final = """\
# To have each change roll the Pods, so that a refused file stops the rollout, uncomment:
# replacements:
# - path: manifests/replacements/rolled.yaml
"""
# For gateways that read a Service's endpoints themselves: yours takes the place of the manifests'
# own.
_ROUTED: Final = """\
- target: {{kind: Service, name: vllm}}
  patch: |-
    {{apiVersion: v1, kind: Service, metadata: {{name: vllm}}, $patch: delete}}
# Routes lead to the Service that extproc.yaml names: its line `kubernetes: {{service: …, port: …}}` is read.
replacements:
# Each change rolls the Pods, so that a refused file stops the rollout, if you uncomment this:
# - path: manifests/replacements/rolled.yaml
- path: manifests/replacements/service.yaml
{port}- path: manifests/replacements/routes.yaml
"""
_ROUTED_PORT: Final = "- path: manifests/replacements/port.yaml\n"

_WRITTEN: Final = """Written: {output}/
  extproc.yaml        the pool: Service {service}, port {target_port}
  kustomization.yaml  namespace {namespace}, image {image}
  manifests/          our manifests, which these two change
  share-secret        what the replicas encrypt their messages with: for your eyes, not for Git
{joining}
Run:
{image_steps}  extproc check {output}/extproc.yaml
  kubectl apply -k {output}
  kubectl -n {namespace} rollout status deployment/extproc
{envoy}  kubectl {forward}

Check:
  kubectl -n {namespace} get pods
  curl -i {request}
"""
_ENVOY: Final = "  kubectl -n {namespace} rollout status deployment/envoy\n"
# Nothing is published: without these steps the Pods could not start.
_BUILDING: Final = """\
  make image IMAGE={image}  # in the checkout; your cluster has to be able to pull it
  docker push {image}
"""
_NAMING: Final = """\
  write into {output}/kustomization.yaml, with your registry: newName: REGISTRY/extproc-router
"""
_JOINING: Final = """
With three files your Gateway of Envoy Gateway asks the service. Write its name into the first two, and
uncomment `components` in kustomization.yaml:
  gateway/route.yaml     HTTPRoute: the requests for vLLM
  gateway/policies.yaml  EnvoyExtensionPolicy: asks the service; BackendTrafficPolicy: goes where it says;
                         ClientTrafficPolicy: for the whole Gateway. If yours has one, merge the two
  gateway/network.yaml   NetworkPolicy: lets Envoy Gateway's Envoys reach the service
The Gateway's EnvoyProxy needs an access log to the service, too: docs/how-to/existing-gateway.md.
"""
_REQUEST: Final = (
    "http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' -d "
)
_NAME: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# As YAML has them in kustomize and in kubectl: numbers, yes and no.
_NO_NAME: Final = "[0-9]+e[0-9]+|0[xo][0-9a-f]+|y|n"
_IMAGE: Final = "[A-Za-z0-9][A-Za-z0-9._:/@-]*"


@dataclass(frozen=True, slots=True)
class KubernetesFolder:
    """What a user says of vLLM and of the gateway; `target_port` is the Pods', by number or by name."""

    service: str
    port: int
    target_port: int | str
    model: str
    namespace: str
    image: str | None
    pull_secret: str | None
    gateway: str
    engine: str
    output: Path
    prefill_service: str | None = None
    shadow: bool = False

    @property
    def _base(self) -> str:
        return "base" if self.shadow else _BASES[self.gateway]

    @property
    def _is_joint(self) -> bool:
        """Whether the gateway is there already, and is to ask the service."""
        return self.gateway == "existing" and not self.shadow

    def write(self) -> None:
        """Raises `SettingsError` if the folder is there already, or a name is none that Kubernetes takes."""
        services = [name for name in (self.service, self.prefill_service) if name is not None]
        given = [*services, self.namespace, str(self.target_port), self.pull_secret or "secret"]
        for name in given:
            if not re.fullmatch(_NAME, name):
                raise SettingsError(f"{name!r} is no name that Kubernetes takes")
        for text in (*services, self.target_port):  # kustomize reads them where no quotes may be
            if re.fullmatch(_NO_NAME, str(text)) or yaml.safe_load(str(text)) != text:
                raise SettingsError(f"{text!r} is no name to YAML: take another one")
        if not self.model.isprintable():
            raise SettingsError(f"{self.model!r} is no model's name")
        if self.image and not re.fullmatch(_IMAGE, self.image):
            raise SettingsError(f"{self.image!r} is no image's name")
        if self.engine not in ENGINES:
            hint = f"{suggest_name(self.engine, ENGINES)} (choose from {', '.join(ENGINES)})"
            raise SettingsError(f"there is no engine {self.engine!r}{hint}")
        configuration = self._configure()
        parse_settings(configuration, {}, "extproc.yaml")
        try:
            self._write(configuration)
        except FileExistsError:
            raise SettingsError(f"{self.output} is there already: give another --output") from None
        except OSError as error:
            raise SettingsError(f"{self.output}: cannot be written to: {error.strerror}") from None

    def _write(self, configuration: str) -> None:
        self.output.mkdir(parents=True)
        (self.output / "extproc.yaml").write_text(configuration)
        (self.output / "kustomization.yaml").write_text(self._customize())
        secret = self.output / _SECRET
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(32))
        (self.output / ".gitignore").write_text(f"{_SECRET}\n")
        _copy(self._base, self.output / "manifests")
        for name in _OPTIONAL:
            shutil.copytree(
                _MANIFESTS / "components" / name, self.output / "manifests/components" / name
            )
        shutil.copytree(_MANIFESTS / "replacements", self.output / "manifests/replacements")
        if self._is_joint:
            shutil.copytree(_MANIFESTS / "components/envoy-gateway", self.output / "gateway")
        if self.shadow and self.gateway in _SHADOWS:
            self._write_shadow(_MANIFESTS / "components/shadow" / _SHADOWS[self.gateway])

    def _write_shadow(self, component: Path) -> None:
        (self.output / "shadow").mkdir()
        for path in component.iterdir():
            text = path.read_text().replace("extproc.default.svc", f"extproc.{self.namespace}.svc")
            text = text.replace("name: default/llm/", f"name: {self.namespace}/llm/")
            (self.output / "shadow" / path.name).write_text(text)

    def describe(self) -> str:
        """What was written, what to run next, and what to look at then."""
        body = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}]}
        image = self.image or f"REGISTRY/extproc-router:{__version__}"
        building = "" if "@" in image else _BUILDING.format(image=image)
        naming = "" if self.image else _NAMING.format(output=quote(str(self.output)))
        return _WRITTEN.format(
            output=quote(str(self.output)),
            service=self.service,
            target_port=self.target_port,
            namespace=self.namespace,
            image=self.image or "extproc-router, without a registry: none was given (--image)",
            image_steps=building + naming,
            envoy=_ENVOY.format(namespace=self.namespace)
            if self._base.endswith("/gateway")
            else "",
            joining=_JOINING if self._is_joint else self._describe_shadow(),
            forward=_FORWARD["existing" if self.shadow else self.gateway].format(
                namespace=self.namespace
            ),
            request="http://127.0.0.1:9090/readyz"
            if self._is_joint or self.shadow
            else _REQUEST + quote(json.dumps(body)),
        )

    def _describe_shadow(self) -> str:
        if not self.shadow:
            return ""
        how = _HOW_SHOWN["component" if self.gateway in _SHADOWS else "pasted"]
        return _SHOWING.format(how=how.format(namespace=self.namespace))

    def _configure(self) -> str:
        pool = re.sub("[^A-Za-z0-9._-]", "-", self.model.rpartition("/")[2])[:63].strip("._-")
        prefill = ""
        if self.prefill_service is not None:
            names = {"prefill_service": self.prefill_service, "target_port": self.target_port}
            prefill = _PREFILL.format(**names)
        return (_CONFIGURATION + (_WATCHING if self.shadow else _REPLICAS)).format(
            pool=pool or "vllm",
            engine=self.engine,
            prefill=prefill,
            model=json.dumps(self.model, ensure_ascii=False),
            read="" if self.shadow or self.gateway == "envoy" else _READ,
            service=self.service,
            target_port=self.target_port,
        )

    def _customize(self) -> str:
        is_same = self.target_port == self.port
        is_routed = self.gateway != "envoy" and not self.shadow
        components = _COMPONENTS if self._is_joint else ""
        if self.shadow and self.gateway in _SHADOWS:
            components = _SHADOW_COMPONENTS
        parts = [
            _KUSTOMIZATION.format(
                gateway=self.gateway,
                namespace=self.namespace,
                base=self._base,
                components=components,
                image=_write_image(self.image),
                route_port=f', annotations: {{vllm-port: "{self.port}"}}'
                if is_routed and not is_same
                else "",
                secret=_SECRET,
            )
        ]
        if self.pull_secret:
            parts.append(_PULLING.format(pull_secret=self.pull_secret))
        if self.shadow:
            parts.append(_ONE_WATCHER)
        elif self.gateway == "envoy-gateway":
            parts.append(_CLASS.format(namespace=self.namespace))
        port = _ROUTED_PORT if is_same else ""
        parts.append(_ROUTED.format(port=port) if is_routed else _ROLLED)
        return "".join(parts)


def _copy(place: str, output: Path) -> None:
    """Copies the files of a folder of manifests, and the folders that it is built on."""
    (output / place).mkdir(parents=True, exist_ok=True)
    for path in (_MANIFESTS / place).iterdir():
        if path.is_file():
            shutil.copy(path, output / place)
    kustomization = yaml.safe_load((output / place / "kustomization.yaml").read_text())
    for below in [*kustomization.get("resources", ()), *kustomization.get("components", ())]:
        if below.startswith(".."):
            _copy(os.path.normpath(f"{place}/{below}"), output)


def _write_image(image: str | None) -> str:
    """Writes kustomize's entry for an image with a tag or a digest; for none, what the manifests say."""
    if image is None:
        return (
            f'{{name: extproc-router, newTag: "{__version__}"}}  # newName: REGISTRY/extproc-router'
        )
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    version = f"digest: {digest}" if digest else f'newTag: "{tag or "latest"}"'
    return f"{{name: extproc-router, newName: {folder}{slash}{last}, {version}}}"
