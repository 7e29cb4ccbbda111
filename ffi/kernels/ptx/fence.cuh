// Fences between proxies: ways of reaching one memory that hardware does not keep in order.
#pragma once

namespace jax_symm::ptx {

/// fence.proxy.alias (PTX ISA 7.5, sm_70): orders this thread's earlier accesses, and those it has
/// synchronised with, before its later ones where the two reach the same memory by different
/// addresses, as unicast and multicast mappings do.
__device__ __forceinline__ void FenceProxyAlias() {
  asm volatile("fence.proxy.alias;" ::: "memory");
}

}  // namespace jax_symm::ptx
