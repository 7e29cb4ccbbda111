// Messages from where no Status can be returned: deleters, helper threads. They go to a sink that
// the Python layer replaces by its logger; before that, and at process exit, to stderr.
#pragma once

#include <string>

namespace jax_symm {

enum class LogLevel { kDebug = 10, kInfo = 20, kWarning = 30, kError = 40 };

/// Called without any lock of ours held. Must not throw.
using LogSink = void (*)(LogLevel level, const std::string& message);

/// Installs `sink`; nullptr restores stderr.
void SetLogSink(LogSink sink);

void Log(LogLevel level, const std::string& message) noexcept;

/// True once the process has begun to exit: deleters then stay silent and leave the driver alone.
bool ProcessIsExiting();
void MarkProcessExiting();

}  // namespace jax_symm
