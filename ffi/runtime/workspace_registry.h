// Open workspaces by name. A compiled program holds the name alone and looks it up at each call, so
// it can be compiled, exported or loaded from a cache before the workspace exists, and a workspace
// that is opened again under its name needs no recompilation.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/status.h"

namespace jax_symm {

template <typename Workspace>
class WorkspaceRegistry {
 public:
  /// Never destroyed: threads may look names up while the process exits.
  static WorkspaceRegistry& Get() {
    static auto* const registry = new WorkspaceRegistry;
    return *registry;
  }

  Status Add(const std::string& name, std::shared_ptr<Workspace> workspace) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_.emplace(name, std::move(workspace)).second) {
      return FailedPrecondition("workspace '", name,
                                "' is already open in this process; close it first, or give the "
                                "new one another name");
    }
    return OkStatus();
  }

  StatusOr<std::shared_ptr<Workspace>> Find(std::string_view name) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(name);
    if (found != open_.end()) return found->second;
    if (closed_.contains(name)) {
      return FailedPrecondition("workspace '", name,
                                "' is closed; keep it open while programs that use it run, or "
                                "open it again under this name");
    }
    return FailedPrecondition("workspace '", name,
                              "' is not open in this process; create the jax_symm.Workspace of "
                              "that name before the program runs");
  }

  /// Forgets `workspace`, unless its name is another's by now.
  void Remove(const std::string& name, const Workspace* workspace) {
    std::shared_ptr<Workspace> dropped;  // destroyed without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(name);
    if (found == open_.end() || found->second.get() != workspace) return;
    dropped = std::move(found->second);
    open_.erase(found);
    closed_.insert(name);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Workspace>, std::less<>> open_;
  std::set<std::string, std::less<>> closed_;
};

}  // namespace jax_symm
