// The two descriptors of tcgen05.mma (kind::f16): where an operand lies in shared memory, and
// what the instruction computes. Plain numbers, so that the host can test them.
//
// Source: PTX ISA 9.0, "Shared memory descriptor" and "Instruction descriptor" of tcgen05.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define JAX_SYMM_HOST_DEVICE __host__ __device__
#else
#define JAX_SYMM_HOST_DEVICE
#endif

namespace jax_symm {

/// Which index of an operand is contiguous in memory.
enum class UmmaMajor : uint32_t { kK = 0, kMn = 1 };

enum class UmmaFormat : uint32_t { kF16 = 0, kBf16 = 1 };

/// Values of k that one instruction of kind::f16 multiplies.
inline constexpr int kUmmaK = 16;

// Both operands lie as TMA writes them with the 128-byte swizzle: atoms of 8 rows of 128 bytes.
inline constexpr uint32_t kSwizzleSpanBytes = 128;
inline constexpr uint32_t kSwizzleAtomBytes = 8 * kSwizzleSpanBytes;

/// Descriptor of an operand at shared-memory address 0; add the address with UmmaAt.
/// kK: a row of the atom is one m or n index with 64 k values; atoms follow along m or n.
/// kMn: a row is one k index with 64 m or n values; atoms follow along k, and the next 64 values
/// of m or n begin `mn_block_bytes` later.
JAX_SYMM_HOST_DEVICE constexpr uint64_t UmmaSharedDescriptor(UmmaMajor major,
                                                             uint32_t mn_block_bytes) {
  constexpr uint64_t kBlackwellVersion = 1;
  constexpr uint64_t kSwizzle128B = 2;
  // Swizzled K-major operands ignore the leading offset; it is 1 by convention.
  const uint64_t leading = major == UmmaMajor::kK ? 1 : mn_block_bytes >> 4;
  const uint64_t stride = kSwizzleAtomBytes >> 4;
  return leading << 16 | stride << 32 | kBlackwellVersion << 46 | kSwizzle128B << 61;
}

/// `shared_address` is a byte address in the CTA's window, a multiple of 16. Only its low 18 bits
/// enter, which drops the CTA's rank in a cluster: the unit adds its own.
JAX_SYMM_HOST_DEVICE constexpr uint64_t UmmaAt(uint64_t descriptor, uint32_t shared_address) {
  return descriptor | (shared_address & 0x3ffff) >> 4;
}

/// What to add to a descriptor for the next 16 values of k.
JAX_SYMM_HOST_DEVICE constexpr uint64_t UmmaKStep(UmmaMajor major) {
  // kK: 16 values are 32 bytes of a row. kMn: 16 rows are two atoms.
  return (major == UmmaMajor::kK ? 32 : 2 * kSwizzleAtomBytes) >> 4;
}

/// D is f32 [m, n]; A is K-major; m counts the rows of both CTAs of a pair.
JAX_SYMM_HOST_DEVICE constexpr uint32_t UmmaInstruction(UmmaFormat format, UmmaMajor b_major,
                                                        uint32_t m, uint32_t n) {
  constexpr uint32_t kAccumulateF32 = 1;
  const uint32_t operand = static_cast<uint32_t>(format);
  return kAccumulateF32 << 4 | operand << 7 | operand << 10 | static_cast<uint32_t>(b_major) << 16 |
         (n >> 3) << 17 | (m >> 4) << 24;
}

}  // namespace jax_symm
