// What the handlers of every platform share: XLA's words for our values, the attributes of a call,
// and its two targets. Included by the handlers alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "runtime/element_type.h"
#include "xla/ffi/api/ffi.h"
#include "xla/ffi_targets.h"

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

/// A number for a call site that this process has instantiated. Never used again: the address of
/// its state may be.
inline int64_t NextCallSite() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

/// The attributes that a call has on every platform, in the order of Instantiate's parameters.
inline auto BindCallAttributes() {
  return xla::ffi::Ffi::BindInstantiate()
      .Attr<std::string_view>("workspace")
      .Attr<int64_t>("call_site")
      .Attr<int64_t>("axis_size")
      .Attr<int64_t>("batch")
      .Attr<int64_t>("rows")
      .Attr<int64_t>("shard_rows")
      .Attr<int64_t>("n")
      .Attr<int64_t>("k");
}

/// Both operations are executed by one handler; their instantiation tells them apart. No handler
/// has the trait of command buffers: a launch follows an event of the one before it, which a
/// captured stream must not.
inline std::vector<FfiTarget> FfiTargets(XLA_FFI_Handler* instantiate_reduce_scatter,
                                         XLA_FFI_Handler* instantiate_all_reduce,
                                         XLA_FFI_Handler* execute) {
  return {{"jax_symm.gemm_reduce_scatter.v1", reinterpret_cast<void*>(instantiate_reduce_scatter),
           reinterpret_cast<void*>(execute)},
          {"jax_symm.gemm_all_reduce.v1", reinterpret_cast<void*>(instantiate_all_reduce),
           reinterpret_cast<void*>(execute)}};
}

}  // namespace jax_symm
