// XLA's words for our values; what the handlers of every platform share.
#pragma once

#include "base/status.h"
#include "runtime/element_type.h"
#include "xla/ffi/api/ffi.h"

namespace jax_symm {

inline xla::ffi::Error ToFfiError(const Status& status) {
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(status.code()), status.message());
}

inline StatusOr<ElementType> ToElementType(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::BF16:
      return ElementType::kBf16;
    case xla::ffi::DataType::F16:
      return ElementType::kF16;
    case xla::ffi::DataType::F32:
      return ElementType::kF32;
    default:
      return InvalidArgument("element type ", static_cast<int>(type),
                             " (XLA's number) is not supported; expected bf16, f16 or f32");
  }
}

}  // namespace jax_symm
