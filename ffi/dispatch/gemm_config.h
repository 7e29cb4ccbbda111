// How one call is run: kernel, tile shape and grid. Chosen from static facts alone, so every rank
// chooses alike.
#pragma once

#include <cstdint>
#include <string>

#include "dispatch/gemm_problem.h"

namespace jax_symm {

enum class Arch : uint8_t { kSm90 = 0, kSm100 = 1 };

inline constexpr const char* ArchName(Arch arch) { return arch == Arch::kSm90 ? "sm90" : "sm100"; }

inline constexpr const char* ReducerName(Reducer reducer) {
  switch (reducer) {
    case Reducer::kPush:
      return "push";
    case Reducer::kPull:
      return "pull";
    case Reducer::kMulticast:
      return "multicast";
  }
  return "?";
}

/// A tile shape that a kernel exists for.
struct TileShape {
  uint32_t tile_m;
  uint32_t tile_n;
  uint32_t cluster;  // CTAs along m that share the tile of w
  uint32_t stages;
  uint32_t threads;
  uint32_t shared_bytes;
  uint32_t weight_box_rows[2];  // rows of a TMA box of w, by WeightLayout

  bool operator==(const TileShape&) const = default;
};

struct GemmConfig {
  Arch arch = Arch::kSm90;
  Reducer reducer = Reducer::kPush;
  TileShape shape = {};
  uint32_t m_groups_per_band = 1;  // raster: clusters' tiles along m visited for each n in turn
  uint32_t ctas = 0;               // of the grid; a multiple of the cluster

  bool operator==(const GemmConfig&) const = default;
};

/// The exported symbol of the kernel that `config` runs for `problem`.
std::string KernelName(const GemmProblem& problem, const GemmConfig& config);

/// "sm90 push 128x256x64 cluster=2 stages=4 band=8 ctas=132"
std::string Describe(const GemmConfig& config);

}  // namespace jax_symm
