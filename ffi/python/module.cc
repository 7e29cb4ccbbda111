// The extension module jax_symm._jax_symm. Importing it starts no thread and touches no device.
#include "python/bindings.h"

NB_MODULE(_jax_symm, module) {
  module.doc() = "Native half of jax_symm.";
  jax_symm::BindErrors(module);
  jax_symm::BindMemory(module);
  jax_symm::BindCudaMemory(module);
  jax_symm::BindRuntime(module);
  jax_symm::BindCudaRuntime(module);
}
