// Launches of the fake driver. Whatever the kernel, a launch computes what its name and parameters
// say: it waits for the launches of the other ranks, whose workspaces it knows by address, and the
// last one computes all results in plain loops. No tiles, no flags, no time: what is shown is that
// the host passes the right kernel, grid and parameters. Those of every launch are appended to the
// file that FAKE_CUDA_LAUNCHES names, if it does, for whoever can execute the kernel itself.
#include "fake_launch.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/layout/kernel_params.h"

namespace {

using namespace jax_symm;

/// What the fake keeps in a tensor map.
struct Matrix {
  const uint16_t* data;
  uint64_t columns;
  uint64_t rows;
  uint64_t pitch_bytes;
  uint32_t box[2];
  int type;
  int swizzle;
};
static_assert(sizeof(Matrix) <= sizeof(TensorMap));

struct Launch {
  std::string kernel;
  Matrix x;
  Matrix w;
  KernelParams params;

  bool Has(const char* part) const { return kernel.find(part) != std::string::npos; }
};

std::string ToJson(const Matrix& m) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "{\"address\": %llu, \"dims\": [%llu, %llu], \"pitch_bytes\": %llu, "
                "\"box\": [%u, %u], \"type\": %d, \"swizzle\": %d}",
                reinterpret_cast<unsigned long long>(m.data),
                static_cast<unsigned long long>(m.columns), static_cast<unsigned long long>(m.rows),
                static_cast<unsigned long long>(m.pitch_bytes), m.box[0], m.box[1], m.type,
                m.swizzle);
  return text;
}

/// One line of JSON.
void Record(const LaunchConfig& config, const Launch& launch) {
  const char* path = std::getenv("FAKE_CUDA_LAUNCHES");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::string params;
  for (size_t i = 0; i < sizeof(KernelParams); ++i) {
    char digits[3];
    const auto* bytes = reinterpret_cast<const unsigned char*>(&launch.params);
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    params += digits;
  }
  const unsigned cluster = config.num_attributes > 0 ? config.attributes[0].value.cluster.x : 1;
  std::fprintf(file,
               "{\"kernel\": \"%s\", \"rank\": %u, \"grid\": %u, \"block\": %u, \"cluster\": %u, "
               "\"shared_bytes\": %u, \"x\": %s, \"w\": %s, \"params\": \"%s\"}\n",
               launch.kernel.c_str(), launch.params.rank, config.grid_x, config.block_x, cluster,
               config.shared_bytes, ToJson(launch.x).c_str(), ToJson(launch.w).c_str(),
               params.c_str());
  std::fclose(file);
}

float ToFloat(uint16_t bits, bool bf16) {
  if (!bf16) {
    _Float16 half;
    std::memcpy(&half, &bits, sizeof(half));
    return static_cast<float>(half);
  }
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t FromFloat(float value, bool bf16) {
  if (!bf16) {
    const auto half = static_cast<_Float16>(value);
    uint16_t bits;
    std::memcpy(&bits, &half, sizeof(bits));
    return bits;
  }
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

float At(const Matrix& matrix, uint64_t row, uint64_t column, bool bf16) {
  const uint16_t* start = matrix.data + row * matrix.pitch_bytes / sizeof(uint16_t);
  return ToFloat(start[column], bf16);
}

/// The partial product of one rank, rounded once.
std::vector<float> Partial(const Launch& launch) {
  const bool bf16 = launch.Has("_bf16_");
  const bool kn = launch.Has("_kn_");
  const KernelParams& p = launch.params;
  const uint64_t rows = p.rows.TotalRows();
  std::vector<float> x(rows * p.k), w(uint64_t{p.k} * p.n), product(rows * p.n);
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t l = 0; l < p.k; ++l) x[i * p.k + l] = At(launch.x, i, l, bf16);
  }
  for (uint64_t l = 0; l < p.k; ++l) {
    for (uint64_t j = 0; j < p.n; ++j) {
      w[l * p.n + j] = kn ? At(launch.w, l, j, bf16) : At(launch.w, j, l, bf16);
    }
  }
  for (uint64_t i = 0; i < rows; ++i) {
    float* out = &product[i * p.n];
    for (uint64_t l = 0; l < p.k; ++l) {
      const float factor = x[i * p.k + l];
      for (uint64_t j = 0; j < p.n; ++j) out[j] += factor * w[l * p.n + j];
    }
    for (uint64_t j = 0; j < p.n; ++j) out[j] = ToFloat(FromFloat(out[j], bf16), bf16);
  }
  return product;
}

void Store(const Launch& launch, uint64_t row, uint64_t column, float value) {
  const KernelParams& p = launch.params;
  const uint64_t index = row * p.output_pitch + column;
  if (p.output_type == OutputType::kFloat32) {
    static_cast<float*>(p.output)[index] = value;
  } else {
    static_cast<uint16_t*>(p.output)[index] = FromFloat(value, launch.Has("_bf16_"));
  }
}

/// Every rank's result, from the sum of the partials in rank order.
void Compute(const std::vector<Launch>& group) {
  const KernelParams& p = group[0].params;
  std::vector<float> sum;
  for (const Launch& launch : group) {
    const std::vector<float> partial = Partial(launch);
    if (sum.empty()) sum.assign(partial.size(), 0.0f);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += partial[i];
  }
  for (uint32_t rank = 0; rank < group.size(); ++rank) {
    const bool scatter = group[rank].Has("_rs");
    if (scatter) {  // padding rows are zero
      for (uint64_t i = 0; i < p.rows.ShardRows(); ++i) {
        for (uint64_t j = 0; j < p.n; ++j) Store(group[rank], i, j, 0.0f);
      }
    }
    for (uint32_t i = 0; i < p.rows.TotalRows(); ++i) {
      if (scatter && p.rows.Owner(i) != rank) continue;
      const uint64_t row = scatter ? p.rows.ShardRow(i) : i;
      for (uint64_t j = 0; j < p.n; ++j) Store(group[rank], row, j, sum[uint64_t{i} * p.n + j]);
    }
  }
}

void Refuse(const std::vector<Launch>& group, const Verdict& verdict) {
  for (const Launch& launch : group) {
    const KernelParams& p = launch.params;
    const uint64_t rows = launch.Has("_rs") ? p.rows.ShardRows() : p.rows.TotalRows();
    for (uint64_t i = 0; i < rows; ++i) {
      for (uint64_t j = 0; j < p.n; ++j) {
        Store(launch, i, j, std::numeric_limits<float>::quiet_NaN());
      }
    }
    p.fault_record->verdict = PackVerdict(verdict);
  }
}

/// Launches that wait for other ranks', by the address of rank 0's workspace.
class Meetings {
 public:
  void Arrive(const Launch& launch) {
    std::lock_guard lock(mutex_);
    const KernelParams& p = launch.params;
    Meeting& meeting = meetings_[p.workspace[0].value];
    meeting.waiting.resize(p.ranks);
    meeting.waiting[p.rank].push_back(launch);
    std::vector<Launch> group;
    for (auto& queue : meeting.waiting) {
      if (queue.empty()) return;
      group.push_back(queue.front());
    }
    for (auto& queue : meeting.waiting) queue.pop_front();
    ++meeting.epoch;
    for (uint32_t rank = 0; rank < p.ranks; ++rank) {
      const KernelParams& other = group[rank].params;
      if (*other.axis_index != static_cast<int32_t>(rank)) {
        return Refuse(group, {FaultKind::kWrongRank, rank, rank, meeting.epoch});
      }
      if (other.call != group[0].params.call) {
        return Refuse(group, {FaultKind::kOtherCall, 0, rank, meeting.epoch});
      }
    }
    Compute(group);
  }

 private:
  struct Meeting {
    uint64_t epoch = 0;
    std::vector<std::deque<Launch>> waiting;  // by rank
  };
  std::mutex mutex_;
  std::map<uint64_t, Meeting> meetings_;
};

}  // namespace

extern "C" {

Result cuLibraryLoadData(Library* library, const void* code, int*, void**, unsigned, int*, void**,
                         unsigned) {
  *library = const_cast<void*>(code);
  return Report("cuLibraryLoadData");
}
Result cuLibraryUnload(Library) { return Report("cuLibraryUnload"); }
Result cuLibraryGetKernel(Kernel* kernel, Library, const char* name) {
  *kernel = new std::string(name);  // lives as long as the process, as the libraries do
  return kSuccess;
}
Result cuKernelGetFunction(void** function, Kernel kernel) {
  *function = kernel;
  return kSuccess;
}
Result cuKernelSetAttribute(int, int, Kernel, Device) { return kSuccess; }

Result cuTensorMapEncodeTiled(TensorMap* map, int type, uint32_t rank, void* address,
                              const uint64_t* dims, const uint64_t* strides_bytes,
                              const uint32_t* box, const uint32_t*, int, int swizzle, int, int) {
  if (rank != 2 || reinterpret_cast<uint64_t>(address) % 16 != 0 || strides_bytes[0] % 16 != 0) {
    return kInvalidValue;
  }
  const Matrix matrix = {static_cast<const uint16_t*>(address),
                         dims[0],
                         dims[1],
                         strides_bytes[0],
                         {box[0], box[1]},
                         type,
                         swizzle};
  std::memcpy(map, &matrix, sizeof(matrix));
  return kSuccess;
}

Result cuLaunchKernelEx(const LaunchConfig* config, Kernel kernel, void** parameters, void**) {
  Launch launch = {*static_cast<std::string*>(kernel), {}, {}, {}};
  std::memcpy(&launch.x, parameters[0], sizeof(Matrix));
  std::memcpy(&launch.w, parameters[1], sizeof(Matrix));
  std::memcpy(&launch.params, parameters[2], sizeof(KernelParams));
  const Result result = ReportLaunch(launch.params.rank, *config, launch.kernel.c_str());
  if (result != kSuccess) return result;
  Record(*config, launch);
  static auto* const meetings = new Meetings;
  meetings->Arrive(launch);
  return kSuccess;
}

Result cuMemHostAlloc(void** host, size_t nbytes, unsigned) {
  *host = std::aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
  return Report("cuMemHostAlloc");
}
Result cuMemFreeHost(void* host) {
  std::free(host);
  return Report("cuMemFreeHost");
}
Result cuMemHostGetDevicePointer_v2(DevicePtr* address, void* host, unsigned) {
  *address = reinterpret_cast<DevicePtr>(host);
  return kSuccess;
}

// A launch has ended when it returns, or waits for one that is still to come; so streams and events
// order nothing here. What an event answers can be scripted.
Result cuEventCreate(Event* event, unsigned) {
  static int some_event;
  *event = &some_event;
  return kSuccess;
}
Result cuEventDestroy_v2(Event) { return kSuccess; }
Result cuEventRecord(Event, Stream) { return kSuccess; }
Result cuEventQuery(Event) { return Report("cuEventQuery"); }
Result cuStreamWaitEvent(Stream, Event, unsigned) { return kSuccess; }
Result cuStreamCreate(Stream* stream, unsigned) {
  static int some_stream;
  *stream = &some_stream;
  return kSuccess;
}
Result cuStreamDestroy_v2(Stream) { return kSuccess; }
Result cuStreamSynchronize(Stream) { return kSuccess; }

}  // extern "C"
