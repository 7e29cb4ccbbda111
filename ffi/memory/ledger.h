// What this process holds of the driver, counted; and the quarantine for what may not be freed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace jax_symm {

enum class Resource {
  kAllocation,
  kReservation,
  kMapping,
  kMulticastObject,
  kMulticastBinding,
};
inline constexpr int kResourceCount = 5;

struct LedgerCounts {
  std::array<int64_t, kResourceCount> live{};
  /// Things that were given up: a driver call on them never returned, or their teardown failed.
  int64_t quarantined = 0;
  int64_t teardown_failures = 0;

  int64_t operator[](Resource resource) const { return live[static_cast<int>(resource)]; }
};

LedgerCounts ReadLedger();

/// Counts one driver object for as long as it exists. A member of whatever owns that object.
class LedgerEntry {
 public:
  explicit LedgerEntry(Resource resource);
  ~LedgerEntry();
  LedgerEntry(const LedgerEntry&) = delete;
  LedgerEntry& operator=(const LedgerEntry&) = delete;

 private:
  Resource resource_;
};

using Kept = std::vector<std::shared_ptr<const void>>;

/// Keeps `kept` alive until the process ends, and says why once.
void Quarantine(const std::string& why, Kept kept) noexcept;

/// Takes over what a finaliser lets go of: unmapping may wait for work on the device, and that work
/// for whoever the finaliser interrupted. ReleaseAbandoned frees it at a moment that is safe.
void Abandon(std::shared_ptr<const void> object) noexcept;
int64_t AbandonedCount();
void ReleaseAbandoned();

/// For deleters, which cannot return: logs a failure and counts it.
void ReportTeardown(const Status& status) noexcept;

}  // namespace jax_symm
