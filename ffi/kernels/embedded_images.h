// The compiled kernels, as data in the library.
#pragma once

#include <span>
#include <string_view>

namespace jax_symm {

struct EmbeddedImage {
  std::string_view name;  // "sm90_bf16_kn_128x256x2"
  const void* image;      // carries its own length
};

/// Empty in a build without kernels.
std::span<const EmbeddedImage> EmbeddedImages();

}  // namespace jax_symm
