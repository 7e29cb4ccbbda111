// Where rows of partials and results lie in symmetric memory.
#pragma once

#include <cstdint>

#include "base/address.h"
#include "kernels/layout/host_device.h"
#include "kernels/layout/kernel_params.h"

namespace jax_symm {

/// Where `source`'s contribution to `row` is: in the owner's slot of that source, or in the
/// source's own partial.
template <Reducer kReducer>
JAX_SYMM_HOST_DEVICE constexpr uint64_t PartialAddress(const KernelParams& params, uint32_t source,
                                                       uint32_t row, uint32_t column) {
  constexpr uint64_t kElementBytes = 2;
  uint32_t home = source;
  uint64_t home_row = row;
  if constexpr (kReducer == Reducer::kPush) {
    home = params.rows.Owner(row);
    home_row = uint64_t{source} * params.rows.ShardRows() + params.rows.ShardRow(row);
  }
  return params.workspace[home].value + params.data_offset +
         (home_row * params.data_pitch + column) * kElementBytes;
}

/// From one source's slot to the next.
JAX_SYMM_HOST_DEVICE constexpr uint64_t SlotBytes(const KernelParams& params) {
  constexpr uint64_t kElementBytes = 2;
  return uint64_t{params.rows.ShardRows()} * params.data_pitch * kElementBytes;
}

/// Offset in a workspace of a row of the first slot, or of the partial.
JAX_SYMM_HOST_DEVICE constexpr uint64_t DataOffset(const KernelParams& params, uint32_t row,
                                                   uint32_t column) {
  constexpr uint64_t kElementBytes = 2;
  return params.data_offset + (uint64_t{row} * params.data_pitch + column) * kElementBytes;
}

/// Offset, in any rank's workspace, of the all-reduced value of (row, column).
JAX_SYMM_HOST_DEVICE constexpr uint64_t ResultOffset(const KernelParams& params, uint32_t row,
                                                     uint32_t column) {
  return params.result_offset +
         (uint64_t{row} * params.data_pitch + column) * OutputBytes(params.output_type);
}

/// `row` is a row of the output as XLA sees it.
JAX_SYMM_HOST_DEVICE inline void* OutputAddress(const KernelParams& params, uint32_t row,
                                                uint32_t column) {
  return static_cast<uint8_t*>(params.output) +
         (row * params.output_pitch + column) * OutputBytes(params.output_type);
}

}  // namespace jax_symm
