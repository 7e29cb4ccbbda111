// The FFI targets of the host path. Only ffi/xla includes XLA's headers, so what Python registers
// leaves here as plain pointers.
#pragma once

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
/// Told by the lowering rules at each call: call sites that are instantiated on the two sides of a
/// lowering belong to different executables.
void NoteLowering();

/// Must be registered before the targets, whose state they are.
std::vector<FfiType> HostFfiTypes();

}  // namespace jax_symm
