// Errors as values. No exception crosses a handler, a deleter or a C ABI: everything below
// ffi/python returns Status or StatusOr, with the codes that XLA's FFI has.
#pragma once

#include <cassert>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace jax_symm {

/// Numbered as absl::StatusCode and xla::ffi::ErrorCode are, so a code passes unchanged.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

const char* StatusCodeName(StatusCode code);

// No streams: where the compiler links its C++ library statically, their locale facets clash with
// those of the copy that the interpreter's other modules use.
template <typename T>
void AppendText(std::string& text, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    text += std::string_view(value);
  } else if constexpr (std::is_same_v<T, char>) {
    text += value;
  } else if constexpr (std::is_floating_point_v<T>) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%g", static_cast<double>(value));
    text += digits;
  } else {
    text += std::to_string(value);
  }
}

/// The texts of its arguments, joined.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::string text;
  (AppendText(text, args), ...);
  return text;
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }

template <typename... Args>
Status MakeStatus(StatusCode code, const Args&... args) {
  return Status(code, StrCat(args...));
}

template <typename... Args>
Status InvalidArgument(const Args&... args) {
  return MakeStatus(StatusCode::kInvalidArgument, args...);
}
template <typename... Args>
Status FailedPrecondition(const Args&... args) {
  return MakeStatus(StatusCode::kFailedPrecondition, args...);
}
template <typename... Args>
Status ResourceExhausted(const Args&... args) {
  return MakeStatus(StatusCode::kResourceExhausted, args...);
}
template <typename... Args>
Status DeadlineExceeded(const Args&... args) {
  return MakeStatus(StatusCode::kDeadlineExceeded, args...);
}
template <typename... Args>
Status Unavailable(const Args&... args) {
  return MakeStatus(StatusCode::kUnavailable, args...);
}
template <typename... Args>
Status Unimplemented(const Args&... args) {
  return MakeStatus(StatusCode::kUnimplemented, args...);
}
template <typename... Args>
Status Internal(const Args&... args) {
  return MakeStatus(StatusCode::kInternal, args...);
}

/// A value or the error that kept it from being made.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) { assert(!status_.ok()); }
  StatusOr(T value) : value_(std::move(value)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace jax_symm

#define JAX_SYMM_CONCAT_INNER(a, b) a##b
#define JAX_SYMM_CONCAT(a, b) JAX_SYMM_CONCAT_INNER(a, b)

#define JAX_SYMM_RETURN_IF_ERROR(expr)                                      \
  do {                                                                      \
    if (::jax_symm::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

/// JAX_SYMM_ASSIGN_OR_RETURN(auto value, Call());
#define JAX_SYMM_ASSIGN_OR_RETURN(lhs, expr) \
  JAX_SYMM_ASSIGN_OR_RETURN_IMPL(JAX_SYMM_CONCAT(status_or_, __LINE__), lhs, expr)
#define JAX_SYMM_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return tmp.status();                  \
  lhs = *std::move(tmp)
