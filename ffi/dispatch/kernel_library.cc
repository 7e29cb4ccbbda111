#include "dispatch/kernel_library.h"

#include <span>

#include "dispatch/config_choice.h"
#include "kernels/embedded_images.h"

namespace jax_symm {
namespace {

/// The kernels of an architecture come in one image for each of these.
struct Variant {
  ElementType element;
  WeightLayout weights;
  TileShape shape;
};

std::vector<Variant> Variants(Arch arch) {
  std::vector<Variant> variants;
  for (ElementType element : {ElementType::kBf16, ElementType::kF16}) {
    for (WeightLayout weights : {WeightLayout::kKN, WeightLayout::kNK}) {
      for (const TileShape& shape : ShapesOf(arch)) variants.push_back({element, weights, shape});
    }
  }
  return variants;
}

std::string ImageName(Arch arch, const Variant& v) {
  return StrCat(ArchName(arch), "_", ElementName(v.element),
                v.weights == WeightLayout::kKN ? "_kn_" : "_nk_", v.shape.tile_m, "x",
                v.shape.tile_n, "x", v.shape.cluster);
}

std::vector<std::string> KernelNames(Arch arch, const Variant& v) {
  std::vector<std::string> names;
  for (Reducer reducer : {Reducer::kPush, Reducer::kPull, Reducer::kMulticast}) {
    for (Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
      names.push_back(
          KernelName({.collective = collective, .element = v.element, .weights = v.weights},
                     {.arch = arch, .reducer = reducer, .shape = v.shape}));
    }
  }
  return names;
}

const void* FindImage(const std::string& name) {
  for (const EmbeddedImage& embedded : EmbeddedImages()) {
    if (embedded.name == name) return embedded.image;
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
  for (const Variant& variant : Variants(arch_)) {
    const std::string image_name = ImageName(arch_, variant);
    const void* image = FindImage(image_name);
    if (image == nullptr) {
      return Unimplemented("this build of jax_symm holds no kernels '", image_name,
                           "'; build it with JAX_SYMM_ENABLE_CUDA=ON, or use path=\"xla\"");
    }
    driver::Library library = nullptr;
    JAX_SYMM_RETURN_IF_ERROR(driver::Call(*api_, api_->cuLibraryLoadData,
                                          StrCat("loading ", image_name), &library, image, nullptr,
                                          nullptr, 0U, nullptr, nullptr, 0U));
    libraries_.push_back(library);
    for (const std::string& name : KernelNames(arch_, variant)) {
      driver::Kernel kernel = nullptr;
      JAX_SYMM_RETURN_IF_ERROR(
          driver::Call(*api_, api_->cuLibraryGetKernel, name, &kernel, library, name.c_str()));
      kernels_[name] = {kernel, variant.shape.shared_bytes};
    }
  }
  return OkStatus();
}

Status KernelLibrary::Prepare(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (prepared_.contains(device)) return OkStatus();
  for (const auto& [name, loaded_kernel] : kernels_) {
    const std::string detail = StrCat("preparing ", name, " on device ", device);
    void* function = nullptr;  // asking for the function loads the module in the current context
    JAX_SYMM_RETURN_IF_ERROR(
        driver::Call(*api_, api_->cuKernelGetFunction, detail, &function, loaded_kernel.kernel));
    JAX_SYMM_RETURN_IF_ERROR(
        driver::Call(*api_, api_->cuKernelSetAttribute, detail, driver::kMaxDynamicSharedBytes,
                     static_cast<int>(loaded_kernel.shared_bytes), loaded_kernel.kernel, device));
  }
  prepared_.insert(device);
  return OkStatus();
}

StatusOr<driver::Kernel> KernelLibrary::Find(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) return Unimplemented("there is no kernel '", name, "'");
  return found->second.kernel;
}

KernelLibrary::~KernelLibrary() {
  if (!api_->Usable()) return;
  for (driver::Library library : libraries_) api_->cuLibraryUnload.function(library);
}

}  // namespace jax_symm
