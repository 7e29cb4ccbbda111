#include "runtime/fault_record.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace jax_symm {

void FaultRecord::Write(const Status& fault) {
  uint32_t empty = kEmpty;
  if (!state_.compare_exchange_strong(empty, kWriting)) return;
  const std::string& text = fault.message();
  code_ = static_cast<uint32_t>(fault.code());
  text_bytes_ = static_cast<uint32_t>(std::min<size_t>(text.size(), kTextBytes));
  std::memcpy(text_, text.data(), text_bytes_);
  state_.store(kWritten, std::memory_order_release);
}

Status FaultRecord::Read() const {
  using std::chrono::milliseconds;
  for (int tries = 0; tries < 1000; ++tries) {
    // Pairs with the release in Write.
    if (state_.load(std::memory_order_acquire) == kWritten) {
      const uint32_t bytes = std::min(text_bytes_, kTextBytes);
      return Status(static_cast<StatusCode>(code_), std::string(text_, bytes));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return Status(StatusCode::kAborted,
                "a rank of the group was lost while it recorded a fault; close the workspace and "
                "open another over the ranks that are left");
}

}  // namespace jax_symm
