#include "dispatch/cost_model.h"

#include <algorithm>

#include "base/status.h"

namespace jax_symm {
namespace {

constexpr uint32_t kMinFusedRows = 128;

double PartialBytes(const GemmProblem& p) { return 2.0 * p.m() * p.n; }

}  // namespace

DeviceRates H200Rates() {
  return {.matmul_flops = 700e12,
          .memory_bytes = 4.3e12,
          .link_bytes = 360e9,
          .collective_efficiency = 0.8,
          .launch_seconds = 3e-6,
          .collective_seconds = 25e-6,
          .signal_seconds = 1.5e-6,
          .skew_seconds = 10e-6};
}

DeviceRates B200Rates() {
  return {.matmul_flops = 1600e12,
          .memory_bytes = 7.0e12,
          .link_bytes = 720e9,
          .collective_efficiency = 0.8,
          .launch_seconds = 3e-6,
          .collective_seconds = 25e-6,
          .signal_seconds = 1.5e-6,
          .skew_seconds = 10e-6};
}

DeviceRates RatesOf(Arch arch) { return arch == Arch::kSm90 ? H200Rates() : B200Rates(); }

double LinkBytes(const GemmProblem& problem, Reducer reducer) {
  const double partial = PartialBytes(problem);
  const double r = problem.ranks;
  if (problem.ranks == 1) return 0;
  const bool all_reduce = problem.collective == Collective::kAllReduce;
  if (reducer == Reducer::kMulticast) return all_reduce ? (1 + 1 / r) * partial : partial;
  return (all_reduce ? 2 : 1) * (r - 1) / r * partial;
}

Estimate EstimateFused(const GemmProblem& problem, Reducer reducer, const DeviceRates& rates) {
  Estimate e;
  e.gemm_seconds = problem.flops() / rates.matmul_flops;
  e.link_seconds = LinkBytes(problem, reducer) / rates.link_bytes;
  // The exchange of the last wave of tiles, and two or three hops of flags, come after the product.
  const double hops = problem.collective == Collective::kAllReduce ? 3 : 2;
  e.total_seconds = rates.launch_seconds + std::max(e.gemm_seconds, e.link_seconds) +
                    0.08 * std::min(e.gemm_seconds, e.link_seconds) + hops * rates.signal_seconds +
                    rates.skew_seconds;
  return e;
}

Estimate EstimateUnfused(const GemmProblem& problem, const DeviceRates& rates) {
  Estimate e;
  e.gemm_seconds = problem.flops() / rates.matmul_flops;
  e.link_seconds =
      LinkBytes(problem, Reducer::kPush) / (rates.link_bytes * rates.collective_efficiency);
  e.total_seconds =
      rates.launch_seconds + e.gemm_seconds + rates.collective_seconds + e.link_seconds;
  return e;
}

Reducer ChooseReducer(const GemmProblem& problem, bool multicast_agreed) {
  if (!multicast_agreed) return Reducer::kPush;
  const bool fewer = LinkBytes(problem, Reducer::kMulticast) < LinkBytes(problem, Reducer::kPush);
  return fewer ? Reducer::kMulticast : Reducer::kPush;
}

Advice Advise(const GemmProblem& problem, Reducer reducer, const DeviceRates& rates) {
  const std::string unsupported = WhyNotSupported(problem);
  if (!unsupported.empty()) return {false, false, unsupported};
  if (problem.ranks == 1) return {true, false, "the axis has one rank: there is nothing to fuse"};
  if (problem.m() < kMinFusedRows) {
    return {true, false,
            StrCat("m = ", problem.m(), " is below ", kMinFusedRows,
                   ": low-latency collectives are faster")};
  }
  const double fused = EstimateFused(problem, reducer, rates).total_seconds;
  const double unfused = EstimateUnfused(problem, rates).total_seconds;
  const std::string numbers = StrCat("predicted ", fused * 1e6, " us fused, ", unfused * 1e6,
                                     " us as product and collective");
  return {true, fused < unfused, numbers};
}

}  // namespace jax_symm
