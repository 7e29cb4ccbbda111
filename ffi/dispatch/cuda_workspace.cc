#include "dispatch/cuda_workspace.h"

#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "dispatch/config_choice.h"

namespace jax_symm {
namespace {

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

uint64_t CudaWorkspaceBytes(int world_size, uint64_t capacity_bytes, bool all_reduce) {
  return LayOut(CapacityFor(static_cast<uint32_t>(world_size), capacity_bytes, all_reduce)).nbytes;
}

CudaWorkspace::CudaWorkspace(CudaWorkspaceOptions options)
    : options_(std::move(options)), generation_(++g_generations) {}

StatusOr<std::shared_ptr<CudaWorkspace>> CudaWorkspace::Open(std::shared_ptr<const driver::Api> api,
                                                             CudaWorkspaceOptions options) {
  std::shared_ptr<CudaWorkspace> workspace(new CudaWorkspace(std::move(options)));
  JAX_SYMM_RETURN_IF_ERROR(workspace->OpenRanks(std::move(api)));
  JAX_SYMM_RETURN_IF_ERROR(Registry::Get().Add(workspace->options_.name, workspace));
  return workspace;
}

Status CudaWorkspace::OpenRanks(std::shared_ptr<const driver::Api> api) {
  for (const CudaLocalRank& local : options_.locals) {
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
                                              .mappings = local.mappings,
                                              .multicast = local.multicast,
                                              .capacity = CapacityOf(options_),
                                              .timeout = options_.timeout,
                                              .sm_margin = options_.sm_margin}));
  }
  return OkStatus();
}

Status CudaWorkspace::Submit(int device_ordinal, int64_t axis_size, const void* site, CudaCall call,
                             driver::Stream stream) {
  if (axis_size != options_.world_size) {
    return FailedPrecondition("workspace '", options_.name, "' has ", options_.world_size,
                              " ranks, the call was compiled for ", axis_size);
  }
  const auto found = ranks_.find(device_ordinal);
  if (found == ranks_.end()) {
    return FailedPrecondition("workspace '", options_.name, "' was not made for GPU ",
                              device_ordinal, " of this process");
  }
  JAX_SYMM_RETURN_IF_ERROR(Meet(site));
  return found->second->Launch(call, stream);
}

Status CudaWorkspace::Meet(const void* site) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) {
    return FailedPrecondition("workspace '", options_.name, "' is closed");
  }
  if (ranks_.size() == 1 || known_sites_.contains(site)) return OkStatus();
  if (++arrivals_[site] == ranks_.size()) {
    known_sites_.insert(site);
    arrivals_.erase(site);
    met_.notify_all();
    return OkStatus();
  }
  if (met_.wait_for(lock, options_.timeout, [&] { return known_sites_.contains(site); })) {
    return OkStatus();
  }
  --arrivals_[site];
  return DeadlineExceeded("workspace '", options_.name, "': only ", arrivals_[site] + 1, " of ",
                          ranks_.size(), " local devices began a program's first run");
}

Status CudaWorkspace::Close(std::chrono::nanoseconds timeout) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return OkStatus();
    closed_ = true;
  }
  Registry::Get().Remove(options_.name, this);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!Idle() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (Idle()) return OkStatus();
  for (const auto& [ordinal, rank] : ranks_) rank->Abort(static_cast<uint32_t>(rank->rank()));
  return DeadlineExceeded("workspace '", options_.name, "': launches had not ended ",
                          std::chrono::duration<double>(timeout).count(),
                          " s after close(); they were made to fail");
}

void CudaWorkspace::Abandon(std::shared_ptr<CudaWorkspace> workspace) {
  {
    std::lock_guard<std::mutex> lock(workspace->mutex_);
    workspace->closed_ = true;
  }
  Registry::Get().Remove(workspace->options_.name, workspace.get());
  if (workspace->Idle()) return;
  // Nothing may be unmapped under a running kernel, and nobody will tell when it has ended.
  new std::shared_ptr<CudaWorkspace>(std::move(workspace));
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
  return OkStatus();
}

void CudaWorkspace::Abort(int group, int rank, const std::string& message) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (lost_.empty()) lost_ = message;
  }
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

bool CudaWorkspace::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

}  // namespace jax_symm
