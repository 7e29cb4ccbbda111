// The entry points of the fake driver that load kernels and launch them.
#pragma once

#include "driver/driver_abi.h"

extern "C" {
using namespace jax_symm::driver;

Result cuLibraryLoadData(Library*, const void*, int*, void**, unsigned, int*, void**, unsigned);
Result cuLibraryUnload(Library);
Result cuLibraryGetKernel(Kernel*, Library, const char* name);
Result cuKernelGetFunction(void** function, Kernel);
Result cuKernelSetAttribute(int attribute, int value, Kernel, Device);
Result cuTensorMapEncodeTiled(TensorMap*, int type, uint32_t rank, void* address,
                              const uint64_t* dims, const uint64_t* strides_bytes,
                              const uint32_t* box, const uint32_t* element_strides, int, int, int,
                              int);
Result cuLaunchKernelEx(const LaunchConfig*, Kernel, void** parameters, void**);
Result cuMemHostAlloc(void** host, size_t nbytes, unsigned);
Result cuMemFreeHost(void* host);
Result cuMemHostGetDevicePointer_v2(DevicePtr* address, void* host, unsigned);
Result cuEventCreate(Event*, unsigned);
Result cuEventDestroy_v2(Event);
Result cuEventRecord(Event, Stream);
Result cuEventQuery(Event);
Result cuStreamWaitEvent(Stream, Event, unsigned);
Result cuStreamCreate(Stream*, unsigned);
Result cuStreamDestroy_v2(Stream);
Result cuStreamSynchronize(Stream);
}

/// Tells the server of a launch, which may answer with a fault.
Result ReportLaunch(uint32_t rank, const LaunchConfig& config, const char* kernel);
/// Tells the server of a call without arguments.
Result Report(const char* call);
