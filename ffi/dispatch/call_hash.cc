#include "dispatch/call_hash.h"

#include <initializer_list>

#include "kernels/layout/fault.h"

namespace jax_symm {
namespace {

/// FNV-1a over the bytes of `values`, folded.
uint32_t Hash(std::initializer_list<uint64_t> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint64_t value : values) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 0x100000001b3u;
  }
  return static_cast<uint32_t>((hash ^ hash >> 24 ^ hash >> 48) & kCallMask);
}

uint64_t Pair(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }

}  // namespace

uint32_t HashCall(int64_t call_site, const GemmProblem& problem) {
  return Hash({static_cast<uint64_t>(call_site),
               Pair(static_cast<uint32_t>(problem.collective), problem.ranks),
               Pair(static_cast<uint32_t>(problem.element), static_cast<uint32_t>(problem.output)),
               Pair(problem.rows.batch, problem.rows.rows_per_batch),
               Pair(problem.rows.shard_rows, problem.n), problem.k});
}

uint32_t HashLaunch(uint32_t call, const GemmConfig& config) {
  return Hash({Pair(static_cast<uint32_t>(config.arch), static_cast<uint32_t>(config.reducer)),
               Pair(config.shape.tile_m, config.shape.tile_n),
               Pair(config.shape.cluster, config.m_groups_per_band), call});
}

}  // namespace jax_symm
