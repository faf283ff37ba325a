#!/bin/sh
# install.sh VENV EXTRAS [dev]: a virtual environment with this project, every package of the version and with the
# hashes in constraints.txt. EXTRAS are names with commas, or nothing; `dev` adds what tests need, editable.
# The wheel is kept in the folder WHEELS, if one is named.
set -eu
cd "$(dirname "$0")"
venv=$1 extras=$2 mode=${3-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$venv/bin/python" -m pip -qq --disable-pip-version-check "$@"; }

"${PYTHON:-python3}" -m venv "$venv"
# Before anything else a pip that reads hashes from constraints, and what builds our wheel.
awk '/^[a-z]/ { wanted = /^(pip|setuptools)==/ } wanted' constraints.txt >"$work/first.txt"
pip install --require-hashes -r "$work/first.txt"
# A copy, so that the build leaves nothing here.
cp -r pyproject.toml README.md LICENSE extproc manifests "$work"
pip wheel --no-deps --no-build-isolation --wheel-dir "$work" "$work"
wheel=$(echo "$work"/*.whl)
[ -z "${WHEELS-}" ] || cp "$wheel" "$WHEELS"
echo "extproc-router[$extras] @ file://$wheel --hash=sha256:$(sha256sum "$wheel" | cut -d' ' -f1)" >"$work/ours.txt"
set -- -c constraints.txt -r "$work/ours.txt"
[ "$mode" = dev ] && set -- "$@" --group dev
pip install "$@"
[ "$mode" != dev ] || pip install --no-deps --no-build-isolation --editable .
