// The tile shapes that SM100 kernels are built for: the one list that kernels and dispatch share.
#pragma once

#include "kernels/epilogue/sm100_staging_bytes.h"
#include "kernels/layout/workspace_layout.h"
#include "kernels/mainloop/sm100_tile.h"

// X(tile_m, tile_n, cluster)
#define JAX_SYMM_SM100_SHAPES(X) \
  X(128, 128, 1)                 \
  X(128, 128, 2)                 \
  X(128, 256, 2)

namespace jax_symm {

/// Push stages what it sends; the others store from registers and give the room to the ring.
template <typename Element, WeightLayout kWeights, int kTileN, int kCluster, Reducer kReducer>
using Sm100ReducerTile = Sm100Tile<Element, kWeights, kTileN, kCluster,
                                   kReducer == Reducer::kPush ? kSm100StagingBytes : 0>;

}  // namespace jax_symm
