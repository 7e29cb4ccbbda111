#include "runtime/local_reduction.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "runtime/sum.h"

namespace jax_symm {
namespace {

constexpr int64_t kPieceElements = 16384;           // 32 KiB of bf16 from every rank
constexpr int64_t kStreamBytes = int64_t{4} << 20;  // results that leave the cache anyway

int UsableCores() {
  static const int cores = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  }();
  return cores;
}

}  // namespace

// All elements that are written form one line of segments: for reduce-scatter a segment is one
// owner's rows of one batch entry (padding included), for all-reduce everything is one segment.
LocalReduction::LocalReduction(std::vector<HostCall> calls)
    : calls_(std::move(calls)), problem_(calls_[0].problem) {
  for (const HostCall& call : calls_) {
    partials_.push_back(call.partial);
    results_.push_back(call.result);
  }
  const auto world_size = static_cast<int64_t>(calls_.size());
  const bool scatter = problem_.op == CollectiveOp::kReduceScatter;
  segment_elements_ =
      scatter ? problem_.shard_elements() : problem_.batch * problem_.entry_elements();
  total_elements_ = scatter ? problem_.batch * world_size * segment_elements_ : segment_elements_;
  num_pieces_ = static_cast<int64_t>(CeilDiv(total_elements_, kPieceElements));
  const int64_t copies = scatter ? 1 : world_size;
  stream_ =
      total_elements_ * copies * static_cast<int64_t>(ElementBytes(problem_.out)) > kStreamBytes;
}

void LocalReduction::Run(const Scheduler& schedule) {
  if (num_pieces_ == 0) return Complete();
  const int64_t helpers = std::min<int64_t>(UsableCores(), num_pieces_) - 1;
  for (int64_t i = 0; i < helpers; ++i) schedule([self = shared_from_this()] { self->Work(); });
  Work();
}

void LocalReduction::Work() {
  for (;;) {
    const int64_t piece = next_piece_.fetch_add(1, std::memory_order_relaxed);
    if (piece >= num_pieces_) return;
    SumPiece(piece);
    // Release what this thread wrote; the last one acquires what all wrote.
    if (finished_pieces_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_pieces_) Complete();
  }
}

void LocalReduction::SumPiece(int64_t piece) {
  int64_t at = piece * kPieceElements;
  const int64_t end = std::min(at + kPieceElements, total_elements_);
  while (at < end) {
    const int64_t segment = at / segment_elements_;
    const int64_t segment_begin = segment * segment_elements_;
    const int64_t stop = std::min(end, segment_begin + segment_elements_);
    SumSegment(segment, at - segment_begin, stop - segment_begin);
    at = stop;
  }
}

void LocalReduction::SumSegment(int64_t segment, int64_t begin, int64_t end) {
  SumArgs args{.sources = partials_,
               .outputs = results_,
               .in = problem_.in,
               .out = problem_.out,
               .stream = stream_};
  if (problem_.op == CollectiveOp::kAllReduce) {
    args.source_offset = begin;
    args.output_offset = begin;
    args.count = end - begin;
    return Sum(args);
  }
  const auto world_size = static_cast<int64_t>(calls_.size());
  const int64_t entry = segment / world_size;
  const int owner = static_cast<int>(segment % world_size);
  const int64_t valid_end = std::min(end, problem_.owned_elements(owner));
  args.outputs = std::span<void* const>(&results_[owner], 1);
  args.source_offset =
      entry * problem_.entry_elements() + owner * problem_.shard_elements() + begin;
  args.output_offset = entry * problem_.shard_elements() + begin;
  args.count = valid_end - begin;
  if (args.count > 0) Sum(args);
  const int64_t padding_begin = std::max(begin, valid_end);
  if (padding_begin < end) {
    const size_t bytes = ElementBytes(problem_.out);
    char* result = static_cast<char*>(results_[owner]);
    std::memset(result + (args.output_offset + padding_begin - begin) * bytes, 0,
                (end - padding_begin) * bytes);
  }
}

void LocalReduction::Complete() {
  for (const HostCall& call : calls_) call.complete(OkStatus());
}

}  // namespace jax_symm
