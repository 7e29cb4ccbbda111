// A driver handle (memory or a multicast object) mapped whole, at offset 0, into a range of its
// own.
#pragma once

#include <memory>
#include <span>

#include "memory/reservation.h"

namespace jax_symm {

class MappedRange {
 public:
  /// Reserves, maps and grants `devices` read-write access. `owner` owns `handle`, and lives at
  /// least as long as the mapping.
  static StatusOr<std::unique_ptr<MappedRange>> Create(std::shared_ptr<const driver::Api> api,
                                                       driver::MemHandle handle, uint64_t nbytes,
                                                       uint64_t alignment,
                                                       std::shared_ptr<const void> owner,
                                                       std::span<const int> devices);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  driver::DevicePtr address() const { return reservation_->address(); }
  uint64_t nbytes() const { return reservation_->nbytes(); }

 private:
  MappedRange(std::shared_ptr<const driver::Api> api, std::shared_ptr<Reservation> reservation,
              std::shared_ptr<const void> owner);
  Status Allow(std::span<const int> devices);

  std::shared_ptr<const driver::Api> api_;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<Reservation> reservation_;
  LedgerEntry entry_{Resource::kMapping};
};

}  // namespace jax_symm
