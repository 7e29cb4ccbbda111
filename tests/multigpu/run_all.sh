#!/usr/bin/env bash
# Builds, tests and times the peer path on all GPUs of this host; logs and JSON go to $1.
# Multicast stays off: by the site's variables, and by a driver table that aborts on it.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?usage: run_all.sh OUTPUT_FOLDER}
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.5 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD
export JAX_SYMM_TEST_REQUIRE=gpu
worst=0

stage() {  # stage NAME LIMIT_S COMMAND...: one log each, one line each
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "$name: exit $status after $((SECONDS - start)) s"
  ((status == 0)) || worst=1
}

bench() {  # the benchmark, over a driver table that aborts on multicast
  python3 -c 'import sys
from jax_symm import _backends, __main__
_backends.forbid_multicast()
sys.exit(__main__.main(["bench", *sys.argv[1:]]))' "$@"
}
export -f bench

build() {
  cmake -S . -B build/multigpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DJAX_SYMM_ENABLE_CUDA=ON \
    -DJAX_SYMM_WERROR=OFF -DJAX_SYMM_KERNEL_ARCHITECTURES=90a -DPython_EXECUTABLE="$(command -v python3)" &&
    ninja -C build/multigpu && cp build/multigpu/ffi/python/_jax_symm*.so jax_symm/
}
export -f build

tests=(python3 -m pytest -q -p no:cacheprovider --tb=short --timeout 60)
gpus=$(nvidia-smi -L | wc -l)
stage build 200 bash -c build
stage "gemm-$gpus-gpus" "${TEST_LIMIT_S:-300}" "${tests[@]}" tests/gpu/test_gemm_on_gpu.py
CUDA_VISIBLE_DEVICES=0 stage gemm-1-gpu "${TEST_LIMIT_S:-300}" "${tests[@]}" tests/gpu/test_gemm_on_gpu.py
stage "bench-$gpus-gpus" "${BENCH_LIMIT_S:-600}" bash -c 'bench "$@"' _ --path peer \
  --out "$out/bench-$gpus-gpus.json" ${BENCH_ARGUMENTS:-}
CUDA_VISIBLE_DEVICES=0 stage bench-1-gpu "${BENCH_LIMIT_S:-600}" bash -c 'bench "$@"' _ --path peer --tp 8 \
  --out "$out/bench-1-gpu.json" ${BENCH_ARGUMENTS:-}
exit $worst
