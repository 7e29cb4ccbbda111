// The least that a test program needs: a condition that must hold, with its place and its values.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/status.h"

#define CHECK(condition, ...)                                                              \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " << #condition                       \
                << " does not hold: " << ::jax_symm::StrCat("" __VA_OPT__(, ) __VA_ARGS__) \
                << std::endl;                                                              \
      std::_Exit(1);                                                                       \
    }                                                                                      \
  } while (false)

#define CHECK_OK(expr)                                \
  do {                                                \
    const ::jax_symm::Status check_status = (expr);   \
    CHECK(check_status.ok(), check_status.message()); \
  } while (false)

namespace jax_symm {

template <typename T>
T ValueOrDie(StatusOr<T> result) {
  CHECK(result.ok(), result.status().message());
  return *std::move(result);
}

inline void CheckError(const Status& status, StatusCode code, const std::string& part) {
  CHECK(status.code() == code, StatusCodeName(status.code()), ": ", status.message());
  CHECK(status.message().find(part) != std::string::npos, "'", part,
        "' is not in: ", status.message());
}

}  // namespace jax_symm
