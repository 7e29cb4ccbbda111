#pragma once

#include <cstddef>
#include <cstdint>

namespace jax_symm {

/// What ranks may sum. The accumulator is always f32.
enum class ElementType : uint8_t { kBf16 = 0, kF16 = 1, kF32 = 2 };

inline constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

inline constexpr const char* ElementName(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return "bf16";
    case ElementType::kF16:
      return "f16";
    case ElementType::kF32:
      return "f32";
  }
  return "?";
}

}  // namespace jax_symm
