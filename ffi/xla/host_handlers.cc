// Custom calls on CPU devices. Instantiate parses attributes and nothing else; execute looks the
// workspace up by name and hands the buffers over. A handler never blocks: its Future is completed
// when the other ranks have come.
#include "xla/host_handlers.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/host_workspace.h"
#include "runtime/sum.h"
#include "xla/handlers.h"

namespace jax_symm {
namespace {

namespace ffi = xla::ffi;

/// What one call site of one executable knows before it runs.
struct HostCallSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::string workspace;
  int64_t axis_size = 0;
  int64_t call_site = 0;
  int64_t instance = 0;
  int64_t serial = 0;   // of this process
  HostProblem problem;  // without the element types, which the buffers bring
};

ffi::TypeId HostCallSite::id = {};
ffi::TypeInfo HostCallSite::info = ffi::MakeTypeInfo<HostCallSite>();

/// Numbers the call sites of one tag in the order of their instantiation, which is the same for an
/// executable in every process. How many executables a process has compiled may not be, so each
/// lowering starts again from 0; the launch tells executables apart.
class InstanceCounts {
 public:
  static InstanceCounts& Get() {
    static auto* const counts = new InstanceCounts;
    return *counts;
  }
  int64_t Next(const std::string& workspace, int64_t call_site) {
    std::lock_guard<std::mutex> lock(mutex_);
    return next_[{workspace, call_site}]++;
  }
  void Restart(const std::string& workspace, int64_t call_site) {
    std::lock_guard<std::mutex> lock(mutex_);
    next_.erase({workspace, call_site});
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int64_t>, int64_t> next_;
};

Status CheckSite(const HostCallSite& site) {
  const HostProblem& p = site.problem;
  const bool sizes = p.batch >= 0 && p.rows >= 0 && p.shard_rows >= 0 && p.n >= 0 && p.k >= 0;
  const bool covered = site.axis_size >= 1 && p.shard_rows * site.axis_size >= p.rows;
  if (sizes && covered) return OkStatus();
  return InvalidArgument(Describe(p), ": attributes are inconsistent: shard_rows ", p.shard_rows,
                         " x axis_size ", site.axis_size, " do not cover ", p.rows, " rows");
}

template <CollectiveOp op>
ffi::ErrorOr<std::unique_ptr<HostCallSite>> Instantiate(std::string_view workspace,
                                                        int64_t call_site, int64_t axis_size,
                                                        int64_t batch, int64_t rows,
                                                        int64_t shard_rows, int64_t n, int64_t k) {
  auto site = std::make_unique<HostCallSite>();
  site->workspace = std::string(workspace);
  site->axis_size = axis_size;
  site->call_site = call_site;
  site->problem = {
      .op = op, .batch = batch, .rows = rows, .shard_rows = shard_rows, .n = n, .k = k};
  if (Status status = CheckSite(*site); !status.ok()) return ffi::Unexpected(ToFfiError(status));
  site->serial = NextCallSite();
  site->instance = InstanceCounts::Get().Next(site->workspace, call_site);
  return site;
}

StatusOr<HostProblem> MakeProblem(const HostCallSite& site, const ffi::AnyBuffer& partial,
                                  const ffi::AnyBuffer& result) {
  HostProblem problem = site.problem;
  JAX_SYMM_ASSIGN_OR_RETURN(problem.in, ToElementType(partial.element_type()));
  JAX_SYMM_ASSIGN_OR_RETURN(problem.out, ToElementType(result.element_type()));
  if (!CanSum(problem.in, problem.out)) {
    return InvalidArgument(Describe(problem), ": the result must have the operand's type or f32");
  }
  const int64_t partial_elements = problem.batch * problem.entry_elements();
  const int64_t result_elements = problem.op == CollectiveOp::kReduceScatter
                                      ? problem.batch * problem.shard_elements()
                                      : partial_elements;
  const auto partial_count = static_cast<int64_t>(partial.element_count());
  const auto result_count = static_cast<int64_t>(result.element_count());
  if (partial_count != partial_elements || result_count != result_elements) {
    return InvalidArgument(Describe(problem), ": operand and result have ", partial_count, " and ",
                           result_count, " elements, expected ", partial_elements, " and ",
                           result_elements);
  }
  return problem;
}

Status Enter(const HostCallSite& site, ffi::RunId run_id, int32_t device_ordinal,
             ffi::ThreadPool& pool, const ffi::AnyBuffer& partial, int32_t axis_index,
             const ffi::AnyBuffer& result, const Completion& complete) {
  JAX_SYMM_ASSIGN_OR_RETURN(const HostProblem problem, MakeProblem(site, partial, result));
  JAX_SYMM_ASSIGN_OR_RETURN(const std::shared_ptr<HostWorkspace> workspace,
                            WorkspaceRegistry<HostWorkspace>::Get().Find(site.workspace));
  HostCall call = {.site = site.serial,
                   .key = {run_id.run_id, site.call_site, site.instance},
                   .problem = problem,
                   .partial = partial.untyped_data(),
                   .result = result.untyped_data(),
                   .complete = complete};
  return workspace->Submit(device_ordinal, site.axis_size, axis_index, std::move(call),
                           [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); });
}

ffi::Future Execute(HostCallSite* site, ffi::RunId run_id, int32_t device_ordinal,
                    ffi::ThreadPool pool, ffi::AnyBuffer partial,
                    ffi::BufferR0<ffi::S32> axis_index, ffi::Result<ffi::AnyBuffer> result,
                    ffi::Dictionary /*attributes*/) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const Completion complete = [promise](const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToFfiError(status));
    }
  };
  const Status status = Enter(*site, run_id, device_ordinal, pool, partial,
                              *axis_index.typed_data(), *result, complete);
  if (!status.ok()) complete(status);
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiateReduceScatter, Instantiate<CollectiveOp::kReduceScatter>,
                       BindCallAttributes());
XLA_FFI_DEFINE_HANDLER(kInstantiateAllReduce, Instantiate<CollectiveOp::kAllReduce>,
                       BindCallAttributes());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<HostCallSite>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR0<ffi::S32>>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

}  // namespace

void RestartInstances(const std::string& workspace, int64_t call_site) {
  InstanceCounts::Get().Restart(workspace, call_site);
}

std::vector<FfiTarget> HostFfiTargets() {
  return FfiTargets(kInstantiateReduceScatter, kInstantiateAllReduce, kExecute);
}

std::vector<FfiType> HostFfiTypes() {
  return {{"jax_symm.HostCallSite", &HostCallSite::id, &HostCallSite::info}};
}

}  // namespace jax_symm
