#!/bin/bash
# prepare.sh WORK [LIMIT_MIB]: all that a bare GPU machine needs, as parts of at most LIMIT_MIB each (50).
#
# Runs on a machine with a package registry, on Linux x86-64, from a checkout. WORK/parts gets part-1 … part-N; WORK/kit is
# what they hold. PACK=-1 packs faster and larger than the default -6.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) project=$(cd "$(dirname "$0")/../.." && pwd)
work=$1 limit_mib=${2:-50}
vllm=0.26.0  # the newest whose wheel asks for torch 2.11.0; its libraries want CUDA 13, as that torch has
glibc=x86_64-manylinux_2_34
mkdir -p "$work" && work=$(cd "$work" && pwd) kit=$work/kit
python3 -m venv "$work/tools"
"$work/tools/bin/python" -m pip -q install uv tokenizers
into() {  # FOLDER WHAT…: packages for the machine's Python, without what they need
  "$work/tools/bin/uv" -q pip install --target "$1" --python-version 3.12 --python-platform $glibc --only-binary :all: "${@:2}"
}
without() {  # FOLDER NAME…: packages that the machine has, or that nothing here imports
  local folder=$1; shift
  for name; do rm -rf "${folder:?}/$name" "$folder/$name".py "$folder/$name"-*.dist-info; done
}

rm -rf "$kit" "$work/parts" && mkdir -p "$kit/vllm" "$work/parts" "$work/wheels"
echo "1. vLLM $vllm, without what one dense model on a Hopper card does not need"
"$work/tools/bin/python" -m pip -q download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi abi3 \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_31_x86_64 --platform manylinux_2_34_x86_64 -d "$work/wheels" "vllm==$vllm"
"$work/tools/bin/python" -m zipfile -e "$work"/wheels/vllm-"$vllm"*.whl "$kit/vllm"
(
  cd "$kit/vllm/vllm"
  rm -f vllm-rs vllm_flash_attn/_vllm_fa2_C.abi3.so _moe_C_stable_libtorch.abi3.so _flashmla*.so _qutlass_C.abi3.so
  rm -rf third_party/deep_gemm third_party/fmha_sm100 third_party/tml_fa4 model_executor/layers/fused_moe/configs
)
echo "2. what it imports and the machine lacks"
into "$kit/vllm" --no-deps -r "$here/vllm-packages.txt"
without "$kit/vllm" grpc grpcio cryptography setuptools _distutils_hack pkg_resources google protobuf supervisor certifi requests \
  urllib3 charset_normalizer click httpx httpcore idna attr attrs prometheus_client bin docstring_parser tqdm
rm -rf "$kit/vllm/mistral_common/data" "$kit/vllm/pycountry/locales" "$kit"/vllm/*.pth
echo "3. the router, its benchmark and Envoy"
grep -v '^    --hash' "$project/constraints.txt" | sed 's/ \\$//' >"$work/constraints.txt"
rm -f "$work"/wheels/extproc_router-*
"$work/tools/bin/python" -m pip -q wheel --no-deps -w "$work/wheels" "$project"
into "$kit/router" -c "$work/constraints.txt" "$(echo "$work"/wheels/extproc_router-*.whl)[bench,simulator,envoy]"
without "$kit/router" numpy numpy.libs pygments tzdata uvloop
cp "$project/envoy/standalone.yaml" "$kit/"
mkdir -p "$kit/tests/gpu" && cp "$here"/{plan.py,proof.py,run.sh} "$kit/tests/gpu/"
git -C "$project" rev-parse HEAD >"$kit/COMMIT"
echo "4. models without weights"
"$work/tools/bin/python" "$here/models.py" "$kit/models"
echo "5. parts of at most $limit_mib MiB"
find "$kit" -name __pycache__ -prune -exec rm -rf {} +
tar -C "$kit" -c --sort=name --owner=0 --group=0 . | xz -T2 "${PACK:--6}" >"$work/kit.tar.xz"  # blocks that several cores unpack
split -b "$((limit_mib * 1024 * 1024))" -d -a 1 "$work/kit.tar.xz" "$work/piece-"
count=$(ls "$work"/piece-* | wc -l) number=0
for piece in "$work"/piece-*; do
  number=$((number + 1))
  part=$work/parts/part-$number
  mkdir -p "$part" && mv "$piece" "$part/piece-$number-of-$count"
  (cd "$part" && sha256sum piece-* >sum)
  cp "$here/receive.sh" "$part/"
done
rm -f "$work/kit.tar.xz"
du -sh "$kit"/* "$work"/parts/*
