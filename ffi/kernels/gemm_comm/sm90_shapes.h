// The tile shapes that SM90 kernels are built for: the one list that kernels and dispatch share.
#pragma once

#include "kernels/mainloop/sm90_tile.h"

// X(tile_m, tile_n, stages, cluster). Of shapes that the model finds equal the first is taken:
// a pair of 128x256 CTAs was as fast as one or up to 4 % faster (docs/design/sm90.md).
#define JAX_SYMM_SM90_SHAPES(X) \
  X(128, 256, 4, 2)             \
  X(128, 256, 4, 1)             \
  X(128, 128, 6, 2)             \
  X(128, 128, 6, 1)             \
  X(64, 128, 7, 1)
