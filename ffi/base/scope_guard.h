#pragma once

#include <utility>

namespace jax_symm {

/// Runs a function when the scope ends, unless released.
template <typename F>
class [[nodiscard]] ScopeGuard {
 public:
  explicit ScopeGuard(F on_exit) : on_exit_(std::move(on_exit)) {}
  ~ScopeGuard() {
    if (armed_) on_exit_();
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

  void Release() { armed_ = false; }

 private:
  F on_exit_;
  bool armed_ = true;
};

}  // namespace jax_symm
