#include "runtime/push_memory.h"

#include "base/checked_math.h"

namespace jax_symm {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWordRows = 3;  // done, slot_flag, result_flag

static_assert(sizeof(PushPad) % alignof(SignalWord) == 0, "signal words follow the pad");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace

StatusOr<PushLayout> PushLayout::Make(int world_size, uint64_t capacity_bytes, bool all_reduce) {
  if (world_size < 1) {
    return InvalidArgument("host workspace: world_size is ", world_size, ", expected at least 1");
  }
  const auto ranks = static_cast<uint64_t>(world_size);
  PushLayout layout;
  layout.world_size_ = world_size;
  JAX_SYMM_ASSIGN_OR_RETURN(
      layout.slots_offset_,
      CheckedRoundUp(sizeof(PushPad) + kWordRows * ranks * sizeof(SignalWord), kPageBytes));
  JAX_SYMM_ASSIGN_OR_RETURN(layout.slot_bytes_, CheckedRoundUp(CeilDiv(capacity_bytes, ranks), 64));
  JAX_SYMM_ASSIGN_OR_RETURN(const uint64_t slots_bytes, CheckedMul(ranks, layout.slot_bytes_));
  JAX_SYMM_ASSIGN_OR_RETURN(const uint64_t slots_end,
                            CheckedAdd(layout.slots_offset_, slots_bytes));
  JAX_SYMM_ASSIGN_OR_RETURN(layout.result_offset_, CheckedRoundUp(slots_end, kPageBytes));
  // The capacity counts operand bytes; a result in f32 of 16-bit operands takes twice as many.
  JAX_SYMM_ASSIGN_OR_RETURN(const uint64_t result_bytes,
                            CheckedMul(capacity_bytes, all_reduce ? 2 : 0));
  JAX_SYMM_ASSIGN_OR_RETURN(const uint64_t end, CheckedAdd(layout.result_offset_, result_bytes));
  JAX_SYMM_ASSIGN_OR_RETURN(layout.nbytes_, CheckedRoundUp(end, kPageBytes));
  return layout;
}

}  // namespace jax_symm
