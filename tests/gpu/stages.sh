# What the scripts that run on GPUs have in common; sourced by them, from the repository's root.
# Multicast stays off: by the site's variables, and by a driver table that aborts on it.
set -uo pipefail
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32
export XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=0.5
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD
worst=0

# stage NAME LIMIT_S COMMAND...: a log each, a line each, and one in stages.jsonl.
stage() {
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "$name: exit $status after $((SECONDS - start)) s: $(tail -n 1 "$out/$name.log")"
  printf '{"stage": "%s", "status": %d, "seconds": %d}\n' "$name" "$status" \
    "$((SECONDS - start))" >>"$out/stages.jsonl"
  ((status == 0)) || worst=1
}

# tests NAME LIMIT_S PYTEST_ARGUMENTS...: a stage of pytest, with junit XML.
tests() {
  local name=$1 limit=$2
  shift 2
  stage "$name" "$limit" python3 -m pytest -v -p no:cacheprovider --tb=short --timeout 280 \
    --junitxml "$out/$name.xml" "$@"
}

bench() {  # bench NAME LIMIT_S ARGUMENTS...: the benchmark; its JSON grows case by case.
  local name=$1 limit=$2 plot=()
  shift 2
  python3 -c 'import matplotlib' 2>/dev/null && plot=(--plot "$out/$name.png")
  stage "$name" "$limit" python3 -c 'import sys
from jax_symm import _backends, __main__
_backends.forbid_multicast()
sys.exit(__main__.main(sys.argv[1:]))' bench --out "$out/$name.json" "${plot[@]}" "$@"
}

build() {  # The extension module with the Hopper kernels, beside the Python files.
  stage build 280 bash -c 'cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DJAX_SYMM_ENABLE_CUDA=ON -DJAX_SYMM_KERNEL_ARCHITECTURES=90a \
    -DPython_EXECUTABLE="$(command -v python3)" &&
    ninja -C build/gpu && cp build/gpu/ffi/python/_jax_symm*.so jax_symm/'
}

start_mps() {
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  nvidia-cuda-mps-control -d
  gpu=$CUDA_VISIBLE_DEVICES
  export CUDA_VISIBLE_DEVICES=0 # the one GPU of the server, as its clients count
}

stop_mps() {  # Returns when control and server are gone: kill tests begin after that.
  echo quit | nvidia-cuda-mps-control
  for _ in $(seq 60); do
    pgrep nvidia-cuda-mps >/dev/null || break
    sleep 0.5
  done
  if pgrep -l nvidia-cuda-mps; then
    echo "MPS has not ended"
    worst=1
  fi
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  export CUDA_VISIBLE_DEVICES=$gpu
}

# Runs the stages that were asked for, in their order; all of them where none was.
run_stages() {
  local name
  for name in "$@"; do
    if [[ " $wanted " == "  " || " $wanted " == *" $name "* ]]; then "run_$name"; fi
  done
  exit "$worst"
}
