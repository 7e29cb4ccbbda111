// Prints, as Markdown, what the cost model says of the SM100 kernels at the shapes of published
// measurements, and how far it is from those. A model of bytes and rates, not a measurement of
// ours.
//
// Source of the measurements: vLLM pull requests 52079 (GEMM-RS) and 53053 (GEMM-AR), both of the
// multicast kernel on GB300 at 8 ranks with n = 7168; flashinfer's kernel in 52687 on B300.
#include <cstdint>
#include <cstdio>

#include "dispatch/config_choice.h"
#include "dispatch/cost_model.h"

namespace jax_symm {
namespace {

constexpr uint32_t kN = 7168;
constexpr uint32_t kMultiprocessors = 148;

struct Published {
  Collective collective;
  uint32_t m;
  uint32_t k;
  double us;
};

constexpr Published kPublished[] = {
    {Collective::kReduceScatter, 128, 768, 40.08},
    {Collective::kReduceScatter, 512, 768, 47.46},
    {Collective::kReduceScatter, 2048, 768, 81.1},
    {Collective::kReduceScatter, 8192, 768, 202.27},
    {Collective::kReduceScatter, 32768, 768, 697.5},
    {Collective::kReduceScatter, 128, 1536, 41.63},
    {Collective::kAllReduce, 128, 1536, 48.91},
    {Collective::kAllReduce, 256, 1536, 44.50},
    {Collective::kAllReduce, 512, 1536, 61.18},
    {Collective::kAllReduce, 1024, 1536, 79.76},
};

GemmProblem Problem(Collective collective, uint32_t m, uint32_t k, uint32_t ranks) {
  return {.collective = collective,
          .rows = {1, m, (m + ranks - 1) / ranks},
          .ranks = ranks,
          .n = kN,
          .k = k};
}

const char* Name(Collective collective) {
  return collective == Collective::kReduceScatter ? "RS" : "AR";
}

void PrintPublished() {
  const DeviceRates rates = B200Rates();
  // What the published harness adds to every launch: its smallest row, less the model's time.
  const GemmProblem least = Problem(Collective::kReduceScatter, 128, 768, 8);
  const double floor_us =
      kPublished[0].us - 1e6 * EstimateFused(least, Reducer::kMulticast, rates).total_seconds;
  std::printf("Floor of the harness, from its first row: %.1f us\n\n", floor_us);
  std::printf("| op | m | k | model us | published us | error | with the floor |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const Published& p : kPublished) {
    const GemmProblem problem = Problem(p.collective, p.m, p.k, 8);
    const double us = 1e6 * EstimateFused(problem, Reducer::kMulticast, rates).total_seconds;
    std::printf("| %s | %u | %u | %.1f | %.1f | %+.0f %% | %+.0f %% |\n", Name(p.collective), p.m,
                p.k, us, p.us, 100 * (us / p.us - 1), 100 * ((us + floor_us) / p.us - 1));
  }
}

void PrintPredicted() {
  const DeviceRates rates = B200Rates();
  std::printf("\n| op | R | m | config | reducer | GEMM us | link us | total us | bound |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
    for (uint32_t ranks : {4u, 8u}) {
      for (uint32_t m = 128; m <= 32768; m *= 4) {
        const GemmProblem problem = Problem(collective, m, 12288 / ranks, ranks);
        const Reducer reducer = ChooseReducer(problem, /*multicast_agreed=*/true);
        const GemmConfig config = ChooseConfig(Arch::kSm100, problem, reducer, kMultiprocessors);
        const Estimate e = EstimateFused(problem, reducer, rates);
        std::printf("| %s | %u | %u | 128x%ux64, cluster %u | %s | %.1f | %.1f | %.1f | %s |\n",
                    Name(collective), ranks, m, config.shape.tile_n, config.shape.cluster,
                    ReducerName(reducer), 1e6 * e.gemm_seconds, 1e6 * e.link_seconds,
                    1e6 * e.total_seconds, e.gemm_seconds > e.link_seconds ? "tensor" : "link");
      }
    }
  }
}

}  // namespace
}  // namespace jax_symm

int main() {
  jax_symm::PrintPublished();
  jax_symm::PrintPredicted();
}
