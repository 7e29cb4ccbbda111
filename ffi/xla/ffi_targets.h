// What Python registers with XLA. Only ffi/xla includes XLA's headers, so it leaves here as plain
// pointers.
#pragma once

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

}  // namespace jax_symm
