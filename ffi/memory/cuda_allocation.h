// Physical memory of one GPU: a driver handle, created here or imported.
#pragma once

#include <memory>
#include <string>

#include "driver/driver_api.h"
#include "memory/ledger.h"
#include "memory/memory_backend.h"

namespace jax_symm {

/// An owned driver handle, of memory or of a multicast object, with its exports.
class DriverHandle {
 public:
  DriverHandle(std::shared_ptr<const driver::Api> api, driver::MemHandle value, std::string what)
      : api_(std::move(api)), value_(value), what_(std::move(what)) {}
  ~DriverHandle();
  DriverHandle(const DriverHandle&) = delete;
  DriverHandle& operator=(const DriverHandle&) = delete;

  driver::MemHandle value() const { return value_; }
  const std::shared_ptr<const driver::Api>& api() const { return api_; }
  const std::string& what() const { return what_; }
  StatusOr<UniqueFd> ExportFd() const;
  StatusOr<std::string> ExportFabric() const;

 private:
  std::shared_ptr<const driver::Api> api_;
  driver::MemHandle value_;
  std::string what_;
};

int DriverHandleType(HandleType type);
StatusOr<driver::MemHandle> ImportDriverFd(const driver::Api& api, int fd, const std::string& what);
StatusOr<driver::MemHandle> ImportDriverFabric(const driver::Api& api, const std::string& handle,
                                               const std::string& what);
driver::AllocationProp PinnedOn(int device, HandleType type);

class CudaAllocation final : public Allocation {
 public:
  CudaAllocation(std::shared_ptr<const driver::Api> api, driver::MemHandle handle, int device,
                 uint64_t nbytes);
  static StatusOr<std::shared_ptr<Allocation>> Create(std::shared_ptr<const driver::Api> api,
                                                      int device, uint64_t nbytes, HandleType type);

  uint64_t nbytes() const override { return nbytes_; }
  StatusOr<UniqueFd> ExportFd() const override { return handle_.ExportFd(); }
  StatusOr<std::string> ExportFabric() const override { return handle_.ExportFabric(); }
  int device() const { return device_; }
  driver::MemHandle handle() const { return handle_.value(); }

 private:
  DriverHandle handle_;
  int device_;
  uint64_t nbytes_;
  LedgerEntry entry_{Resource::kAllocation};
};

}  // namespace jax_symm
