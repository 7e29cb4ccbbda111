// The capsules in which jax.ffi takes targets and types.
#pragma once

#include <vector>

#include "python/bindings.h"
#include "xla/ffi_targets.h"

namespace jax_symm {

inline nb::capsule FfiCapsule(void* pointer) {
  return nb::capsule(pointer, "xla._CUSTOM_CALL_TARGET");
}

inline nb::dict FfiTargetCapsules(const std::vector<FfiTarget>& targets) {
  nb::dict capsules;
  for (const FfiTarget& target : targets) {
    nb::dict stages;
    stages["instantiate"] = FfiCapsule(target.instantiate);
    stages["execute"] = FfiCapsule(target.execute);
    capsules[target.name] = stages;
  }
  return capsules;
}

inline nb::dict FfiTypeCapsules(const std::vector<FfiType>& types) {
  nb::dict capsules;
  for (const FfiType& type : types) {
    nb::dict ids;
    ids["type_id"] = FfiCapsule(type.type_id);
    ids["type_info"] = FfiCapsule(type.type_info);
    capsules[type.name] = ids;
  }
  return capsules;
}

}  // namespace jax_symm
