// Symmetric memory on GPUs: the verbs of MemoryBackend on the driver's virtual memory management.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "driver/driver_api.h"
#include "memory/memory_backend.h"
#include "memory/primary_context.h"

namespace jax_symm {

/// Thread-safe. Every verb may be called from any thread.
class CudaBackend final : public MemoryBackend {
 public:
  static StatusOr<std::shared_ptr<CudaBackend>> Create(std::shared_ptr<const driver::Api> api);

  const char* name() const override { return "cuda"; }
  const driver::Api& api() const { return *api_; }
  std::shared_ptr<const driver::Api> shared_api() const { return api_; }

  StatusOr<uint64_t> Granularity(int device) const override;
  StatusOr<std::shared_ptr<Allocation>> Create(int device, uint64_t nbytes,
                                               HandleType type) override;
  StatusOr<std::shared_ptr<Allocation>> ImportFd(int device, int fd, uint64_t nbytes) override;
  StatusOr<std::shared_ptr<Allocation>> ImportFabric(int device, const std::string& handle,
                                                     uint64_t nbytes) override;
  StatusOr<std::shared_ptr<Mapping>> Map(std::shared_ptr<Allocation> allocation,
                                         std::span<const int> devices) override;
  Status Zero(int device, const Mapping& mapping, uint64_t offset, uint64_t nbytes) override;
  Status Synchronize(int device) override;
  StatusOr<DeviceFacts> Facts(int device) const override;
  StatusOr<bool> CanAccess(int device, int peer) const override;

  /// Free and total bytes of a device.
  StatusOr<std::pair<uint64_t, uint64_t>> MemoryInfo(int device);
  /// Copies between the host and memory that is mapped here. For tests and tables, not for speed.
  Status CopyToDevice(int device, uint64_t address, const void* host, uint64_t nbytes);
  Status CopyToHost(int device, void* host, uint64_t address, uint64_t nbytes);
  /// Makes, exports and imports a little fabric memory. The attribute promises it on hosts where
  /// the driver then refuses it for want of an IMEX channel.
  Status ProbeFabric(int device);

  StatusOr<uint64_t> MulticastGranularity(int num_devices) const override;
  StatusOr<std::shared_ptr<MulticastObject>> CreateMulticast(int num_devices, uint64_t nbytes,
                                                             HandleType type) override;
  StatusOr<std::shared_ptr<MulticastObject>> ImportMulticastFd(int fd, uint64_t nbytes) override;
  StatusOr<std::shared_ptr<MulticastObject>> ImportMulticastFabric(const std::string& handle,
                                                                   uint64_t nbytes) override;
  StatusOr<std::shared_ptr<MulticastBinding>> BindMulticast(
      std::shared_ptr<MulticastObject> object, uint64_t offset,
      std::shared_ptr<Allocation> allocation, std::chrono::nanoseconds deadline) override;
  StatusOr<std::shared_ptr<MulticastMapping>> MapMulticast(
      std::shared_ptr<MulticastObject> object, std::span<const int> devices,
      std::chrono::nanoseconds deadline) override;

 private:
  explicit CudaBackend(std::shared_ptr<const driver::Api> api) : api_(std::move(api)) {}
  Status CheckDevice(int device) const;
  StatusOr<driver::Context> ContextOf(int device);
  StatusOr<bool> Attribute(int device, driver::DeviceAttribute attribute) const;
  Status OutOfMemory(int device, uint64_t nbytes, const Status& cause);

  std::shared_ptr<const driver::Api> api_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PrimaryContext>> contexts_;
};

}  // namespace jax_symm
