// Tensor maps (TMA descriptors) of the two operands.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "driver/driver_api.h"
#include "runtime/element_type.h"

namespace jax_symm {

/// A row-major matrix of 16-bit elements in global memory, read in boxes of box_rows x 64 columns
/// (128 bytes, swizzled). Elements outside of the matrix read as zero.
struct TiledMatrix {
  uint64_t address;  // 16-byte aligned
  uint64_t rows;
  uint64_t columns;  // a multiple of 8
  uint32_t box_rows;
  ElementType element;
};

Status EncodeTensorMap(const driver::Api& api, const TiledMatrix& matrix, driver::TensorMap* map);

}  // namespace jax_symm
