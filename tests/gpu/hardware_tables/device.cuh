// Inline PTX and host helpers shared by the measurements.
#ifndef JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_DEVICE_CUH_
#define JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_DEVICE_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace jax_symm::hardware_tables {

// Polls before a phase is called incomplete: far longer than any copy here takes. An emulator may
// do with fewer.
#ifndef JAX_SYMM_HARDWARE_TABLES_POLLS
#define JAX_SYMM_HARDWARE_TABLES_POLLS (1 << 20)
#endif
constexpr int kPolls = JAX_SYMM_HARDWARE_TABLES_POLLS;

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Device memory for the life of one measurement.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    Check(cudaMalloc(&data_, size_ * sizeof(T)), "cudaMalloc");
    Check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy in");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }

  std::vector<T> Read() const {
    std::vector<T> values(size_);
    Check(cudaDeviceSynchronize(), "kernel");
    Check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy out");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Dynamic shared memory starts anywhere; swizzle patterns repeat every 1024 bytes.
__device__ inline uint8_t* AlignTo1024(uint8_t* pointer) {
  return pointer + (-SharedAddress(pointer) & 1023u);
}

__device__ inline void BarrierInit(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count)
               : "memory");
}

__device__ inline void BarrierArriveExpectTx(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ inline bool BarrierTestParity(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// True once the phase of this parity has completed, false if it never does.
__device__ inline bool BarrierPollParity(uint64_t* barrier, uint32_t parity) {
  for (int poll = 0; poll < kPolls; ++poll) {
    if (BarrierTestParity(barrier, parity)) return true;
  }
  return false;
}

__device__ inline void FenceProxyAsync() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace jax_symm::hardware_tables

#endif  // JAX_SYMM_TESTS_GPU_HARDWARE_TABLES_DEVICE_CUH_
