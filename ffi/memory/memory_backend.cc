#include "memory/memory_backend.h"

namespace jax_symm {
namespace {

Status NoMulticast(const char* name) {
  return Unimplemented("memory of the ", name, " backend has no multicast");
}

}  // namespace

StatusOr<DeviceFacts> MemoryBackend::Facts(int device) const {
  return DeviceFacts{.uuid = StrCat(name(), ":", device), .posix_fd = true};
}
StatusOr<bool> MemoryBackend::CanAccess(int, int) const { return true; }
StatusOr<uint64_t> MemoryBackend::MulticastGranularity(int) const { return NoMulticast(name()); }
StatusOr<std::shared_ptr<MulticastObject>> MemoryBackend::CreateMulticast(int, uint64_t,
                                                                          HandleType) {
  return NoMulticast(name());
}
StatusOr<std::shared_ptr<MulticastObject>> MemoryBackend::ImportMulticastFd(int, uint64_t) {
  return NoMulticast(name());
}
StatusOr<std::shared_ptr<MulticastObject>> MemoryBackend::ImportMulticastFabric(const std::string&,
                                                                                uint64_t) {
  return NoMulticast(name());
}
StatusOr<std::shared_ptr<MulticastBinding>> MemoryBackend::BindMulticast(
    std::shared_ptr<MulticastObject>, uint64_t, std::shared_ptr<Allocation>,
    std::chrono::nanoseconds) {
  return NoMulticast(name());
}
StatusOr<std::shared_ptr<MulticastMapping>> MemoryBackend::MapMulticast(
    std::shared_ptr<MulticastObject>, std::span<const int>, std::chrono::nanoseconds) {
  return NoMulticast(name());
}

}  // namespace jax_symm
