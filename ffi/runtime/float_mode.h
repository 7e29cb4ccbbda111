// The floating-point control word of the calling thread. XLA's CPU threads flush denormals to zero;
// our sums keep them, whichever thread runs them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace jax_symm {

enum class FloatMode { kIeee, kFlushDenormals };

class ScopedFloatMode {
 public:
  explicit ScopedFloatMode(FloatMode mode) : saved_(Read()) {
    Write(mode == FloatMode::kIeee ? saved_ & ~kFlushBits : saved_ | kFlushBits);
  }
  ~ScopedFloatMode() { Write(saved_); }
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlushBits = 0x8040;  // MXCSR: FTZ and DAZ
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t bits) { _mm_setcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlushBits = uint64_t{1} << 24;  // FPCR: FZ
  static uint64_t Read() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void Write(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#else
#error "float_mode.h: this processor is not supported yet"
#endif

  const uint64_t saved_;
};

}  // namespace jax_symm
