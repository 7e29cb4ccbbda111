#include "dispatch/config_choice.h"

#include "dispatch/sm100_spec.h"
#include "dispatch/sm90_spec.h"

namespace jax_symm {

StatusOr<Arch> ArchOf(int major, int minor) {
  if (major == 9 && minor == 0) return Arch::kSm90;
  // sm_100f code runs on the whole family: 10.0 (B200, GB200) and 10.3 (B300, GB300).
  if (major == 10) return Arch::kSm100;
  return Unimplemented("there are kernels for compute capability 9.0 and 10.x, got ", major, ".",
                       minor, "; use path=\"xla\"");
}

StatusOr<Arch> ArchNamed(const std::string& name) {
  for (Arch arch : {Arch::kSm90, Arch::kSm100}) {
    if (name == ArchName(arch)) return arch;
  }
  return InvalidArgument("there are kernels for sm90 and sm100, got '", name, "'");
}

std::span<const TileShape> ShapesOf(Arch arch) {
  return arch == Arch::kSm90 ? Sm90Shapes() : Sm100Shapes(Reducer::kPush);
}

GemmConfig ChooseConfig(Arch arch, const GemmProblem& problem, Reducer reducer, uint32_t max_ctas) {
  return arch == Arch::kSm90 ? ChooseSm90Config(problem, reducer, max_ctas)
                             : ChooseSm100Config(problem, reducer, max_ctas);
}

}  // namespace jax_symm
