// Memory order of a weight: [k, n] as JAX writes it, or [n, k] as torch does.
#pragma once

namespace jax_symm {

enum class WeightLayout : int { kKN = 0, kNK = 1 };

}  // namespace jax_symm
