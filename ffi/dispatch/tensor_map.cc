#include "dispatch/tensor_map.h"

namespace jax_symm {

Status EncodeTensorMap(const driver::Api& api, const TiledMatrix& matrix, driver::TensorMap* map) {
  constexpr uint32_t kBoxColumns = 64;
  constexpr uint64_t kElementBytes = 2;
  const int type =
      matrix.element == ElementType::kBf16 ? driver::kTensorBfloat16 : driver::kTensorFloat16;
  const uint64_t dims[] = {matrix.columns, matrix.rows};
  const uint64_t strides_bytes[] = {matrix.columns * kElementBytes};
  const uint32_t box[] = {kBoxColumns, matrix.box_rows};
  const uint32_t element_strides[] = {1, 1};
  return driver::Call(
      api, api.cuTensorMapEncodeTiled,
      StrCat("for a ", matrix.rows, " x ", matrix.columns, " operand at ", matrix.address), map,
      type, uint32_t{2}, reinterpret_cast<void*>(matrix.address), dims, strides_bytes, box,
      element_strides, /*interleave=*/0, driver::kTensorSwizzle128B, driver::kTensorPromotion256B,
      /*out_of_bounds=*/0);
}

}  // namespace jax_symm
