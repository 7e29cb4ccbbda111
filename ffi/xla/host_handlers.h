// The FFI targets of the host path. Only ffi/xla includes XLA's headers, so what Python registers
// leaves here as plain pointers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jax_symm {

struct FfiTarget {
  const char* name;
  void* instantiate;
  void* execute;
};

struct FfiType {
  const char* name;
  void* type_id;
  void* type_info;
};

std::vector<FfiTarget> HostFfiTargets();
/// Told by the lowering rules: the call sites with this tag that are instantiated from now on
/// belong to another executable than those before.
void RestartInstances(const std::string& workspace, int64_t call_site);

/// Must be registered before the targets, whose state they are.
std::vector<FfiType> HostFfiTypes();

}  // namespace jax_symm
