// The three ways of adding up the ranks' contributions to a row, and of handing the sum to the
// others. `Sum` adds in f32 in rank order, but for multicast, where the switch adds.
#pragma once

#include <cstdint>

#include "kernels/comm/vector_math.cuh"
#include "kernels/layout/placement.h"
#include "kernels/ptx/fence.cuh"
#include "kernels/ptx/multimem.cuh"

namespace jax_symm {

/// Where one thread works: eight columns of a row. Not `live`: nothing to do there.
struct Place {
  uint64_t data;        // offset, in a workspace, of the contributions
  uint32_t output_row;  // row of the output as XLA sees it
  bool live;
};

/// A thread loads places x sources vectors before it adds any: with two warps an SM, that many are
/// needed to cover the latency of memory.
inline constexpr int kPlacesInFlight = 4;
inline constexpr int kSourcesInFlight = 2;

using Sums = float[kPlacesInFlight][kVectorElements];

/// Push and pull differ in where the partials are. Push: the sources have written them into this
/// rank's slots. Pull: they are read from the sources' memory.
template <Reducer kKind>
struct PeerReducer {
  static constexpr Reducer kReducer = kKind;

  /// After the flags have been acquired.
  __device__ static void BeforeReads() {}

  template <typename Element>
  __device__ static void Sum(const KernelParams& params, const Place (&places)[kPlacesInFlight],
                             Sums& sums) {
    for (uint32_t first = 0; first < params.ranks; first += kSourcesInFlight) {
      ptx::Vector loaded[kSourcesInFlight][kPlacesInFlight] = {};
#pragma unroll
      for (int s = 0; s < kSourcesInFlight; ++s) {
        if (first + s >= params.ranks) break;
        const uint64_t base = SourceBase(params, first + s);
#pragma unroll
        for (int p = 0; p < kPlacesInFlight; ++p) {
          if (!places[p].live) continue;
          loaded[s][p] = ptx::LoadVector(reinterpret_cast<const void*>(base + places[p].data));
        }
      }
#pragma unroll
      for (int s = 0; s < kSourcesInFlight; ++s) {
#pragma unroll
        for (int p = 0; p < kPlacesInFlight; ++p) AddTo<Element>(sums[p], loaded[s][p]);
      }
    }
  }

  /// Stores sixteen bytes of the result, `offset` bytes into every other rank's workspace.
  __device__ static void Broadcast(const KernelParams& params, uint64_t offset,
                                   const ptx::Vector& v) {
    for (uint32_t rank = 0; rank < params.ranks; ++rank) {
      if (rank == params.rank) continue;
      ptx::StoreVector(reinterpret_cast<void*>(params.workspace[rank].value + offset), v);
    }
  }

  /// One thread, after a barrier of those that broadcast and before it releases the flags.
  __device__ static void AfterBroadcast() {}

 private:
  __device__ __forceinline__ static uint64_t SourceBase(const KernelParams& params,
                                                        uint32_t source) {
    if constexpr (kKind == Reducer::kPush) {
      return params.workspace[params.rank].value + source * SlotBytes(params);
    } else {
      return params.workspace[source].value;
    }
  }
};

using PushReducer = PeerReducer<Reducer::kPush>;
using PullReducer = PeerReducer<Reducer::kPull>;

struct MulticastReducer {
  static constexpr Reducer kReducer = Reducer::kMulticast;

  /// The sources wrote by unicast addresses; the reads go by the multicast address.
  __device__ static void BeforeReads() { ptx::FenceProxyAlias(); }

  /// Rounded to Element by the switch, whatever the output type.
  template <typename Element>
  __device__ static void Sum(const KernelParams& params, const Place (&places)[kPlacesInFlight],
                             Sums& sums) {
    ptx::Vector loaded[kPlacesInFlight] = {};
#pragma unroll
    for (int p = 0; p < kPlacesInFlight; ++p) {
      if (!places[p].live) continue;
      const MulticastAddress address = {params.multicast_workspace.value + places[p].data};
      loaded[p] = ptx::MultimemLoadReduce<Element>(address);
    }
#pragma unroll
    for (int p = 0; p < kPlacesInFlight; ++p) AddTo<Element>(sums[p], loaded[p]);
  }

  __device__ static void Broadcast(const KernelParams& params, uint64_t offset,
                                   const ptx::Vector& v) {
    ptx::MultimemStore({params.multicast_workspace.value + offset}, v);
  }

  /// The result is read by unicast addresses.
  __device__ static void AfterBroadcast() { ptx::FenceProxyAlias(); }
};

}  // namespace jax_symm
