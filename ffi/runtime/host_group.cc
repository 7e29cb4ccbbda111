#include "runtime/host_group.h"

namespace jax_symm {

std::string GroupOptions::Describe() const {
  return StrCat("workspace '", workspace, "', axis '", axis, "', group ", index);
}

std::string GroupOptions::Labels(const std::vector<int>& ranks) const {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + rank_labels[rank];
  return text;
}

}  // namespace jax_symm
