// The one order in which every rank visits the tiles of the product.
//
// Bands of m groups are visited one after the other, for L2; in a band n advances slowest and
// consecutive m groups belong to different owners, so that at any time all owners have work and
// no rank's links are flooded.
#pragma once

#include <cstdint>

#include "kernels/layout/host_device.h"
#include "kernels/layout/kernel_params.h"

namespace jax_symm {

inline constexpr uint32_t kNoMoreTiles = 0xffffffffu;

/// A tile of one CTA, in units of tiles.
struct TileId {
  uint32_t m;
  uint32_t n;
};

/// An m group is what the CTAs of one cluster compute together: kCluster tiles along m, one claim.
/// `Tile` has the constants kTileM, kTileN and kCluster.
template <typename Tile>
class TileOrder {
 public:
  static constexpr uint32_t kGroupRows = Tile::kTileM * Tile::kCluster;

  JAX_SYMM_HOST_DEVICE constexpr explicit TileOrder(const KernelParams& params)
      : m_groups_(CeilDiv(params.rows.TotalRows(), kGroupRows)),
        n_tiles_(CeilDiv(params.n, Tile::kTileN)),
        run_(RunLength(params.rows.shard_rows, m_groups_)),
        band_(params.m_groups_per_band) {}

  JAX_SYMM_HOST_DEVICE constexpr uint32_t Count() const { return m_groups_ * n_tiles_; }
  JAX_SYMM_HOST_DEVICE constexpr uint32_t NTiles() const { return n_tiles_; }
  JAX_SYMM_HOST_DEVICE constexpr uint32_t Bands() const { return CeilDiv(m_groups_, band_); }

  /// Number of m groups in a band; the last one may be short.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t BandGroups(uint32_t band) const {
    const uint32_t left = m_groups_ - band * band_;
    return left < band_ ? left : band_;
  }

  /// The index-th m group of a band.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t BandGroup(uint32_t band, uint32_t index) const {
    return Interleave(band * band_ + index);
  }

  /// What CTA `cta` of the cluster that claimed `position` computes.
  JAX_SYMM_HOST_DEVICE constexpr TileId Decode(uint32_t position, uint32_t cta) const {
    const uint32_t band = position / (band_ * n_tiles_);
    const uint32_t in_band = position - band * band_ * n_tiles_;
    const uint32_t groups = BandGroups(band);
    return {BandGroup(band, in_band % groups) * Tile::kCluster + cta, in_band / groups};
  }

  /// Index of a tile's flags.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t FlagTile(TileId tile) const {
    return tile.m * n_tiles_ + tile.n;
  }

 private:
  static JAX_SYMM_HOST_DEVICE constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
  }

  static JAX_SYMM_HOST_DEVICE constexpr uint32_t RunLength(uint32_t shard_rows, uint32_t groups) {
    const uint32_t run = (shard_rows + kGroupRows / 2) / kGroupRows;
    return run == 0 ? 1 : (run < groups ? run : groups);
  }

  /// Cuts the m groups into runs of about a shard and takes one of each run in turn. The last run
  /// may be short; once it is used up the others go on without it.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t Interleave(uint32_t index) const {
    const uint32_t full_runs = m_groups_ / run_;
    const uint32_t short_run = m_groups_ % run_;
    const uint32_t with_short = short_run * (full_runs + 1);
    if (index < with_short) {
      return index % (full_runs + 1) * run_ + index / (full_runs + 1);
    }
    const uint32_t rest = index - with_short;
    return rest % full_runs * run_ + short_run + rest / full_runs;
  }

  uint32_t m_groups_;
  uint32_t n_tiles_;
  uint32_t run_;
  uint32_t band_;
};

}  // namespace jax_symm
