// Custom calls on GPUs. Instantiate parses attributes and nothing else; execute looks the workspace
// up by name, waits for this rank's previous launch on the stream, and enqueues one kernel.
#include "xla/cuda_handlers.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dispatch/call_hash.h"
#include "dispatch/cuda_workspace.h"
#include "xla/handlers.h"

namespace jax_symm {
namespace {

namespace ffi = xla::ffi;

/// What one call site of one executable knows before it runs.
struct CudaCallSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::string workspace;
  int64_t axis_size = 0;
  int64_t call_site = 0;  // the same in every process
  int64_t serial = 0;     // of this process
  std::optional<Reducer> reducer;
  GemmProblem problem;  // without the element types, which the buffers bring
};

ffi::TypeId CudaCallSite::id = {};
ffi::TypeInfo CudaCallSite::info = ffi::MakeTypeInfo<CudaCallSite>();

/// "auto" leaves `reducer` empty. Pull has no path of its own: it is multicast's twin for tests.
Status ParsePath(std::string_view path, std::optional<Reducer>* reducer) {
  if (path == "auto") {
    reducer->reset();
  } else if (path == "peer") {
    *reducer = Reducer::kPush;
  } else if (path == "peer_pull") {
    *reducer = Reducer::kPull;
  } else if (path == "multicast") {
    *reducer = Reducer::kMulticast;
  } else {
    return InvalidArgument("path: got '", std::string(path),
                           "', expected 'auto', 'peer', 'peer_pull' or 'multicast'");
  }
  return OkStatus();
}

Status ParseWeightLayout(std::string_view name, WeightLayout* layout) {
  if (name != "kn" && name != "nk") {
    return InvalidArgument("w_layout: got '", std::string(name), "', expected 'kn' or 'nk'");
  }
  *layout = name == "kn" ? WeightLayout::kKN : WeightLayout::kNK;
  return OkStatus();
}

Status CheckSizes(int64_t axis_size, int64_t batch, int64_t rows, int64_t shard_rows, int64_t n,
                  int64_t k) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  for (int64_t size : {axis_size, batch, rows, shard_rows, n, k}) {
    if (size < 1 || size >= kLimit) {
      return InvalidArgument("an attribute is ", size, ", expected 1 to 2**31 - 1");
    }
  }
  const bool covered = axis_size == 1 ? shard_rows == rows : shard_rows * axis_size >= rows;
  if (covered) return OkStatus();
  return InvalidArgument("attributes are inconsistent: shard_rows ", shard_rows, " x axis_size ",
                         axis_size, " for ", rows, " rows");
}

template <Collective collective>
ffi::ErrorOr<std::unique_ptr<CudaCallSite>> Instantiate(
    std::string_view workspace, int64_t call_site, int64_t axis_size, int64_t batch, int64_t rows,
    int64_t shard_rows, int64_t n, int64_t k, std::string_view w_layout, std::string_view path) {
  auto site = std::make_unique<CudaCallSite>();
  Status status = CheckSizes(axis_size, batch, rows, shard_rows, n, k);
  if (status.ok()) status = ParsePath(path, &site->reducer);
  if (status.ok()) status = ParseWeightLayout(w_layout, &site->problem.weights);
  if (!status.ok()) return ffi::Unexpected(ToFfiError(status));
  site->workspace = std::string(workspace);
  site->axis_size = axis_size;
  site->call_site = call_site;
  site->serial = NextCallSite();
  site->problem.collective = collective;
  site->problem.rows = {static_cast<uint32_t>(batch), static_cast<uint32_t>(rows),
                        static_cast<uint32_t>(shard_rows)};
  site->problem.ranks = static_cast<uint32_t>(axis_size);
  site->problem.n = static_cast<uint32_t>(n);
  site->problem.k = static_cast<uint32_t>(k);
  return site;
}

StatusOr<CudaCall> MakeCall(const CudaCallSite& site, const ffi::AnyBuffer& x,
                            const ffi::AnyBuffer& w, const void* axis_index,
                            const ffi::AnyBuffer& output) {
  CudaCall call;
  call.problem = site.problem;
  call.reducer = site.reducer;
  GemmProblem& p = call.problem;
  JAX_SYMM_ASSIGN_OR_RETURN(p.element, ToElementType(x.element_type()));
  JAX_SYMM_ASSIGN_OR_RETURN(p.output, ToElementType(output.element_type()));
  const std::string unsupported = WhyNotSupported(p);
  if (!unsupported.empty()) return Unimplemented(Describe(p), ": ", unsupported);
  const uint64_t output_rows =
      p.collective == Collective::kReduceScatter ? p.rows.ShardRows() : p.rows.TotalRows();
  if (w.element_type() != x.element_type() || x.element_count() != uint64_t{p.m()} * p.k ||
      w.element_count() != uint64_t{p.n} * p.k || output.element_count() != output_rows * p.n) {
    return InvalidArgument(Describe(p), ": x, w and the result have ", x.element_count(), ", ",
                           w.element_count(), " and ", output.element_count(),
                           " elements, or x and w differ in type");
  }
  call.buffers = {
      reinterpret_cast<uint64_t>(x.untyped_data()), reinterpret_cast<uint64_t>(w.untyped_data()),
      reinterpret_cast<uint64_t>(output.untyped_data()), reinterpret_cast<uint64_t>(axis_index)};
  call.call = HashCall(site.call_site, p);
  return call;
}

Status Enter(const CudaCallSite& site, void* stream, int32_t device_ordinal,
             const ffi::AnyBuffer& x, const ffi::AnyBuffer& w, const void* axis_index,
             const ffi::AnyBuffer& output) {
  JAX_SYMM_ASSIGN_OR_RETURN(const CudaCall call, MakeCall(site, x, w, axis_index, output));
  JAX_SYMM_ASSIGN_OR_RETURN(const std::shared_ptr<CudaWorkspace> workspace,
                            WorkspaceRegistry<CudaWorkspace>::Get().Find(site.workspace));
  return workspace->Submit(device_ordinal, site.axis_size, site.serial, call, stream);
}

ffi::Error Execute(CudaCallSite* site, void* stream, int32_t device_ordinal, ffi::AnyBuffer x,
                   ffi::AnyBuffer w, ffi::BufferR0<ffi::S32> axis_index,
                   ffi::Result<ffi::AnyBuffer> output, ffi::Dictionary /*attributes*/) {
  return ToFfiError(Enter(*site, stream, device_ordinal, x, w, axis_index.untyped_data(), *output));
}

auto BindCudaCall() {
  return BindCallAttributes().Attr<std::string_view>("w_layout").Attr<std::string_view>("path");
}

XLA_FFI_DEFINE_HANDLER(kInstantiateReduceScatter, Instantiate<Collective::kReduceScatter>,
                       BindCudaCall());
XLA_FFI_DEFINE_HANDLER(kInstantiateAllReduce, Instantiate<Collective::kAllReduce>, BindCudaCall());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CudaCallSite>>()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR0<ffi::S32>>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

}  // namespace

std::vector<FfiTarget> CudaFfiTargets() {
  return FfiTargets(kInstantiateReduceScatter, kInstantiateAllReduce, kExecute);
}

std::vector<FfiType> CudaFfiTypes() {
  return {{"jax_symm.CudaCallSite", &CudaCallSite::id, &CudaCallSite::info}};
}

}  // namespace jax_symm
