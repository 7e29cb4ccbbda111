# What every target of ours has in common, and where the headers that come from Python packages are.

# jax_symm_library(<name> SOURCES ... DEPENDS ...): a static library below the extension module.
function(jax_symm_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  jax_symm_target(${name})
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS})
endfunction()

# jax_symm_target(<name>): includes relative to ffi/, warnings, sanitizers.
function(jax_symm_target name)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/ffi)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${JAX_SYMM_WERROR}>>:-Werror>)
  if(JAX_SYMM_SANITIZE)
    target_compile_options(${name} PRIVATE
      -fsanitize=${JAX_SYMM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    target_link_options(${name} PUBLIC -fsanitize=${JAX_SYMM_SANITIZE})
  endif()
endfunction()

# The FFI accepts handlers built against its own or an older API, so the headers come from the
# oldest jaxlib that we support (the build requirement in pyproject.toml).
function(jax_symm_find_xla_ffi)
  set(include_dir ${JAX_SYMM_XLA_FFI_INCLUDE_DIR})
  if(NOT include_dir)  # asked each time: an isolated build has another path at every run
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c
        "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('jaxlib').origin).parent / 'include')"
      OUTPUT_VARIABLE include_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "jaxlib is not installed for ${Python_EXECUTABLE}: "
        "install jaxlib==0.10.2 or set JAX_SYMM_XLA_FFI_INCLUDE_DIR")
    endif()
  endif()
  if(NOT EXISTS ${include_dir}/xla/ffi/api/ffi.h)
    message(FATAL_ERROR "no xla/ffi/api/ffi.h in ${include_dir}")
  endif()
  file(STRINGS ${include_dir}/xla/ffi/api/c_api.h minor
    REGEX "#define XLA_FFI_API_MINOR")
  string(REGEX MATCH "[0-9]+$" minor "${minor}")
  message(STATUS "XLA FFI headers: API 0.${minor} in ${include_dir}")
  add_library(jax_symm_xla_ffi INTERFACE)
  target_include_directories(jax_symm_xla_ffi SYSTEM INTERFACE ${include_dir})
endfunction()
