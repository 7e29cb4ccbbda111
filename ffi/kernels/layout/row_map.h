// Which rank owns which row of the product, and where an owned row lies in its owner's shard.
#pragma once

#include <cstdint>

#include "kernels/layout/host_device.h"

namespace jax_symm {

/// A half-open range of rows.
struct RowRange {
  uint32_t begin;
  uint32_t end;
};

/// A row by its batch and its place there, so that neighbours are found without divisions.
struct RowPosition {
  uint32_t batch;
  uint32_t row;
};

/// The product has batch * rows_per_batch rows; row i belongs to owner
/// (i mod rows_per_batch) / shard_rows. A shard is [batch, shard_rows, n], so the last owners may
/// have rows of padding, or nothing else. Dimensions between the scattered one and n are folded
/// into rows_per_batch and shard_rows alike. Every field is positive; batch * ranks * shard_rows
/// fits in 31 bits.
struct RowMap {
  uint32_t batch;
  uint32_t rows_per_batch;
  uint32_t shard_rows;

  JAX_SYMM_HOST_DEVICE constexpr uint32_t TotalRows() const { return batch * rows_per_batch; }

  /// Rows of every rank's shard, padding included.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t ShardRows() const { return batch * shard_rows; }

  JAX_SYMM_HOST_DEVICE constexpr uint32_t Owner(uint32_t row) const {
    return row % rows_per_batch / shard_rows;
  }

  /// The row of the owner's shard that `row` is.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t ShardRow(uint32_t row) const {
    return row / rows_per_batch * shard_rows + row % rows_per_batch % shard_rows;
  }

  JAX_SYMM_HOST_DEVICE constexpr RowPosition Locate(uint32_t row) const {
    return {row / rows_per_batch, row % rows_per_batch};
  }

  JAX_SYMM_HOST_DEVICE constexpr RowPosition Advance(RowPosition from, uint32_t rows) const {
    from.row += rows;
    while (from.row >= rows_per_batch) {
      from.row -= rows_per_batch;
      ++from.batch;
    }
    return from;
  }

  /// Rows of each batch that `rank` owns, counted from the start of its shard.
  JAX_SYMM_HOST_DEVICE constexpr uint32_t OwnedPerBatch(uint32_t rank) const {
    const uint32_t first = rank * shard_rows;
    if (first >= rows_per_batch) return 0;
    const uint32_t left = rows_per_batch - first;
    return left < shard_rows ? left : shard_rows;
  }

  JAX_SYMM_HOST_DEVICE constexpr bool OwnsAny(uint32_t rank, RowRange rows) const {
    const uint32_t owned = OwnedPerBatch(rank);
    if (owned == 0 || rows.begin >= rows.end) return false;
    const uint32_t first = rank * shard_rows;
    const uint32_t in_batch = rows.begin % rows_per_batch;
    uint32_t next = rows.begin - in_batch + first;
    if (in_batch >= first + owned) {
      next += rows_per_batch;
    } else if (in_batch > first) {
      next = rows.begin;
    }
    return next < rows.end;
  }

  JAX_SYMM_HOST_DEVICE constexpr bool OwnsAll(uint32_t rank, RowRange rows) const {
    const uint32_t owned = OwnedPerBatch(rank);
    if (owned == rows_per_batch) return true;
    const uint32_t first = rank * shard_rows;
    const uint32_t in_batch = rows.begin % rows_per_batch;
    return in_batch >= first && in_batch + (rows.end - rows.begin) <= first + owned;
  }
};

}  // namespace jax_symm
