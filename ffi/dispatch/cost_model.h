// One model of bytes and rates for everything that has to compare paths: the choice of `auto`,
// the plan that explains it, and the floors that the benchmark prints.
#pragma once

#include <cstdint>
#include <string>

#include "dispatch/gemm_config.h"
#include "dispatch/gemm_problem.h"

namespace jax_symm {

/// What a device and its links sustain.
struct DeviceRates {
  double matmul_flops = 0;           // per second, 16-bit operands, dense
  double memory_bytes = 0;           // per second, reads plus writes
  double link_bytes = 0;             // per second and direction, of one device
  double collective_efficiency = 0;  // of the link, by a stand-alone collective
  double launch_seconds = 0;         // of one more kernel
  double collective_seconds = 0;     // latency of a stand-alone collective
  double signal_seconds = 0;         // one flag from rank to rank
  double skew_seconds = 0;           // how far apart ranks begin a kernel
};

/// Measured on H200 (bf16, random data) and its NVLink; the latencies are of NCCL there.
DeviceRates H200Rates();
/// From public measurements of B200; no such device was at hand.
DeviceRates B200Rates();

DeviceRates RatesOf(Arch arch);

/// Bytes that one rank sends (and receives: the exchanges are symmetric, but for multicast's
/// reduction, whose larger direction counts).
double LinkBytes(const GemmProblem& problem, Reducer reducer);

struct Estimate {
  double gemm_seconds = 0;
  double link_seconds = 0;
  double total_seconds = 0;
};

/// Fused: the longer of product and exchange, and what cannot overlap: the last tile's exchange.
Estimate EstimateFused(const GemmProblem& problem, Reducer reducer, const DeviceRates& rates);
/// XLA's product followed by a stand-alone ring collective.
Estimate EstimateUnfused(const GemmProblem& problem, const DeviceRates& rates);

/// The reducer that moves the fewest bytes among those that are possible. Pull is multicast's twin
/// for machines without a switch; it is never chosen by itself.
Reducer ChooseReducer(const GemmProblem& problem, bool multicast_agreed);

struct Advice {
  bool can_run = false;
  bool should_run = false;  // fused is predicted to be the faster one
  std::string reason;
};
/// About running `problem` with `reducer`.
Advice Advise(const GemmProblem& problem, Reducer reducer, const DeviceRates& rates);

}  // namespace jax_symm
