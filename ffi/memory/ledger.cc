#include "memory/ledger.h"

#include <atomic>
#include <mutex>

#include "base/log.h"

namespace jax_symm {
namespace {

struct Books {
  std::array<std::atomic<int64_t>, kResourceCount> live{};
  std::atomic<int64_t> quarantined{0};
  std::atomic<int64_t> teardown_failures{0};
  std::mutex mutex;
  std::vector<Kept> quarantine;
  Kept abandoned;
};

// Never destroyed: a stuck driver call may still hold references when static objects go.
Books& TheBooks() {
  static Books* books = new Books;
  return *books;
}

}  // namespace

LedgerCounts ReadLedger() {
  Books& books = TheBooks();
  LedgerCounts counts;
  for (int i = 0; i < kResourceCount; ++i) counts.live[i] = books.live[i].load();
  counts.quarantined = books.quarantined.load();
  counts.teardown_failures = books.teardown_failures.load();
  return counts;
}

LedgerEntry::LedgerEntry(Resource resource) : resource_(resource) {
  ++TheBooks().live[static_cast<int>(resource_)];
}

LedgerEntry::~LedgerEntry() { --TheBooks().live[static_cast<int>(resource_)]; }

void Quarantine(const std::string& why, Kept kept) noexcept {
  Books& books = TheBooks();
  ++books.quarantined;
  {
    std::lock_guard lock(books.mutex);
    books.quarantine.push_back(std::move(kept));
  }
  Log(LogLevel::kWarning, StrCat(why, "; it is kept until the process ends"));
}

void Abandon(std::shared_ptr<const void> object) noexcept {
  Books& books = TheBooks();
  std::lock_guard lock(books.mutex);
  books.abandoned.push_back(std::move(object));
}

int64_t AbandonedCount() {
  Books& books = TheBooks();
  std::lock_guard lock(books.mutex);
  return static_cast<int64_t>(books.abandoned.size());
}

void ReleaseAbandoned() {
  Books& books = TheBooks();
  Kept released;
  {
    std::lock_guard lock(books.mutex);
    released.swap(books.abandoned);
  }
}

void ReportTeardown(const Status& status) noexcept {
  if (status.ok()) return;
  ++TheBooks().teardown_failures;
  Log(LogLevel::kWarning, status.message());
}

}  // namespace jax_symm
