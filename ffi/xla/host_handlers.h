// The FFI targets of the host path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xla/ffi_targets.h"

namespace jax_symm {

std::vector<FfiTarget> HostFfiTargets();
/// Must be registered before the targets, whose state they are.
std::vector<FfiType> HostFfiTypes();

/// Told by the lowering rules: the call sites with this tag that are instantiated from now on
/// belong to another executable than those before.
void RestartInstances(const std::string& workspace, int64_t call_site);

}  // namespace jax_symm
