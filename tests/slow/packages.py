"""The system's programs that the slow tests run, and Debian's packages that have them.

`make test-slow` asks for them first: without them a dozen tests would fail a quarter of an hour later. `.ci/run`
installs them (`--list`). Standard library alone: it runs before anything is installed.
"""

import os
import shutil
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
# Without an engine the tests of the composed stack are skipped.
DOCKER: Final = ("docker.io", "docker-compose", "debootstrap", "iptables")
# Not a program: what makes virtual environments.
ALSO: Final = ("python3-venv",)


def find_missing() -> list[str]:
    """Returns the packages whose programs are not here."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [name for program, name in PACKAGES.items() if shutil.which(program, path=path) is None]


def main() -> int:
    if sys.argv[1:] == ["--list"]:
        print(*PACKAGES.values(), *DOCKER, *ALSO)
        return 0
    missing = find_missing()
    if missing:
        print(f"make test-slow needs more: apt-get install {' '.join(missing)}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
