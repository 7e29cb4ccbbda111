#include "runtime/host_workspace.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "base/checked_math.h"
#include "runtime/local_group.h"
#include "runtime/program_check.h"
#include "runtime/push_group.h"
#include "runtime/thread.h"

namespace jax_symm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

int64_t NextGeneration() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

Status CheckOptions(const HostWorkspaceOptions& options) {
  if (options.timeout <= nanoseconds(0)) {
    return InvalidArgument("workspace '", options.name, "': timeout is ", options.timeout.count(),
                           " ns, expected more than 0");
  }
  if (options.locals.empty()) {
    return InvalidArgument("workspace '", options.name, "' has no device in this process");
  }
  const auto groups = static_cast<int>(options.rank_labels.size());
  const auto world_size = static_cast<size_t>(options.world_size);
  for (const auto& labels : options.rank_labels) {
    if (labels.size() == world_size) continue;
    return InvalidArgument("workspace '", options.name, "': a group has ", labels.size(),
                           " rank labels, expected world_size ", options.world_size);
  }
  std::set<std::pair<int, int>> seen;
  for (const LocalRank& local : options.locals) {
    if (!seen.emplace(local.group, local.rank).second) {
      return InvalidArgument("workspace '", options.name, "': rank ", local.rank, " of group ",
                             local.group, " is listed twice");
    }
    if (local.group < 0 || local.group >= groups || local.rank < 0 ||
        local.rank >= options.world_size) {
      return InvalidArgument("workspace '", options.name, "': device ", local.device_ordinal,
                             " is rank ", local.rank, " of group ", local.group,
                             ", expected one of ", options.world_size, " ranks of ", groups,
                             " groups");
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<uint64_t> HostWorkspaceBytes(int world_size, uint64_t capacity_bytes, bool all_reduce) {
  JAX_SYMM_ASSIGN_OR_RETURN(const PushLayout layout,
                            PushLayout::Make(world_size, capacity_bytes, all_reduce));
  return layout.nbytes();
}

HostWorkspace::HostWorkspace(HostWorkspaceOptions options)
    : options_(std::move(options)), generation_(NextGeneration()) {}

StatusOr<std::shared_ptr<HostWorkspace>> HostWorkspace::Open(HostWorkspaceOptions options) {
  JAX_SYMM_RETURN_IF_ERROR(CheckOptions(options));
  std::shared_ptr<HostWorkspace> workspace(new HostWorkspace(std::move(options)));
  JAX_SYMM_RETURN_IF_ERROR(workspace->StartDevices());
  JAX_SYMM_RETURN_IF_ERROR(workspace->StartGroups());
  JAX_SYMM_RETURN_IF_ERROR(workspace->StartWatchdog());
  JAX_SYMM_RETURN_IF_ERROR(Registry::Get().Add(workspace->options_.name, workspace));
  return workspace;
}

Status HostWorkspace::StartDevices() {
  for (const LocalRank& local : options_.locals) {
    Device& device = devices_[local.device_ordinal];
    if (device.completions != nullptr) {
      return InvalidArgument("workspace '", options_.name, "': device ", local.device_ordinal,
                             " is listed twice");
    }
    device.group = local.group;
    device.rank = local.rank;
    JAX_SYMM_ASSIGN_OR_RETURN(device.completions,
                              CompletionThread::Start(StrCat("symm-done-", local.rank)));
  }
  return OkStatus();
}

GroupOptions HostWorkspace::MakeGroupOptions(int group) {
  GroupOptions options;
  options.workspace = options_.name;
  options.axis = options_.axis;
  options.index = group;
  options.nonce = options_.nonce;
  options.timeout = options_.timeout;
  options.rank_labels = options_.rank_labels[group];
  options.on_fault = [weak = weak_from_this()](const Status& fault) {
    if (const auto workspace = weak.lock()) workspace->OnFault(fault);
  };
  return options;
}

Status HostWorkspace::StartGroups() {
  JAX_SYMM_ASSIGN_OR_RETURN(
      const PushLayout layout,
      PushLayout::Make(options_.world_size, options_.capacity_bytes, options_.all_reduce));
  std::map<int, std::vector<const LocalRank*>> members;
  for (const LocalRank& local : options_.locals) members[local.group].push_back(&local);
  for (const auto& [group, locals] : members) {
    if (static_cast<int>(locals.size()) == options_.world_size) {
      groups_[group] = std::make_shared<LocalGroup>(MakeGroupOptions(group));
      continue;
    }
    std::map<int, std::shared_ptr<PushRank>> ranks;
    for (const LocalRank* local : locals) {
      const bool enough = std::ranges::all_of(local->mappings, [&](const auto& mapping) {
        return mapping->nbytes() >= layout.nbytes();
      });
      if (!enough || static_cast<int>(local->mappings.size()) != options_.world_size) {
        return InvalidArgument("workspace '", options_.name, "': rank ", local->rank, " has ",
                               local->mappings.size(), " mappings, expected ", options_.world_size,
                               " of at least ", layout.nbytes(), " bytes");
      }
      ranks[local->rank] =
          std::make_shared<PushRank>(MakeGroupOptions(group), layout, local->rank, local->mappings);
    }
    JAX_SYMM_ASSIGN_OR_RETURN(groups_[group], PushGroup::Start(std::move(ranks)));
  }
  return OkStatus();
}

Status HostWorkspace::StartWatchdog() {
  const auto period =
      std::clamp<nanoseconds>(options_.timeout / 8, milliseconds(5), milliseconds(500));
  return StartThread("symm-watchdog", [weak = weak_from_this(), period] {
    for (;;) {
      std::this_thread::sleep_for(period);
      const auto workspace = weak.lock();
      if (workspace == nullptr) return;
      workspace->ExpireGroups();
    }
  });
}

Status HostWorkspace::Submit(int64_t device_ordinal, int64_t axis_size, int axis_index,
                             HostCall call, const Scheduler& schedule) {
  JAX_SYMM_RETURN_IF_ERROR(CheckCall(axis_size, call.problem));
  JAX_SYMM_ASSIGN_OR_RETURN(Device * device, FindDevice(device_ordinal, axis_index));
  JAX_SYMM_RETURN_IF_ERROR(BeginCall());
  device->calls.fetch_add(1, std::memory_order_relaxed);
  call.complete = [self = shared_from_this(), device,
                   complete = std::move(call.complete)](const Status& status) {
    device->completions->Post([complete, status] { complete(status); });
    self->EndCall();
  };
  const std::shared_ptr<HostGroup> group = groups_.at(device->group);  // outlives a Close meanwhile
  group->Arrive(device->rank, std::move(call), schedule);
  return OkStatus();
}

/// Equal on every rank of a call, so these errors fail no workspace.
Status HostWorkspace::CheckCall(int64_t axis_size, const HostProblem& problem) const {
  JAX_SYMM_RETURN_IF_ERROR(
      CheckProgram(options_, axis_size, problem, problem.op == CollectiveOp::kAllReduce));
  JAX_SYMM_ASSIGN_OR_RETURN(uint64_t need, CheckedMul(problem.batch, problem.shard_elements()));
  JAX_SYMM_ASSIGN_OR_RETURN(need, CheckedMul(need, options_.world_size * ElementBytes(problem.in)));
  if (need > options_.capacity_bytes) {
    return FailedPrecondition(Describe(problem), ": workspace '", options_.name,
                              "' is too small: the call needs ", need, " bytes, its capacity is ",
                              options_.capacity_bytes, "; open it with a larger max_m or n");
  }
  return OkStatus();
}

/// A device that is not where the program thinks it is wrongs the whole group, which may be waiting
/// for it already: the workspace fails on all ranks.
StatusOr<HostWorkspace::Device*> HostWorkspace::FindDevice(int64_t device_ordinal, int axis_index) {
  const auto found = devices_.find(device_ordinal);
  Status fault;
  if (found == devices_.end()) {
    fault =
        FailedPrecondition("device ", device_ordinal, " runs a call on workspace '", options_.name,
                           "', whose mesh does not have this device; run the "
                           "program on the mesh that the workspace was opened with");
  } else if (axis_index != found->second.rank) {
    const Device& device = found->second;
    fault = FailedPrecondition(
        "workspace '", options_.name, "': ", options_.rank_labels[device.group][device.rank],
        " has index ", axis_index, " on axis '", options_.axis,
        "' of the program: its mesh has another device order than the workspace's; run the program "
        "on the mesh that the workspace was opened with");
  }
  if (fault.ok()) return &found->second;
  OnFault(fault);
  return fault;
}

Status HostWorkspace::BeginCall() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!fault_.ok()) return fault_;
  if (closing_) return FailedPrecondition("workspace '", options_.name, "' is closed");
  ++calls_in_flight_;
  return OkStatus();
}

void HostWorkspace::EndCall() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--calls_in_flight_ == 0) idle_.notify_all();
}

Status HostWorkspace::Close(nanoseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool first = !std::exchange(closing_, true);
  const auto is_idle = [this] { return calls_in_flight_ == 0; };
  const bool drained = idle_.wait_for(lock, timeout, is_idle);
  lock.unlock();
  Status status;
  if (!drained) {
    status =
        DeadlineExceeded("closing workspace '", options_.name,
                         "': calls were still in flight "
                         "after ",
                         std::chrono::duration<double>(timeout).count(), " s and have been failed");
    OnFault(status);
    lock.lock();
    idle_.wait(lock, is_idle);  // failing a call needs no peer
    lock.unlock();
  }
  if (!first) return status;
  Registry::Get().Remove(options_.name, this);
  lock.lock();
  groups_.clear();
  options_.locals.clear();  // with the memory
  return status;
}

void HostWorkspace::Abandon(std::shared_ptr<HostWorkspace> workspace) {
  {
    std::lock_guard<std::mutex> lock(workspace->mutex_);
    workspace->closing_ = true;
  }
  Registry::Get().Remove(workspace->options_.name, workspace.get());
}

void HostWorkspace::Abort(int group, int rank, const std::string& message) {
  OnFault(
      MakeStatus(StatusCode::kAborted, message, " (rank ", rank, " of group ", group, " is lost)"));
}

Status HostWorkspace::Check() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

bool HostWorkspace::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closing_;
}

/// The fault of one group ends the others too: their ranks share this process, which makes no
/// further call on the workspace.
void HostWorkspace::OnFault(const Status& fault) {
  std::vector<std::shared_ptr<HostGroup>> groups;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!fault_.ok()) return;
    fault_ = fault;
    for (const auto& [index, group] : groups_) groups.push_back(group);
  }
  for (const auto& group : groups) group->Raise(fault);
}

void HostWorkspace::ExpireGroups() {
  std::vector<std::shared_ptr<HostGroup>> groups;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [index, group] : groups_) groups.push_back(group);
  }
  for (const auto& group : groups) group->ExpireAt(Clock::now());
}

std::vector<CallCount> HostWorkspace::Calls() const {
  std::vector<CallCount> counts;
  for (const auto& [ordinal, device] : devices_) {
    counts.push_back({"host", device.group, device.rank, device.calls.load()});
  }
  return counts;
}

}  // namespace jax_symm
