#!/usr/bin/env bash
# Builds, tests and times the peer path on all GPUs of this host; logs, junit XML and JSON go to $1.
#   tests/multigpu/run_all.sh OUTPUT_FOLDER [STAGE...]
# with the stages build, cases, processes, schedules, bench, bench_hiding and kill.
# Without names everything runs, in this order: what kills processes comes last.
cd "$(dirname "$0")/../.."
out=${1:?usage: run_all.sh OUTPUT_FOLDER [STAGE...]}
shift
wanted="$*"
source tests/gpu/stages.sh
gpus=$(nvidia-smi -L | wc -l)
export JAX_SYMM_TEST_REQUIRE=${JAX_SYMM_TEST_REQUIRE-gpu,kernels,multigpu1,multigpu2,multigpu$gpus}

run_build() { build; }

# One process, a group of as many ranks as there are GPUs, and smaller ones.
run_cases() {
  tests "cases-$gpus-gpus" "${TEST_LIMIT_S:-300}" tests/gpu/test_rank_cases.py \
    tests/gpu/test_jit_cases.py tests/gpu/test_gemm_on_gpu.py -k "gpus or test_gemm_on_gpu"
}

# A process a GPU: every check of the suite, 10,000 calls with random delays among them.
run_processes() {
  tests "processes-$gpus-gpus" 300 tests/host/test_processes.py tests/host/test_jobs.py \
    -k "gpus-${gpus}x1 or test_unequal_setting_of_the_path and gpus"
}

# One process: without warm-up, with lazy loading, the latency-hiding scheduler on and off.
run_schedules() {
  tests "schedules-$gpus-gpus" 500 tests/multigpu -k "gpus-1x$gpus"
}

run_bench() {
  bench "bench-$gpus-gpus" "${BENCH_LIMIT_S:-420}" --paths peer peer_pull --rounds 5 \
    --layers llama-3.1-8b-down llama-3.1-70b-down kimi-k3-o-proj \
    --m 128 512 1024 2048 4096 8192 16384 ${BENCH_ARGUMENTS:-}
}

# The same where XLA is at its best: collectives hidden behind other work, from user buffers.
run_bench_hiding() {
  export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_nccl_user_buffers=true"
  bench "bench-hiding-$gpus-gpus" "${BENCH_LIMIT_S:-240}" --paths peer --rounds 5 \
    --layers llama-3.1-70b-down kimi-k3-o-proj --m 2048 8192 ${BENCH_ARGUMENTS:-}
  unset XLA_FLAGS
}

run_kill() {
  tests "kill-$gpus-gpus" 500 tests/host/test_divergence.py tests/host/test_death.py -m multigpu
}

run_stages build cases processes schedules bench bench_hiding kill
