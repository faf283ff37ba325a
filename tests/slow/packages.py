"""The system's programs that the slow tests run, and Debian's packages that have them.

`make test-slow` asks for them first: without them a dozen tests would fail a quarter of an hour later. `make
compose-test` asks for Docker (`--docker`). `.ci/run` installs all (`--list`). Standard library alone: it runs before
anything is installed.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

PACKAGES: Final = {
    "make": "make",
    "curl": "curl",
    "ip": "iproute2",
    "script": "bsdutils",
    "unshare": "util-linux",
    "chromium": "chromium",
    "h2load": "nghttp2-client",
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "etcdctl": "etcd-client",
    "prometheus": "prometheus",
}
# Without an engine `make test-slow` skips the tests of the composed stack, and says so; `make compose-test` fails.
DOCKER: Final = ("docker.io", "docker-compose", "debootstrap", "iptables")
# Not a program: what makes virtual environments.
ALSO: Final = ("python3-venv",)


def find_missing() -> list[str]:
    """Returns the packages whose programs are not here."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [name for program, name in PACKAGES.items() if shutil.which(program, path=path) is None]


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find_compose() -> list[str]:
    """Returns the words that call Compose: Docker's plugin or, on older machines, a program; none without Docker."""
    words = (["docker", "compose"], ["docker-compose"])
    return next(
        (each for each in words if shutil.which("docker") and succeeds(*each, "version")), []
    )


def is_engine_up() -> bool:
    return succeeds("docker", "info")


def explain_no_docker() -> str:
    """Returns what the composed stack lacks, in one line; nothing where there is a chance to run it."""
    if not find_compose():
        return f"Docker with Compose: docs.docker.com/engine/install, or apt-get install {' '.join(DOCKER)}"
    if not is_engine_up() and (os.geteuid() or not shutil.which("dockerd")):
        return "a Docker engine that answers you: start it, or join its group (or be root, who can start one)"
    return ""


def main() -> int:
    match sys.argv[1:]:
        case ["--list"]:
            print(*PACKAGES.values(), *DOCKER, *ALSO)
            return 0
        case ["--docker"]:
            asker, missing = "make compose-test needs", explain_no_docker()
        case _:
            packages = find_missing()
            asker = "make test-slow needs more: apt-get install"
            missing = " ".join(packages)
    if missing:
        print(asker, missing, file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
