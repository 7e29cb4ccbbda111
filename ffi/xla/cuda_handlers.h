// The FFI targets of the CUDA paths.
#pragma once

#include <vector>

#include "xla/ffi_targets.h"

namespace jax_symm {

std::vector<FfiTarget> CudaFfiTargets();
/// Must be registered before the targets, whose state they are.
std::vector<FfiType> CudaFfiTypes();

}  // namespace jax_symm
