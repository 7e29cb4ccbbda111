// Runs one measurement in a process of its own: a fault of the device ends a CUDA process for good.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_ISOLATED_H_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_ISOLATED_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "json.h"

namespace jax_symm::hardware_tables {

// The measured object, or `description` with the error as "fault" where the device refused. The
// caller must not have used CUDA yet: a context does not survive fork().
template <typename Case>
Object Isolated(Object (*measure)(const Case&), Object description, const Case& c) {
  int ends[2];
  if (pipe(ends) != 0) std::exit(1);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const std::string text = measure(c).Body();
    const bool sent = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, got);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status == 0) return Object(text);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return description.Add("fault", text);
}

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_ISOLATED_H_
