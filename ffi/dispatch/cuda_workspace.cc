#include "dispatch/cuda_workspace.h"

#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "base/scope_guard.h"
#include "dispatch/config_choice.h"
#include "memory/ledger.h"
#include "runtime/program_check.h"

namespace jax_symm {
namespace {

constexpr uint64_t kMaxCapacityBytes = uint64_t{1} << 46;  // no sum in a layout overflows

/// What launches get to end once they have been made to fail.
constexpr std::chrono::seconds kAbortGrace{5};

std::atomic<int64_t> g_generations{0};

WorkspaceCapacity CapacityOf(const CudaWorkspaceOptions& options) {
  return CapacityFor(static_cast<uint32_t>(options.world_size), options.capacity_bytes,
                     options.all_reduce);
}

StatusOr<Arch> ArchOfDevice(const driver::Api& api, int ordinal) {
  const std::string detail = StrCat("asking GPU ", ordinal, " for its compute capability");
  driver::Device device = 0;
  int major = 0;
  int minor = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(api, api.cuDeviceGet, detail, &device, ordinal));
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(api, api.cuDeviceGetAttribute, detail, &major,
                                        driver::kComputeCapabilityMajor, device));
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(api, api.cuDeviceGetAttribute, detail, &minor,
                                        driver::kComputeCapabilityMinor, device));
  return ArchOf(major, minor);
}

/// Loaded once a driver and architecture, for all workspaces.
StatusOr<std::shared_ptr<KernelLibrary>> SharedLibrary(std::shared_ptr<const driver::Api> api,
                                                       int device_ordinal) {
  JAX_SYMM_ASSIGN_OR_RETURN(const Arch arch, ArchOfDevice(*api, device_ordinal));
  static std::mutex mutex;
  using Key = std::pair<const driver::Api*, Arch>;  // a library keeps its driver's table alive
  static auto* const libraries = new std::map<Key, std::shared_ptr<KernelLibrary>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<KernelLibrary>& library = (*libraries)[{api.get(), arch}];
  if (library == nullptr) {
    JAX_SYMM_ASSIGN_OR_RETURN(library, KernelLibrary::Load(std::move(api), arch));
  }
  return library;
}

}  // namespace

StatusOr<uint64_t> CudaWorkspaceBytes(int world_size, uint64_t capacity_bytes, bool all_reduce) {
  if (world_size < 1 || world_size > static_cast<int>(kMaxRanks)) {
    return InvalidArgument("CUDA workspace: got ", world_size, " ranks, expected 1 to ", kMaxRanks);
  }
  if (capacity_bytes > kMaxCapacityBytes) {
    return InvalidArgument("CUDA workspace: got a capacity of ", capacity_bytes,
                           " bytes, expected at most ", kMaxCapacityBytes);
  }
  return LayOut(CapacityFor(static_cast<uint32_t>(world_size), capacity_bytes, all_reduce)).nbytes;
}

CudaWorkspace::CudaWorkspace(CudaWorkspaceOptions options)
    : options_(std::move(options)),
      generation_(++g_generations),
      gate_(options_.name, options_.timeout) {}

StatusOr<std::shared_ptr<CudaWorkspace>> CudaWorkspace::Open(std::shared_ptr<const driver::Api> api,
                                                             CudaWorkspaceOptions options) {
  std::shared_ptr<CudaWorkspace> workspace(new CudaWorkspace(std::move(options)));
  JAX_SYMM_RETURN_IF_ERROR(workspace->OpenRanks(std::move(api)));
  JAX_SYMM_RETURN_IF_ERROR(Registry::Get().Add(workspace->options_.name, workspace));
  return workspace;
}

Status CudaWorkspace::OpenRanks(std::shared_ptr<const driver::Api> api) {
  for (CudaLocalRank& local : options_.locals) {
    JAX_SYMM_ASSIGN_OR_RETURN(const std::shared_ptr<KernelLibrary> library,
                              SharedLibrary(api, local.device_ordinal));
    if (local.mappings.size() != static_cast<size_t>(options_.world_size)) {
      return InvalidArgument("workspace '", options_.name, "': rank ", local.rank, " has ",
                             local.mappings.size(), " mappings, expected ", options_.world_size);
    }
    JAX_SYMM_ASSIGN_OR_RETURN(ranks_[local.device_ordinal],
                              CudaRank::Open(library, api,
                                             {.workspace = options_.name,
                                              .device_ordinal = local.device_ordinal,
                                              .group = local.group,
                                              .rank = static_cast<uint32_t>(local.rank),
                                              .labels = options_.rank_labels[local.group],
                                              .mappings = std::move(local.mappings),
                                              .multicast = local.multicast,
                                              .capacity = CapacityOf(options_),
                                              .timeout = options_.timeout,
                                              .sm_margin = options_.sm_margin}));
    ++local_ranks_[local.group];
  }
  return OkStatus();
}

Status CudaWorkspace::Submit(int device_ordinal, int64_t axis_size, int64_t site,
                             const CudaCall& call, driver::Stream stream) {
  const bool all_reduce = call.problem.collective == Collective::kAllReduce;
  JAX_SYMM_RETURN_IF_ERROR(CheckProgram(options_, axis_size, call.problem, all_reduce));
  const auto found = ranks_.find(device_ordinal);
  if (found == ranks_.end()) {
    // The devices that are the workspace's would wait for those that are not.
    gate_.Fail(FailedPrecondition(
        "GPU ", device_ordinal, " of this process runs a call on workspace '", options_.name,
        "', whose mesh does not have this device; run the program on the mesh that the workspace ",
        "was opened with"));
    return gate_.fault();
  }
  CudaRank& rank = *found->second;
  JAX_SYMM_RETURN_IF_ERROR(gate_.Enter(site, rank.group(), local_ranks_.at(rank.group())));
  const ScopeGuard leave([this] { gate_.Leave(); });
  return rank.Launch(call, stream);
}

Status CudaWorkspace::Close(std::chrono::nanoseconds timeout) {
  if (!gate_.Close()) return OkStatus();
  Registry::Get().Remove(options_.name, this);
  const auto deadline = CallGate::Clock::now() + timeout;
  const auto ended = [&](CallGate::Clock::time_point until) {
    if (!gate_.Drain(until)) return false;
    while (!Idle() && CallGate::Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return Idle();
  };
  if (ended(deadline)) {
    ReleaseMemory();
    return OkStatus();
  }
  for (const auto& [ordinal, rank] : ranks_) rank->Abort(static_cast<uint32_t>(rank->rank()));
  if (ended(CallGate::Clock::now() + kAbortGrace)) ReleaseMemory();
  return DeadlineExceeded("workspace '", options_.name, "': launches had not ended ",
                          std::chrono::duration<double>(timeout).count(),
                          " s after close(); they were made to fail");
}

void CudaWorkspace::Abandon(std::shared_ptr<CudaWorkspace> workspace) {
  if (!workspace->gate_.Close()) return;
  Registry::Get().Remove(workspace->options_.name, workspace.get());
  jax_symm::Abandon(std::move(workspace));
}

void CudaWorkspace::ReleaseMemory() {
  for (const auto& [ordinal, rank] : ranks_) rank->ReleaseMemory();
}

CudaWorkspace::~CudaWorkspace() {
  if (Idle()) return;
  Kept kept;
  for (auto& [ordinal, rank] : ranks_) kept.push_back(std::shared_ptr<CudaRank>(std::move(rank)));
  Quarantine(StrCat("workspace '", options_.name, "' was dropped while launches ran; its memory"),
             std::move(kept));
}

bool CudaWorkspace::Idle() const {
  for (const auto& [ordinal, rank] : ranks_) {
    if (!rank->Idle()) return false;
  }
  return true;
}

Status CudaWorkspace::Check() const {
  for (const auto& [ordinal, rank] : ranks_) {
    const Status fault = rank->Fault();
    if (fault.ok()) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    return lost_.empty() ? fault : Status(fault.code(), StrCat(fault.message(), "; ", lost_));
  }
  return gate_.fault();
}

void CudaWorkspace::Abort(int group, int rank, const std::string& message) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (lost_.empty()) lost_ = message;
  }
  gate_.Fail(MakeStatus(StatusCode::kAborted, "workspace '", options_.name, "': ", message,
                        "; close it and open another over the ranks that are left"));
  for (const auto& [ordinal, local] : ranks_) {
    if (local->group() == group) local->Abort(static_cast<uint32_t>(rank));
  }
}

std::vector<CallCount> CudaWorkspace::Calls() const {
  std::vector<CallCount> counts;
  for (const auto& [ordinal, rank] : ranks_) {
    counts.push_back({"peer", rank->group(), rank->rank(),
                      rank->calls(Reducer::kPush) + rank->calls(Reducer::kPull)});
    counts.push_back({"multicast", rank->group(), rank->rank(), rank->calls(Reducer::kMulticast)});
  }
  return counts;
}

}  // namespace jax_symm
