#include "dispatch/cuda_rank.h"

#include <cstring>
#include <utility>

#include "dispatch/call_hash.h"
#include "dispatch/config_choice.h"
#include "dispatch/cost_model.h"

namespace jax_symm {
namespace {

const char* AwaitedName(Awaited awaited) {
  switch (awaited) {
    case Awaited::kNothing:
      return "nothing";
    case Awaited::kPreviousLaunch:
      return "the end of its previous launch";
    case Awaited::kPartial:
      return "its partial product";
    case Awaited::kResult:
      return "its part of the result";
  }
  return "?";
}

}  // namespace

StatusOr<std::unique_ptr<CudaRank>> CudaRank::Open(std::shared_ptr<KernelLibrary> library,
                                                   std::shared_ptr<const driver::Api> api,
                                                   CudaRankOptions options) {
  std::unique_ptr<CudaRank> rank(
      new CudaRank(std::move(library), std::move(api), std::move(options)));
  JAX_SYMM_RETURN_IF_ERROR(rank->Prepare());
  return rank;
}

Status CudaRank::Prepare() {
  const int device = options_.device_ordinal;
  const std::string detail = StrCat("opening workspace '", options_.workspace, "' on GPU ", device);
  JAX_SYMM_ASSIGN_OR_RETURN(context_, PrimaryContext::Retain(api_, device));
  ScopedContext current(*api_);
  JAX_SYMM_RETURN_IF_ERROR(current.Enter(context_->get()));
  driver::Device handle = 0;
  int multiprocessors = 0;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuDeviceGet, detail, &handle, device));
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuDeviceGetAttribute, detail, &multiprocessors,
                                        driver::kMultiprocessorCount, handle));
  max_ctas_ = static_cast<uint32_t>(multiprocessors);
  if (options_.sm_margin >= max_ctas_) {
    return InvalidArgument("sm_margin: got ", options_.sm_margin, " of the ", max_ctas_,
                           " multiprocessors of GPU ", device, ", expected fewer; ", detail);
  }
  max_ctas_ -= options_.sm_margin;
  JAX_SYMM_RETURN_IF_ERROR(library_->Prepare(handle));

  void* host = nullptr;
  JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuMemHostAlloc, detail, &host, sizeof(Pinned),
                                        driver::kHostAllocPortable | driver::kHostAllocMapped));
  pinned_ = static_cast<Pinned*>(host);
  std::memset(host, 0, sizeof(Pinned));
  driver::DevicePtr mapped = 0;
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(*api_, api_->cuMemHostGetDevicePointer, detail, &mapped, host, 0U));
  JAX_SYMM_RETURN_IF_ERROR(
      driver::Call(*api_, api_->cuEventCreate, detail, &last_launch_, driver::kEventDisableTiming));

  memory_.rank = options_.rank;
  memory_.capacity = options_.capacity;
  memory_.timeout_ns = static_cast<uint64_t>(options_.timeout.count());
  memory_.abort_word = mapped + offsetof(Pinned, abort_word);
  memory_.fault_record = mapped + offsetof(Pinned, record);
  for (const auto& mapping : options_.mappings) memory_.workspaces.push_back(mapping->address());
  memory_.multicast = options_.multicast;
  return OkStatus();
}

Status CudaRank::Launch(const CudaCall& call, driver::Stream stream) {
  const bool agreed = options_.multicast.value != 0;
  const Reducer reducer = call.reducer.value_or(ChooseReducer(call.problem, agreed));
  if (reducer == Reducer::kMulticast && !agreed) {
    return FailedPrecondition("workspace '", options_.workspace, "' has no multicast on group ",
                              options_.group, "; use path=\"auto\" or \"peer\"");
  }
  const GemmConfig config = ChooseConfig(library_->arch(), call.problem, reducer, max_ctas_);
  JAX_SYMM_ASSIGN_OR_RETURN(
      const KernelParams params,
      MakeKernelParams(call.problem, config, memory_, call.buffers, HashLaunch(call.call, config)));
  ScopedContext current(*api_);
  JAX_SYMM_RETURN_IF_ERROR(current.Enter(context_->get()));
  std::lock_guard<std::mutex> lock(mutex_);
  JAX_SYMM_RETURN_IF_ERROR(Fault());
  const std::string detail = StrCat("launching on workspace '", options_.workspace, "'");
  if (launched_) {
    JAX_SYMM_RETURN_IF_ERROR(
        driver::Call(*api_, api_->cuStreamWaitEvent, detail, stream, last_launch_, 0U));
  }
  JAX_SYMM_RETURN_IF_ERROR(
      jax_symm::Launch(*library_, call.problem, config, params, call.buffers, stream));
  launched_ = true;
  calls_[static_cast<int>(reducer)].fetch_add(1, std::memory_order_relaxed);
  return driver::Call(*api_, api_->cuEventRecord, detail, last_launch_, stream);
}

Status CudaRank::Fault() const {
  const volatile uint64_t* word = &pinned_->record.verdict;
  const uint64_t packed = *word;
  if (packed == 0) return OkStatus();
  std::atomic_thread_fence(std::memory_order_acquire);
  const Verdict verdict = UnpackVerdict(packed);
  const Observation& seen = pinned_->record.observation;
  const std::string where =
      StrCat("workspace '", options_.workspace, "', launch ", verdict.epoch, ": ");
  const std::string observed =
      seen.awaited == Awaited::kNothing
          ? ""
          : StrCat("; ", Label(options_.rank), " waited for ", AwaitedName(seen.awaited), " of ",
                   Label(seen.peer), ", tile ", seen.tile, ", saw ", seen.seen, ", wanted ",
                   seen.wanted);
  const std::string after =
      "; outputs of this and later calls are NaN; close the workspace and open it again";
  switch (verdict.kind) {
    case FaultKind::kTimeout:
      return DeadlineExceeded(where, Label(verdict.blamed), " did not come within ",
                              std::chrono::duration<double>(options_.timeout).count(), " s",
                              observed, after);
    case FaultKind::kOtherCall:
      return FailedPrecondition(
          where, Label(verdict.blamed), " made another call than ", Label(verdict.reporter),
          ": ranks must make the same calls in the same order", observed, after);
    case FaultKind::kWrongRank:
      return FailedPrecondition(where, "the mesh of the call gives ", Label(verdict.blamed),
                                " another index along the axis than the workspace's mesh: one ",
                                "device order must be used for both", after);
    case FaultKind::kPeerLost:
      return MakeStatus(StatusCode::kAborted, where, "the process of ", Label(verdict.blamed),
                        " has ended", observed, after);
    case FaultKind::kNone:
      break;
  }
  return MakeStatus(StatusCode::kInternal, where, "unknown fault ", packed);
}

void CudaRank::Abort(uint32_t lost_rank) {
  *static_cast<volatile uint32_t*>(&pinned_->abort_word) = 1 + lost_rank;
}

bool CudaRank::Idle() const {
  if (!launched_ || !api_->Usable()) return true;
  ScopedContext current(*api_);
  if (!current.Enter(context_->get()).ok()) return true;
  return api_->cuEventQuery.function(last_launch_) != driver::kNotReady;
}

void CudaRank::ReleaseMemory() {
  options_.mappings.clear();
  memory_.workspaces.clear();
}

std::string CudaRank::Label(uint32_t rank) const {
  return rank < options_.labels.size() ? options_.labels[rank] : StrCat("rank ", rank);
}

CudaRank::~CudaRank() {
  if (!api_->Usable() || context_ == nullptr) return;
  ScopedContext current(*api_);
  if (!current.Enter(context_->get()).ok()) return;
  if (last_launch_ != nullptr) api_->cuEventDestroy.function(last_launch_);
  if (pinned_ != nullptr) api_->cuMemFreeHost.function(pinned_);
}

}  // namespace jax_symm
