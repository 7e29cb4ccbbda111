#include "base/log.h"

#include <atomic>
#include <cstdio>

namespace jax_symm {
namespace {

std::atomic<LogSink> g_sink{nullptr};
std::atomic<bool> g_exiting{false};

}  // namespace

void SetLogSink(LogSink sink) { g_sink.store(sink); }

void Log(LogLevel level, const std::string& message) noexcept {
  if (LogSink sink = g_sink.load()) {
    sink(level, message);
  } else if (level >= LogLevel::kWarning) {
    std::fprintf(stderr, "jax_symm: %s\n", message.c_str());
  }
}

bool ProcessIsExiting() { return g_exiting.load(); }
void MarkProcessExiting() { g_exiting.store(true); }

}  // namespace jax_symm
