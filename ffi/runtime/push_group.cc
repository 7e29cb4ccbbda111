#include "runtime/push_group.h"

#include <utility>

namespace jax_symm {

StatusOr<std::shared_ptr<HostGroup>> PushGroup::Start(
    std::map<int, std::shared_ptr<PushRank>> locals) {
  std::shared_ptr<HostGroup> group(new PushGroup(locals));
  for (const auto& [rank, local] : locals) {
    JAX_SYMM_RETURN_IF_ERROR(local->Start());
  }
  return group;
}

PushGroup::PushGroup(std::map<int, std::shared_ptr<PushRank>> locals)
    : locals_(std::move(locals)) {}

PushGroup::~PushGroup() {
  for (const auto& [rank, local] : locals_) local->Stop();
}

void PushGroup::Arrive(int rank, HostCall call, const Scheduler& /*schedule*/) {
  locals_.at(rank)->Arrive(std::move(call));
}

void PushGroup::Raise(const Status& fault) { locals_.begin()->second->Raise(fault); }

void PushGroup::ExpireAt(Clock::time_point /*now*/) {}

}  // namespace jax_symm
