#include "runtime/push_exchange.h"

#include <cstring>
#include <utility>

#include "runtime/sum.h"

namespace jax_symm {

Status PushExchange::Run(uint64_t epoch, const HostCall& call) {
  const uint64_t flag = epoch << 24 | CallDigest(options_.nonce, call.key, call.problem);
  JAX_SYMM_RETURN_IF_ERROR(AwaitPeersDone(epoch, call));
  PushRows(call, flag);
  JAX_SYMM_RETURN_IF_ERROR(AwaitFlags(call, flag, &PushMemory::slot_flag, "contributed"));
  SumSlots(call);
  if (call.problem.op == CollectiveOp::kAllReduce) {
    PushResultFlags(flag);
    JAX_SYMM_RETURN_IF_ERROR(
        AwaitFlags(call, flag, &PushMemory::result_flag, "delivered their sums"));
    CopyResult(call);
  }
  SignalDone(epoch);
  return OkStatus();
}

// Slots and result are used by every epoch, so nobody stores before all have read the last one.
Status PushExchange::AwaitPeersDone(uint64_t epoch, const HostCall& call) const {
  auto is_done = [&](int peer) {
    return ranks_[rank_].done(peer).value.load(std::memory_order_acquire) + 1 >= epoch;
  };
  auto missing = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (!is_done(peer)) ranks.push_back(peer);
    }
    return ranks;
  };
  return wait_([&] { return missing().empty(); },
               [&] {
                 return StrCat(Describe(call.key, call.problem), " on ", options_.Describe(),
                               ": these ranks have not finished the call before it: ",
                               options_.Labels(missing()));
               });
}

void PushExchange::PushRows(const HostCall& call, uint64_t flag) const {
  const HostProblem& problem = call.problem;
  const size_t bytes = ElementBytes(problem.in);
  const char* partial = static_cast<const char*>(call.partial);
  for (int step = 1; step < world_size(); ++step) {
    const int owner = (rank_ + step) % world_size();
    const int64_t owned = problem.owned_elements(owner);
    char* slot = ranks_[owner].slot(rank_);
    for (int64_t entry = 0; owned > 0 && entry < problem.batch; ++entry) {
      const int64_t source = entry * problem.entry_elements() + owner * problem.shard_elements();
      std::memcpy(slot + entry * problem.shard_elements() * bytes, partial + source * bytes,
                  owned * bytes);
    }
    ranks_[owner].slot_flag(rank_).value.store(flag, std::memory_order_release);
    ranks_[owner].pad().bell.Ring();
  }
}

Status PushExchange::AwaitFlags(const HostCall& call, uint64_t flag,
                                SignalWord& (PushMemory::*word)(int) const,
                                const char* what) const {
  auto load = [&](int peer) {
    return (ranks_[rank_].*word)(peer).value.load(std::memory_order_acquire);
  };
  auto missing = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer != rank_ && load(peer) >> 24 < flag >> 24) ranks.push_back(peer);
    }
    return ranks;
  };
  JAX_SYMM_RETURN_IF_ERROR(wait_([&] { return missing().empty(); },
                                 [&] {
                                   return StrCat(Describe(call.key, call.problem), " on ",
                                                 options_.Describe(), ": these ranks have not ",
                                                 what, ": ", options_.Labels(missing()));
                                 }));
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || load(peer) == flag) continue;
    return Internal(Describe(call.key, call.problem), " on ", options_.Describe(), ": ",
                    options_.rank_labels[peer], " sent call ", load(peer) & 0xFFFFFF, " of epoch ",
                    load(peer) >> 24, ", ", options_.rank_labels[rank_], " expected call ",
                    flag & 0xFFFFFF, " of epoch ", flag >> 24);
  }
  return OkStatus();
}

void PushExchange::SumSlots(const HostCall& call) const {
  const HostProblem& problem = call.problem;
  const bool scatter = problem.op == CollectiveOp::kReduceScatter;
  const int64_t owned = problem.owned_elements(rank_);
  const size_t bytes = ElementBytes(problem.in);
  std::vector<const void*> sources(world_size());
  std::vector<void*> outputs = {call.result};
  for (int peer = 0; !scatter && peer < world_size(); ++peer) {
    if (peer != rank_) outputs.push_back(ranks_[peer].result());
  }
  for (int64_t entry = 0; entry < problem.batch; ++entry) {
    const int64_t row = entry * problem.entry_elements() + rank_ * problem.shard_elements();
    const int64_t shard = entry * problem.shard_elements();
    for (int peer = 0; peer < world_size(); ++peer) {
      sources[peer] = peer == rank_ ? static_cast<const char*>(call.partial) + row * bytes
                                    : ranks_[rank_].slot(peer) + shard * bytes;
    }
    if (owned > 0) {
      Sum({.sources = sources,
           .outputs = outputs,
           .output_offset = scatter ? shard : row,
           .count = owned,
           .in = problem.in,
           .out = problem.out});
    }
    if (scatter && owned < problem.shard_elements()) {
      const size_t out_bytes = ElementBytes(problem.out);
      std::memset(static_cast<char*>(call.result) + (shard + owned) * out_bytes, 0,
                  (problem.shard_elements() - owned) * out_bytes);
    }
  }
}

void PushExchange::PushResultFlags(uint64_t flag) const {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    ranks_[peer].result_flag(rank_).value.store(flag, std::memory_order_release);
    ranks_[peer].pad().bell.Ring();
  }
}

void PushExchange::CopyResult(const HostCall& call) const {
  const HostProblem& problem = call.problem;
  const size_t bytes = ElementBytes(problem.out);
  const char* from = ranks_[rank_].result();
  char* to = static_cast<char*>(call.result);
  for (int owner = 0; owner < world_size(); ++owner) {
    const int64_t owned = problem.owned_elements(owner);
    if (owner == rank_ || owned == 0) continue;
    for (int64_t entry = 0; entry < problem.batch; ++entry) {
      const int64_t row = entry * problem.entry_elements() + owner * problem.shard_elements();
      std::memcpy(to + row * bytes, from + row * bytes, owned * bytes);
    }
  }
}

void PushExchange::SignalDone(uint64_t epoch) const {
  for (const PushMemory& peer : ranks_) {
    peer.done(rank_).value.store(epoch, std::memory_order_release);
    peer.pad().bell.Ring();
  }
}

}  // namespace jax_symm
