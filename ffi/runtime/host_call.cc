#include "runtime/host_call.h"

#include <algorithm>

namespace jax_symm {
namespace {

/// The 64-bit finalizer of MurmurHash3 (public domain), over a running value.
uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDULL;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53ULL;
  return hash ^ (hash >> 33);
}

const char* OpName(CollectiveOp op) {
  return op == CollectiveOp::kReduceScatter ? "gemm_reduce_scatter" : "gemm_all_reduce";
}

}  // namespace

int64_t HostProblem::owned_elements(int owner) const {
  return std::clamp<int64_t>(rows - owner * shard_rows, 0, shard_rows) * n;
}

std::string Describe(const HostProblem& problem) {
  return StrCat(OpName(problem.op), "(batch=", problem.batch, ", m=", problem.rows,
                ", k=", problem.k, ", n=", problem.n, ", ", ElementName(problem.in), " -> ",
                ElementName(problem.out), ")");
}

std::string Describe(const CallKey& key, const HostProblem& problem) {
  return StrCat(Describe(problem), " [launch ", key.run_id, ", call site ", key.call_site, "#",
                key.instance, "]");
}

uint32_t CallDigest(int64_t nonce, const CallKey& key, const HostProblem& problem) {
  uint64_t hash = 0x6A09E667F3BCC908ULL;
  for (int64_t value :
       {nonce, key.run_id, key.call_site, key.instance, static_cast<int64_t>(problem.op),
        static_cast<int64_t>(problem.in), static_cast<int64_t>(problem.out), problem.batch,
        problem.rows, problem.shard_rows, problem.n, problem.k}) {
    hash = Mix(hash, static_cast<uint64_t>(value));
  }
  return static_cast<uint32_t>(hash >> 40);
}

}  // namespace jax_symm
