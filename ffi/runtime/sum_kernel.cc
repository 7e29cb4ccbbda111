// Compiled once per instruction set with JAX_SYMM_SUM_TABLE set to the name of its table. Written
// in the compiler's vector types of 64 bytes; each instruction set splits them as it must.
#include "runtime/sum_kernel.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace jax_symm {
namespace {

constexpr int kStep = 32;  // elements that one step of the loop sums
using F32x16 = float __attribute__((vector_size(64)));
using U32x16 = uint32_t __attribute__((vector_size(64)));
using F16x16 = _Float16 __attribute__((vector_size(32)));

/// kStep values in f32. Which lane holds which element is up to the input type.
struct Accumulator {
  F32x16 first;
  F32x16 second;
};

template <typename Vector>
inline Vector Load(const void* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

/// Writes around the cache when asked to: a result that is larger than the cache would otherwise
/// be read before it is overwritten.
template <typename Vector>
inline void Store(void* to, Vector value, bool stream) {
#if defined(__AVX__)
  if (stream) {
    __m256i halves[sizeof(value) / 32];
    __builtin_memcpy(halves, &value, sizeof(value));
    for (size_t i = 0; i < sizeof(value) / 32; ++i) {
      _mm256_stream_si256(static_cast<__m256i*>(to) + i, halves[i]);
    }
    return;
  }
#endif
  (void)stream;
  __builtin_memcpy(to, &value, sizeof(value));
}

/// To nearest, ties to even; in the upper 16 bits of each lane. A NaN stays one (the carry could
/// turn its mantissa into infinity).
inline U32x16 RoundToBf16(F32x16 value) {
  const U32x16 bits = reinterpret_cast<U32x16>(value);
  return value != value ? bits | 0x400000 : bits + 0x7FFF + ((bits >> 16) & 1);
}

/// Elements 2i in `first`, 2i + 1 in `second`: one 64-byte load is split by a shift and a mask,
/// without a permutation.
struct Bf16 {
  using Scalar = uint16_t;
  static Accumulator Widen(const Scalar* from) {
    const U32x16 pairs = Load<U32x16>(from);
    return {reinterpret_cast<F32x16>(pairs << 16), reinterpret_cast<F32x16>(pairs & 0xFFFF0000)};
  }
  static void Narrow(uint16_t* to, const Accumulator& sum, bool stream) {
    const U32x16 even = RoundToBf16(sum.first) >> 16;
    const U32x16 odd = RoundToBf16(sum.second) & 0xFFFF0000;
    Store(to, even | odd, stream);
  }
  static void Narrow(float* to, const Accumulator& sum, bool stream) {
    Store(to,
          __builtin_shufflevector(sum.first, sum.second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                  6, 22, 7, 23),
          stream);
    Store(to + 16,
          __builtin_shufflevector(sum.first, sum.second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                  29, 14, 30, 15, 31),
          stream);
  }
};

/// Elements 0..15 in `first`, 16..31 in `second`.
struct F32 {
  using Scalar = float;
  static Accumulator Widen(const Scalar* from) {
    return {Load<F32x16>(from), Load<F32x16>(from + 16)};
  }
  static void Narrow(float* to, const Accumulator& sum, bool stream) {
    Store(to, sum.first, stream);
    Store(to + 16, sum.second, stream);
  }
};

struct F16 {
  using Scalar = _Float16;
  static Accumulator Widen(const Scalar* from) { return {WidenHalf(from), WidenHalf(from + 16)}; }
  static void Narrow(_Float16* to, const Accumulator& sum, bool stream) {
    Store(to, NarrowHalf(sum.first), stream);
    Store(to + 16, NarrowHalf(sum.second), stream);
  }
  static void Narrow(float* to, const Accumulator& sum, bool stream) {
    F32::Narrow(to, sum, stream);
  }

 private:
#if defined(__F16C__)
  static F32x16 WidenHalf(const Scalar* from) {
    const __m256 parts[2] = {_mm256_cvtph_ps(Load<__m128i>(from)),
                             _mm256_cvtph_ps(Load<__m128i>(from + 8))};
    return Load<F32x16>(parts);
  }
  static F16x16 NarrowHalf(F32x16 value) {
    __m256 parts[2];
    __builtin_memcpy(parts, &value, sizeof(value));
    const __m128i narrow[2] = {_mm256_cvtps_ph(parts[0], _MM_FROUND_TO_NEAREST_INT),
                               _mm256_cvtps_ph(parts[1], _MM_FROUND_TO_NEAREST_INT)};
    return Load<F16x16>(narrow);
  }
#else
  static F32x16 WidenHalf(const Scalar* from) {
    return __builtin_convertvector(Load<F16x16>(from), F32x16);
  }
  static F16x16 NarrowHalf(F32x16 value) { return __builtin_convertvector(value, F16x16); }
#endif
};

/// The sum of kStep elements of every source, in the order of the sources.
template <typename In>
inline Accumulator SumStep(const SumKernelArgs& args, int64_t at) {
  auto widen = [&](size_t r) {
    const auto* source = static_cast<const typename In::Scalar*>(args.sources[r]);
    return In::Widen(source + args.source_offset + at);
  };
  Accumulator sum = widen(0);
  for (size_t r = 1; r < args.num_sources; ++r) {
    const Accumulator addend = widen(r);
    sum.first += addend.first;
    sum.second += addend.second;
  }
  return sum;
}

/// The last count % kStep elements, by way of buffers that are padded with zeros.
template <typename In, typename OutScalar>
void SumTail(const SumKernelArgs& args, int64_t at) {
  const size_t rest = static_cast<size_t>(args.count - at);
  Accumulator sum = {};
  for (size_t r = 0; r < args.num_sources; ++r) {
    typename In::Scalar padded[kStep] = {};
    const auto* source = static_cast<const typename In::Scalar*>(args.sources[r]);
    __builtin_memcpy(padded, source + args.source_offset + at, rest * sizeof(padded[0]));
    const Accumulator addend = In::Widen(padded);
    sum.first = r == 0 ? addend.first : sum.first + addend.first;
    sum.second = r == 0 ? addend.second : sum.second + addend.second;
  }
  OutScalar narrow[kStep];
  In::Narrow(narrow, sum, false);
  for (size_t i = 0; i < args.num_outputs; ++i) {
    auto* output = static_cast<OutScalar*>(args.outputs[i]);
    __builtin_memcpy(output + args.output_offset + at, narrow, rest * sizeof(narrow[0]));
  }
}

template <typename OutScalar>
bool CanStream(const SumKernelArgs& args) {
  if (!args.stream) return false;
  for (size_t i = 0; i < args.num_outputs; ++i) {
    const auto* output = static_cast<const OutScalar*>(args.outputs[i]) + args.output_offset;
    if (reinterpret_cast<uintptr_t>(output) % 32 != 0) return false;
  }
  return true;
}

template <typename In, typename OutScalar>
void Sum(const SumKernelArgs& args) {
  const bool stream = CanStream<OutScalar>(args);
  int64_t at = 0;
  for (; at + kStep <= args.count; at += kStep) {
    const Accumulator sum = SumStep<In>(args, at);
    for (size_t i = 0; i < args.num_outputs; ++i) {
      In::Narrow(static_cast<OutScalar*>(args.outputs[i]) + args.output_offset + at, sum, stream);
    }
  }
  if (at < args.count) SumTail<In, OutScalar>(args, at);
#if defined(__AVX__)
  if (stream) _mm_sfence();
#endif
}

}  // namespace

extern const SumKernelTable JAX_SYMM_SUM_TABLE;
const SumKernelTable JAX_SYMM_SUM_TABLE = {{
    {Sum<Bf16, uint16_t>, nullptr, Sum<Bf16, float>},
    {nullptr, Sum<F16, _Float16>, Sum<F16, float>},
    {nullptr, nullptr, Sum<F32, float>},
}};

}  // namespace jax_symm
