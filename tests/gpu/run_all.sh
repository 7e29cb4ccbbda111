#!/usr/bin/env bash
# Builds, tests and times the kernels on one GPU of this host (CUDA_VISIBLE_DEVICES, else 0); logs, junit XML and JSON go to $1.
#   tests/gpu/run_all.sh OUTPUT_FOLDER [STAGE...]
# with the stages build, cases, bench, mps, sanitizer and kill.
# Without names everything runs, in this order: what kills processes comes last, without MPS.
cd "$(dirname "$0")/../.."
out=${1:?usage: run_all.sh OUTPUT_FOLDER [STAGE...]}
shift
wanted="$*"
source tests/gpu/stages.sh
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0} JAX_SYMM_TEST_REQUIRE=${JAX_SYMM_TEST_REQUIRE-gpu,kernels,multigpu1}

run_build() { build; }

# One process: R = 1, 2, 4, 8 ranks on streams of one GPU, and a group of one through jit.
run_cases() {
  tests cases "${TEST_LIMIT_S:-300}" tests/gpu/test_rank_cases.py tests/gpu/test_jit_cases.py \
    tests/gpu/test_gemm_on_gpu.py -k "shared or gpus1 or test_gemm_on_gpu"
}

run_bench() {
  bench bench-1-gpu "${BENCH_LIMIT_S:-420}" --paths peer --tp 8 --shared-ranks 2 4 8 --rounds 5 \
    --layers llama-3.1-8b-down llama-3.1-70b-down kimi-k3-o-proj --m 1024 4096 8192 \
    ${BENCH_ARGUMENTS:-}
}

# Several processes on the GPU, through jit of shard_map.
run_mps() {
  start_mps
  tests mps-memory 180 tests/gpu/test_gpu_memory.py -k "not killed"
  tests mps-processes 400 tests/host/test_processes.py tests/host/test_jobs.py -k shared
  stop_mps
}

run_sanitizer() {
  stage memcheck 120 compute-sanitizer --tool memcheck --error-exitcode 9 \
    python3 tests/gpu/one_rank.py
  stage racecheck 120 compute-sanitizer --tool racecheck --error-exitcode 9 \
    python3 tests/gpu/one_rank.py
}

run_kill() {
  tests kill-memory 120 tests/gpu/test_gpu_memory.py -k killed
  tests kill-processes 400 tests/host/test_death.py -k shared
}

run_stages build cases bench mps sanitizer kill
