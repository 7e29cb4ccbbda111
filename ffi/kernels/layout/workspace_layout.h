// Where everything lies in a rank's symmetric memory. The same header gives the host its
// allocation sizes and the kernels their addresses.
//
//   SignalPad | flags [tile][source] | result flags [slice][owner] | data
//
// Flags carry the epoch and are never reset, so they keep their place whatever the call; data is
// divided anew by each call: R slots of a shard (push) or one partial (pull, multicast), and a
// result buffer where an all-reduce cannot be done in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout/host_device.h"
#include "kernels/layout/row_map.h"

namespace jax_symm {

inline constexpr uint32_t kMaxRanks = 72;

enum class Reducer : uint32_t { kPush, kPull, kMulticast };
enum class Collective : uint32_t { kReduceScatter, kAllReduce };

/// Rows of a tile that one communication work item covers.
inline constexpr uint32_t kSliceRows = 32;
/// No kernel has smaller tiles; flags are provided for these.
inline constexpr uint32_t kMinTileM = 64;
inline constexpr uint32_t kMinTileN = 64;

/// Words by which ranks meet. `done` is written by peers; the rest by this rank, except `fault`,
/// which whoever finds one stores at every rank. Words that are hammered by different roles do
/// not share a cache line.
struct alignas(128) SignalPad {
  uint64_t epoch;     // launches completed here
  uint64_t current;   // flag value of the last launch begun here
  uint64_t fault;     // verdict; sticky
  uint32_t observed;  // nonzero once an observation has been recorded
  alignas(128) uint32_t tile_claims;
  alignas(128) uint32_t comm_claims;
  alignas(128) uint32_t left;             // CTAs that have left this launch
  alignas(128) uint64_t done[kMaxRanks];  // launches whose reads the peer has completed
};
static_assert(offsetof(SignalPad, epoch) == 0);
static_assert(offsetof(SignalPad, current) == 8);
static_assert(offsetof(SignalPad, fault) == 16);
static_assert(offsetof(SignalPad, observed) == 24);
static_assert(offsetof(SignalPad, tile_claims) == 128);
static_assert(offsetof(SignalPad, comm_claims) == 256);
static_assert(offsetof(SignalPad, left) == 384);
static_assert(offsetof(SignalPad, done) == 512);
static_assert(sizeof(SignalPad) == 1152);

/// How much a workspace can hold. The same on every rank of a group.
struct WorkspaceCapacity {
  uint32_t ranks;
  uint64_t tiles;  // of kMinTileM x kMinTileN
  uint64_t data_bytes;
};

/// Byte offsets from the start of a rank's workspace.
struct WorkspaceLayout {
  uint64_t flags_offset;
  uint64_t result_flags_offset;
  uint64_t data_offset;
  uint64_t nbytes;
};

JAX_SYMM_HOST_DEVICE constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

JAX_SYMM_HOST_DEVICE constexpr uint64_t FlagIndex(uint64_t tile, uint32_t ranks, uint32_t source) {
  return tile * ranks + source;
}

/// `payload_bytes` is ranks * shard rows * n * element size of the largest call.
constexpr WorkspaceCapacity CapacityFor(uint32_t ranks, uint64_t payload_bytes, bool all_reduce) {
  constexpr uint64_t kTileBytes = uint64_t{kMinTileM} * kMinTileN * 2;
  // Twice the tiles of the payload, and a few, leave room for calls with many partial tiles.
  const uint64_t tiles = 2 * (RoundUp(payload_bytes, kTileBytes) / kTileBytes) + 64;
  return {ranks, tiles, payload_bytes * (all_reduce ? 2 : 1)};
}

constexpr WorkspaceLayout LayOut(const WorkspaceCapacity& capacity) {
  constexpr uint64_t kAlignment = 1024;
  const uint64_t flag_bytes = capacity.tiles * capacity.ranks * sizeof(uint64_t);
  const uint64_t slices_per_tile = kMinTileM / kSliceRows;
  WorkspaceLayout layout = {};
  layout.flags_offset = RoundUp(sizeof(SignalPad), kAlignment);
  layout.result_flags_offset = RoundUp(layout.flags_offset + flag_bytes, kAlignment);
  layout.data_offset =
      RoundUp(layout.result_flags_offset + slices_per_tile * flag_bytes, kAlignment);
  layout.nbytes = RoundUp(layout.data_offset + capacity.data_bytes, kAlignment);
  return layout;
}
static_assert(LayOut({8, 64, 4096}).flags_offset == 2048);
static_assert(LayOut({8, 64, 4096}).result_flags_offset == 2048 + 64 * 8 * 8);
static_assert(LayOut({8, 64, 4096}).data_offset == 2048 + 3 * 64 * 8 * 8);

/// The part of a call that decides how much memory it takes.
struct CallShape {
  RowMap rows;
  uint32_t ranks;
  uint32_t n;
  uint32_t element_bytes;
  uint32_t output_bytes;  // of one element of the result
  Reducer reducer;
  Collective collective;
  uint32_t tile_m;
  uint32_t tile_n;
};

struct CallFootprint {
  uint64_t tiles;          // of kMinTileM x kMinTileN, for the flags
  uint64_t result_offset;  // of the result buffer from the start of the data; 0 if in place
  uint64_t data_bytes;
};

/// Owners replace their rows of the partials by the result, which then has to be as narrow.
JAX_SYMM_HOST_DEVICE constexpr bool ReducesInPlace(Reducer reducer, uint32_t element_bytes,
                                                   uint32_t output_bytes) {
  return reducer != Reducer::kPush && element_bytes == output_bytes;
}

constexpr CallFootprint Footprint(const CallShape& call, uint32_t pitch) {
  const uint64_t m_tiles = RoundUp(call.rows.TotalRows(), call.tile_m) / call.tile_m;
  const uint64_t n_tiles = RoundUp(call.n, call.tile_n) / call.tile_n;
  const uint64_t min_tiles_per_tile = call.tile_m / kMinTileM;  // result flags go by slices of m
  const uint64_t rows = call.reducer == Reducer::kPush
                            ? uint64_t{call.ranks} * call.rows.ShardRows()
                            : call.rows.TotalRows();
  CallFootprint need = {};
  need.tiles = m_tiles * n_tiles * min_tiles_per_tile;
  need.data_bytes = rows * pitch * call.element_bytes;
  if (call.collective == Collective::kAllReduce &&
      !ReducesInPlace(call.reducer, call.element_bytes, call.output_bytes)) {
    need.result_offset = need.data_bytes;
    need.data_bytes += uint64_t{call.rows.TotalRows()} * pitch * call.output_bytes;
  }
  return need;
}

constexpr bool Fits(const CallFootprint& need, const WorkspaceCapacity& capacity) {
  return need.tiles <= capacity.tiles && need.data_bytes <= capacity.data_bytes;
}

/// Elements from one row to the next of slots, partials and results: whole cache lines where the
/// workspace has room for that, else 32 or at least 16 bytes.
constexpr uint32_t DataPitch(const CallShape& call, const WorkspaceCapacity& capacity) {
  for (uint32_t multiple = 64; multiple >= 16; multiple /= 4) {
    const uint32_t pitch = static_cast<uint32_t>(RoundUp(call.n, multiple));
    if (Fits(Footprint(call, pitch), capacity)) return pitch;
  }
  return call.n;
}

}  // namespace jax_symm
