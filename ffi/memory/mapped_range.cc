#include "memory/mapped_range.h"

#include <vector>

namespace jax_symm {

StatusOr<std::unique_ptr<MappedRange>> MappedRange::Create(std::shared_ptr<const driver::Api> api,
                                                           driver::MemHandle handle,
                                                           uint64_t nbytes, uint64_t alignment,
                                                           std::shared_ptr<const void> owner,
                                                           std::span<const int> devices) {
  JAX_SYMM_ASSIGN_OR_RETURN(auto reservation, Reservation::Create(api, nbytes, alignment));
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api, api->cuMemMap, StrCat("mapping ", nbytes, " bytes"),
                                        reservation->address(), nbytes, size_t{0}, handle, 0ULL));
  std::unique_ptr<MappedRange> range(
      new MappedRange(std::move(api), std::move(reservation), std::move(owner)));
  JAX_SYMM_RETURN_IF_ERROR(range->Allow(devices));
  return range;
}

MappedRange::MappedRange(std::shared_ptr<const driver::Api> api,
                         std::shared_ptr<Reservation> reservation,
                         std::shared_ptr<const void> owner)
    : api_(std::move(api)), owner_(std::move(owner)), reservation_(std::move(reservation)) {}

Status MappedRange::Allow(std::span<const int> devices) {
  std::vector<driver::AccessDesc> access;
  for (int device : devices) {
    access.push_back({{driver::kLocationDevice, device}, driver::kAccessReadWrite});
  }
  return driver::Call(
      *api_, api_->cuMemSetAccess,
      StrCat("granting ", devices.size(), " device(s) access to ", nbytes(), " bytes"), address(),
      nbytes(), access.data(), access.size());
}

MappedRange::~MappedRange() {
  if (!api_->Usable()) return;
  const Status unmapped = driver::Call(
      *api_, api_->cuMemUnmap, StrCat("unmapping ", nbytes(), " bytes"), address(), nbytes());
  if (unmapped.ok()) return;
  // Still mapped: neither the range nor what it maps may be given back.
  ReportTeardown(unmapped);
  Quarantine("a range that could not be unmapped", {std::move(reservation_), std::move(owner_)});
}

}  // namespace jax_symm
