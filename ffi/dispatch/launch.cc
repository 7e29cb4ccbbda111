#include "dispatch/launch.h"

#include "dispatch/tensor_map.h"

namespace jax_symm {
namespace {

CallShape ShapeOf(const GemmProblem& problem, const GemmConfig& config) {
  return {.rows = problem.rows,
          .ranks = problem.ranks,
          .n = problem.n,
          .element_bytes = static_cast<uint32_t>(ElementBytes(problem.element)),
          .output_bytes = static_cast<uint32_t>(ElementBytes(problem.output)),
          .reducer = config.reducer,
          .collective = problem.collective,
          .tile_m = config.shape.tile_m,
          .tile_n = config.shape.tile_n};
}

TiledMatrix MatrixOfX(const GemmProblem& problem, const GemmConfig& config, uint64_t address) {
  return {address, problem.m(), problem.k, config.shape.tile_m, problem.element};
}

TiledMatrix MatrixOfW(const GemmProblem& problem, const GemmConfig& config, uint64_t address) {
  const bool kn = problem.weights == WeightLayout::kKN;
  return {address, kn ? problem.k : problem.n, kn ? problem.n : problem.k,
          config.shape.weight_box_rows[static_cast<int>(problem.weights)], problem.element};
}

/// What a call takes of a workspace. A single rank stores to the output and takes nothing.
CallFootprint Need(const GemmProblem& problem, const GemmConfig& config,
                   const WorkspaceCapacity& capacity) {
  if (problem.ranks == 1 && problem.output == problem.element) return {};
  const CallShape shape = ShapeOf(problem, config);
  return Footprint(shape, DataPitch(shape, capacity));
}

}  // namespace

std::string WhyNotFitting(const GemmProblem& problem, const GemmConfig& config,
                          const WorkspaceCapacity& capacity) {
  const CallFootprint need = Need(problem, config, capacity);
  if (Fits(need, capacity)) return "";
  return StrCat("the call does not fit its workspace: it needs ", need.data_bytes, " bytes and ",
                need.tiles, " tile flags, the workspace has ", capacity.data_bytes, " and ",
                capacity.tiles, "; ", Describe(problem),
                "; open the workspace with a larger max_m or n");
}

StatusOr<KernelParams> MakeKernelParams(const GemmProblem& problem, const GemmConfig& config,
                                        const RankMemory& memory, const CallBuffers& buffers,
                                        uint32_t call) {
  const std::string misfit = WhyNotFitting(problem, config, memory.capacity);
  if (!misfit.empty()) return InvalidArgument(misfit);
  const CallFootprint need = Need(problem, config, memory.capacity);
  const WorkspaceLayout layout = LayOut(memory.capacity);
  KernelParams params = {};
  params.rows = problem.rows;
  params.n = problem.n;
  params.k = problem.k;
  params.m_groups_per_band = config.m_groups_per_band;
  params.rank = memory.rank;
  params.ranks = problem.ranks;
  params.call = call;
  params.data_pitch = DataPitch(ShapeOf(problem, config), memory.capacity);
  params.output_type =
      problem.output == ElementType::kF32 ? OutputType::kFloat32 : OutputType::kElement;
  for (size_t i = 0; i < memory.workspaces.size(); ++i) params.workspace[i] = memory.workspaces[i];
  params.multicast_workspace = memory.multicast;
  params.flags_offset = layout.flags_offset;
  params.result_flags_offset = layout.result_flags_offset;
  params.data_offset = layout.data_offset;
  params.result_offset = layout.data_offset + need.result_offset;
  params.output = reinterpret_cast<void*>(buffers.output);
  params.output_pitch = problem.n;
  params.axis_index = reinterpret_cast<const int32_t*>(buffers.axis_index);
  params.timeout_ns = memory.timeout_ns;
  params.abort_word = reinterpret_cast<const uint32_t*>(memory.abort_word);
  params.fault_record = reinterpret_cast<LaunchRecord*>(memory.fault_record);
  return params;
}

Status Launch(const KernelLibrary& library, const GemmProblem& problem, const GemmConfig& config,
              const KernelParams& params, const CallBuffers& buffers, driver::Stream stream) {
  const driver::Api& api = library.api();
  const std::string name = KernelName(problem, config);
  JAX_SYMM_ASSIGN_OR_RETURN(driver::Kernel kernel, library.Find(name));
  driver::TensorMap x_map;
  driver::TensorMap w_map;
  JAX_SYMM_RETURN_IF_ERROR(EncodeTensorMap(api, MatrixOfX(problem, config, buffers.x), &x_map));
  JAX_SYMM_RETURN_IF_ERROR(EncodeTensorMap(api, MatrixOfW(problem, config, buffers.w), &w_map));
  driver::LaunchAttribute cluster = {};
  cluster.id = driver::kLaunchClusterDimension;
  cluster.value.cluster = {config.shape.cluster, 1, 1};
  const driver::LaunchConfig launch = {.grid_x = config.ctas,
                                       .grid_y = 1,
                                       .grid_z = 1,
                                       .block_x = config.shape.threads,
                                       .block_y = 1,
                                       .block_z = 1,
                                       .shared_bytes = config.shape.shared_bytes,
                                       .stream = stream,
                                       .attributes = &cluster,
                                       .num_attributes = 1};
  KernelParams copy = params;
  void* arguments[] = {&x_map, &w_map, &copy};
  return driver::Call(api, api.cuLaunchKernelEx, name, &launch, kernel, arguments, nullptr);
}

}  // namespace jax_symm
