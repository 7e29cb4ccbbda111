// The kernels' host-side layout as a C library, so that tests use the very headers that the
// kernels are compiled from.
#include <cstring>

#include "kernels/layout/kernel_params.h"
#include "kernels/layout/placement.h"
#include "kernels/layout/workspace_layout.h"
#include "kernels/schedule/tile_order.h"

namespace jax_symm {
namespace {

struct Call {
  RowMap rows;
  uint32_t ranks, n, k, float32_output, reducer, collective;
  uint32_t tile_m, tile_n, cluster, m_groups_per_band, workspace_all_reduce;
  uint64_t payload_bytes;
};

struct Addresses {
  const uint64_t* workspace;
  uint64_t multicast_workspace, output, axis_index, abort_word, fault_record;
};

struct Sizes {
  uint64_t nbytes, flags_offset, result_flags_offset, data_offset, result_offset, capacity_tiles;
  uint64_t tiles, data_bytes, fits;
  uint32_t data_pitch;
};

template <int kM, int kN, int kClusterSize>
struct TestTile {
  static constexpr int kTileM = kM;
  static constexpr int kTileN = kN;
  static constexpr int kCluster = kClusterSize;
};

CallShape ShapeOf(const Call& call) {
  return {call.rows,
          call.ranks,
          call.n,
          2,
          call.float32_output ? 4u : 2u,
          static_cast<Reducer>(call.reducer),
          static_cast<Collective>(call.collective),
          call.tile_m,
          call.tile_n};
}

Sizes SizesOf(const Call& call) {
  const CallShape shape = ShapeOf(call);
  const WorkspaceCapacity capacity =
      CapacityFor(call.ranks, call.payload_bytes, call.workspace_all_reduce);
  const WorkspaceLayout layout = LayOut(capacity);
  const uint32_t pitch = DataPitch(shape, capacity);
  const CallFootprint need = Footprint(shape, pitch);
  return {layout.nbytes,
          layout.flags_offset,
          layout.result_flags_offset,
          layout.data_offset,
          layout.data_offset + need.result_offset,
          capacity.tiles,
          need.tiles,
          need.data_bytes,
          Fits(need, capacity),
          pitch};
}

KernelParams ParamsOf(const Call& call, uint32_t rank, uint32_t hash, uint64_t timeout_ns,
                      const Addresses& at) {
  const Sizes sizes = SizesOf(call);
  KernelParams params = {};
  params.rows = call.rows;
  params.n = call.n;
  params.k = call.k;
  params.m_groups_per_band = call.m_groups_per_band;
  params.rank = rank;
  params.ranks = call.ranks;
  params.call = hash;
  params.data_pitch = sizes.data_pitch;
  params.output_type = call.float32_output ? OutputType::kFloat32 : OutputType::kElement;
  for (uint32_t r = 0; r < call.ranks; ++r) params.workspace[r].value = at.workspace[r];
  params.multicast_workspace.value = at.multicast_workspace;
  params.flags_offset = sizes.flags_offset;
  params.result_flags_offset = sizes.result_flags_offset;
  params.data_offset = sizes.data_offset;
  params.result_offset = sizes.result_offset;
  params.output = reinterpret_cast<void*>(at.output);
  params.output_pitch = call.n;
  params.axis_index = reinterpret_cast<const int32_t*>(at.axis_index);
  params.timeout_ns = timeout_ns;
  params.abort_word = reinterpret_cast<const uint32_t*>(at.abort_word);
  params.fault_record = reinterpret_cast<LaunchRecord*>(at.fault_record);
  return params;
}

template <typename Tile>
uint32_t VisitsOf(const KernelParams& params, TileId* tiles) {
  const TileOrder<Tile> order(params);
  for (uint32_t position = 0; tiles != nullptr && position < order.Count(); ++position) {
    for (uint32_t cta = 0; cta < Tile::kCluster; ++cta) {
      tiles[position * Tile::kCluster + cta] = order.Decode(position, cta);
    }
  }
  return order.Count() * Tile::kCluster;
}

uint64_t PartialOf(uint32_t reducer, const KernelParams& params, uint32_t source, uint32_t row,
                   uint32_t column) {
  return static_cast<Reducer>(reducer) == Reducer::kPush
             ? PartialAddress<Reducer::kPush>(params, source, row, column)
             : PartialAddress<Reducer::kPull>(params, source, row, column);
}

}  // namespace
}  // namespace jax_symm

using namespace jax_symm;

extern "C" {

uint64_t params_nbytes() { return sizeof(KernelParams); }

void sizes_of(const Call* call, Sizes* sizes) { *sizes = SizesOf(*call); }

void fill_params(const Call* call, uint32_t rank, uint32_t hash, uint64_t timeout_ns,
                 const Addresses* at, void* bytes) {
  const KernelParams params = ParamsOf(*call, rank, hash, timeout_ns, *at);
  std::memcpy(bytes, &params, sizeof(params));
}

/// Writes (m, n) of every tile in the order of visits; returns their number, 0 for unknown tiles.
uint32_t visits(const Call* call, uint32_t* tiles) {
  const uint64_t nowhere[kMaxRanks] = {};
  const KernelParams params = ParamsOf(*call, 0, 0, 0, {nowhere, 0, 0, 0, 0, 0});
  auto* ids = reinterpret_cast<TileId*>(tiles);
  const auto is = [&](uint32_t m, uint32_t n, uint32_t cluster) {
    return call->tile_m == m && call->tile_n == n && call->cluster == cluster;
  };
  if (is(64, 64, 1)) return VisitsOf<TestTile<64, 64, 1>>(params, ids);
  if (is(128, 128, 1)) return VisitsOf<TestTile<128, 128, 1>>(params, ids);
  if (is(128, 256, 1)) return VisitsOf<TestTile<128, 256, 1>>(params, ids);
  if (is(128, 256, 2)) return VisitsOf<TestTile<128, 256, 2>>(params, ids);
  return 0;
}

/// For every row: owner, row of the shard, address of `source`'s contribution at column 0, and
/// offset of the result at column 0.
void places(const Call* call, uint32_t source, const uint64_t* workspaces, uint64_t* owner,
            uint64_t* shard_row, uint64_t* partial, uint64_t* result) {
  const KernelParams params = ParamsOf(*call, source, 0, 0, {workspaces, 0, 0, 0, 0, 0});
  for (uint32_t row = 0; row < call->rows.TotalRows(); ++row) {
    owner[row] = call->rows.Owner(row);
    shard_row[row] = call->rows.ShardRow(row);
    partial[row] = PartialOf(call->reducer, params, source, row, 0);
    result[row] = ResultOffset(params, row, 0);
  }
}

int owns_any(const RowMap* rows, uint32_t rank, uint32_t begin, uint32_t end) {
  return rows->OwnsAny(rank, {begin, end});
}
int owns_all(const RowMap* rows, uint32_t rank, uint32_t begin, uint32_t end) {
  return rows->OwnsAll(rank, {begin, end});
}

uint64_t pack_verdict(uint32_t kind, uint32_t reporter, uint32_t blamed, uint64_t epoch) {
  return PackVerdict({static_cast<FaultKind>(kind), reporter, blamed, epoch});
}
void unpack_verdict(uint64_t word, uint64_t* fields) {
  const Verdict v = UnpackVerdict(word);
  fields[0] = static_cast<uint64_t>(v.kind);
  fields[1] = v.reporter;
  fields[2] = v.blamed;
  fields[3] = v.epoch;
}
}
