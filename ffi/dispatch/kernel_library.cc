#include "dispatch/kernel_library.h"

#include <span>

#include "dispatch/sm90_spec.h"
#include "kernels/embedded_cubins.h"

namespace jax_symm {
namespace {

struct NamedKernel {
  std::string name;
  uint32_t shared_bytes;
};

/// Every kernel of an element type and a weight layout: what one cubin holds.
std::vector<NamedKernel> KernelsOf(Arch arch, ElementType element, WeightLayout weights) {
  std::vector<NamedKernel> names;
  GemmProblem problem = {.element = element, .weights = weights};
  for (const TileShape& shape : Sm90Shapes()) {
    for (Reducer reducer : {Reducer::kPush, Reducer::kPull, Reducer::kMulticast}) {
      for (Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
        problem.collective = collective;
        const GemmConfig config = {.arch = arch, .reducer = reducer, .shape = shape};
        names.push_back({KernelName(problem, config), shape.shared_bytes});
      }
    }
  }
  return names;
}

std::string CubinName(Arch arch, ElementType element, WeightLayout weights) {
  return StrCat(ArchName(arch), "_", ElementName(element),
                weights == WeightLayout::kKN ? "_kn" : "_nk");
}

const void* FindImage(const std::string& name) {
  for (const EmbeddedCubin& cubin : EmbeddedCubins()) {
    if (cubin.name == name) return cubin.image;
  }
  return nullptr;
}

}  // namespace

StatusOr<std::shared_ptr<KernelLibrary>> KernelLibrary::Load(std::shared_ptr<const driver::Api> api,
                                                             Arch arch) {
  std::shared_ptr<KernelLibrary> library(new KernelLibrary(std::move(api), arch));
  JAX_SYMM_RETURN_IF_ERROR(library->LoadImages());
  return library;
}

Status KernelLibrary::LoadImages() {
  for (ElementType element : {ElementType::kBf16, ElementType::kF16}) {
    for (WeightLayout weights : {WeightLayout::kKN, WeightLayout::kNK}) {
      const std::string cubin = CubinName(arch_, element, weights);
      const void* image = FindImage(cubin);
      if (image == nullptr) {
        return Unimplemented("this build of jax_symm holds no kernels '", cubin,
                             "'; build it with JAX_SYMM_ENABLE_CUDA=ON, or use path=\"xla\"");
      }
      driver::Library library = nullptr;
      JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuLibraryLoadData,
                                            StrCat("loading ", cubin), &library, image, nullptr,
                                            nullptr, 0U, nullptr, nullptr, 0U));
      libraries_.push_back(library);
      for (const NamedKernel& named : KernelsOf(arch_, element, weights)) {
        driver::Kernel kernel = nullptr;
        JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuLibraryGetKernel, named.name, &kernel,
                                              library, named.name.c_str()));
        kernels_.emplace(named.name, kernel);
        shared_bytes_.emplace(named.name, named.shared_bytes);
      }
    }
  }
  return OkStatus();
}

Status KernelLibrary::Prepare(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (prepared_.contains(device)) return OkStatus();
  for (const auto& [name, kernel] : kernels_) {
    const std::string detail = StrCat("preparing ", name, " on device ", device);
    void* loaded = nullptr;  // asking for the function loads the module in the current context
    JAX_SYMM_RETURN_IF_ERROR(
        driver::Call(*api_, api_->cuKernelGetFunction, detail, &loaded, kernel));
    JAX_SYMM_RETURN_IF_ERROR(
        driver::Call(*api_, api_->cuKernelSetAttribute, detail, driver::kMaxDynamicSharedBytes,
                     static_cast<int>(shared_bytes_.find(name)->second), kernel, device));
  }
  prepared_.insert(device);
  return OkStatus();
}

StatusOr<driver::Kernel> KernelLibrary::Find(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) return Unimplemented("there is no kernel '", name, "'");
  return found->second;
}

KernelLibrary::~KernelLibrary() {
  if (!api_->Usable()) return;
  for (driver::Library library : libraries_) api_->cuLibraryUnload.function(library);
}

}  // namespace jax_symm
