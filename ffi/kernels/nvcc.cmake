# Finds nvcc 13.0 or newer of major version 13, in this order: JAX_SYMM_NVCC, the environment's
# CUDACXX, CUDA_HOME or CUDA_PATH, the path and /usr/local/cuda, the PyPI packages.

set(JAX_SYMM_NVCC_FLAGS
  -std=c++20 -O3 -lineinfo -Xptxas --warn-on-spills -Xptxas --warn-on-local-memory-usage
  CACHE STRING "Flags of nvcc for the kernels")

# Sets <result> to the nvcc of the PyPI packages, or empties it.
function(jax_symm_nvcc_of_packages result)
  set(${result} "" PARENT_SCOPE)
  if(NOT Python_EXECUTABLE)
    find_package(Python COMPONENTS Interpreter QUIET)
  endif()
  if(NOT Python_EXECUTABLE)
    return()
  endif()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import pathlib, nvidia\nfor p in nvidia.__path__:\n  n = pathlib.Path(p, 'cu13/bin/nvcc')\n  if n.exists(): print(n); break"
    OUTPUT_VARIABLE nvcc OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${nvcc}" PARENT_SCOPE)
endfunction()

function(jax_symm_find_nvcc)
  if(NOT JAX_SYMM_NVCC)
    find_program(JAX_SYMM_NVCC nvcc
      HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
      PATHS /usr/local/cuda/bin /usr/local/cuda-13.0/bin)
    if(DEFINED ENV{CUDACXX})
      set(JAX_SYMM_NVCC $ENV{CUDACXX} CACHE FILEPATH "nvcc" FORCE)
    elseif(NOT JAX_SYMM_NVCC)
      jax_symm_nvcc_of_packages(nvcc)
      set(JAX_SYMM_NVCC "${nvcc}" CACHE FILEPATH "nvcc" FORCE)
    endif()
  endif()
  if(NOT JAX_SYMM_NVCC)
    message(FATAL_ERROR "the CUDA kernels need nvcc 13: install a CUDA 13 toolkit, or "
      "pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' "
      "'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*', or set JAX_SYMM_NVCC; "
      "JAX_SYMM_ENABLE_CUDA=OFF builds without kernels")
  endif()
  execute_process(COMMAND ${JAX_SYMM_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" ignored "${version}")
  if(NOT CMAKE_MATCH_1 VERSION_GREATER_EQUAL 13.0)
    message(FATAL_ERROR "nvcc 13.0 or newer is needed, got '${CMAKE_MATCH_1}' (${JAX_SYMM_NVCC})")
  endif()
  message(STATUS "Kernels by nvcc ${CMAKE_MATCH_1}: ${JAX_SYMM_NVCC}")
endfunction()
