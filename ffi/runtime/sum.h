// The arithmetic of every host collective: partials summed in f32 in the order of the sources,
// rounded once to nearest-even. The result does not depend on the thread that runs it.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/element_type.h"

namespace jax_symm {

struct SumArgs {
  std::span<const void* const> sources;  // at least one
  std::span<void* const> outputs;        // each gets the same sum
  int64_t source_offset = 0;             // in elements, as are the next two
  int64_t output_offset = 0;
  int64_t count = 0;
  ElementType in = ElementType::kBf16;
  ElementType out = ElementType::kBf16;
  /// Write around the cache: for outputs larger than it.
  bool stream = false;
};

/// `out` is `in` or f32.
bool CanSum(ElementType in, ElementType out);

/// @pre CanSum(args.in, args.out)
void Sum(const SumArgs& args);

}  // namespace jax_symm
