// Multicast objects, their mapping and their bindings: one driver object, one deleter each.
#pragma once

#include <memory>

#include "memory/cuda_allocation.h"
#include "memory/mapped_range.h"

namespace jax_symm {

class CudaMulticastObject final : public MulticastObject {
 public:
  CudaMulticastObject(std::shared_ptr<const driver::Api> api, driver::MemHandle handle,
                      uint64_t nbytes);
  static StatusOr<std::shared_ptr<MulticastObject>> Create(std::shared_ptr<const driver::Api> api,
                                                           int num_devices, uint64_t nbytes,
                                                           HandleType type);

  uint64_t nbytes() const override { return nbytes_; }
  StatusOr<UniqueFd> ExportFd() const override { return handle_.ExportFd(); }
  StatusOr<std::string> ExportFabric() const override { return handle_.ExportFabric(); }
  Status AddDevice(int device) override;
  driver::MemHandle handle() const { return handle_.value(); }
  const std::shared_ptr<const driver::Api>& api() const { return handle_.api(); }

 private:
  DriverHandle handle_;
  uint64_t nbytes_;
  LedgerEntry entry_{Resource::kMulticastObject};
};

/// Owns the memory and the object, so neither can go before it has unbound.
class CudaMulticastBinding final : public MulticastBinding {
 public:
  static StatusOr<std::shared_ptr<MulticastBinding>> Create(
      std::shared_ptr<CudaMulticastObject> object, uint64_t offset,
      std::shared_ptr<CudaAllocation> allocation);
  ~CudaMulticastBinding() override;

 private:
  CudaMulticastBinding(std::shared_ptr<CudaMulticastObject> object, uint64_t offset,
                       std::shared_ptr<CudaAllocation> allocation);

  std::shared_ptr<CudaMulticastObject> object_;
  uint64_t offset_;
  std::shared_ptr<CudaAllocation> allocation_;
  LedgerEntry entry_{Resource::kMulticastBinding};
};

class CudaMulticastMapping final : public MulticastMapping {
 public:
  explicit CudaMulticastMapping(std::unique_ptr<MappedRange> range) : range_(std::move(range)) {}
  MulticastAddress address() const override { return {range_->address()}; }
  uint64_t nbytes() const override { return range_->nbytes(); }

 private:
  std::unique_ptr<MappedRange> range_;
};

}  // namespace jax_symm
