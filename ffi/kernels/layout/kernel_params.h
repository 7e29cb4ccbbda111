// What a launch is told: one plain struct, passed by value as a __grid_constant__ parameter.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/address.h"
#include "kernels/layout/fault.h"
#include "kernels/layout/host_device.h"
#include "kernels/layout/row_map.h"
#include "kernels/layout/workspace_layout.h"

namespace jax_symm {

enum class OutputType : uint32_t { kElement, kFloat32 };

/// The epoch is not among them: it lives in the signal pad, so that a captured launch can be
/// replayed. Offsets and `data_pitch` are the same on every rank of the group.
struct KernelParams {
  RowMap rows;
  uint32_t n;                  // a multiple of 8
  uint32_t k;                  // of this rank; a multiple of 8
  uint32_t m_groups_per_band;  // clusters' tiles along m that are visited for each n in turn
  uint32_t rank;
  uint32_t ranks;
  uint32_t call;        // 24-bit hash of what this call is
  uint32_t data_pitch;  // elements between rows of slots, partials and results
  OutputType output_type;

  UnicastAddress workspace[kMaxRanks];   // every rank's workspace as mapped here
  MulticastAddress multicast_workspace;  // zero unless the reducer is multicast
  uint64_t flags_offset;                 // bytes from the start of a workspace, as the three below
  uint64_t result_flags_offset;
  uint64_t data_offset;
  uint64_t result_offset;  // the data's own where the reduction is in place

  void* output;                // reduce-scatter: [ShardRows(), n]; all-reduce: [TotalRows(), n]
  uint64_t output_pitch;       // elements
  const int32_t* axis_index;   // device memory: the caller's index along the axis
  uint64_t timeout_ns;         // of each wait, by %globaltimer
  const uint32_t* abort_word;  // pinned host memory: 0, or 1 + the rank whose process has ended
  LaunchRecord* fault_record;  // pinned host memory of this rank
};
static_assert(std::is_trivially_copyable_v<KernelParams>);
static_assert(sizeof(KernelParams) <= 1024, "leave room for tensor maps in a launch's 4 KiB");

JAX_SYMM_HOST_DEVICE constexpr uint32_t OutputBytes(OutputType type) {
  return type == OutputType::kFloat32 ? 4 : 2;
}

/// A single rank has nobody to add to: its epilogue stores to the output, unless that is wider
/// than the operands, since a partial is always rounded to the operand type.
JAX_SYMM_HOST_DEVICE constexpr bool StoresStraightToOutput(const KernelParams& params) {
  return params.ranks == 1 && params.output_type == OutputType::kElement;
}

}  // namespace jax_symm
