#pragma once

#include "memory/memory_backend.h"
#include "python/bind.h"

namespace jax_symm {

using AllocationHolder = Holder<Allocation>;
using MappingHolder = Holder<Mapping>;
using BackendHolder = Holder<MemoryBackend>;

/// Allocation, Mapping, MemoryBackend and the multicast objects.
void BindMemory(nanobind::module_& m);
/// cuda_backend(), copies for tests, the ledger.
void BindCudaMemory(nanobind::module_& m);

}  // namespace jax_symm
