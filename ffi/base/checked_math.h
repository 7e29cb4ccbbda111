// Sizes that come from a user are multiplied and rounded here, so that an overflow is an error
// and never a small allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace jax_symm {

inline StatusOr<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    return InvalidArgument("size overflow: ", a, " * ", b, " does not fit in 64 bits");
  }
  return product;
}

inline StatusOr<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    return InvalidArgument("size overflow: ", a, " + ", b, " does not fit in 64 bits");
  }
  return sum;
}

inline constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/// The least multiple of `granularity` that is not less than `value`.
inline StatusOr<uint64_t> CheckedRoundUp(uint64_t value, uint64_t granularity) {
  if (granularity == 0) return InvalidArgument("granularity is 0, so no size can be rounded to it");
  return CheckedMul(CeilDiv(value, granularity), granularity);
}

}  // namespace jax_symm
