// What dispatch chooses: the path by bytes, the SM100 configuration by its rules, and the reasons
// it gives when no kernel fits.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "dispatch/call_hash.h"
#include "dispatch/config_choice.h"
#include "dispatch/cost_model.h"
#include "dispatch/sm100_spec.h"

namespace jax_symm {
namespace {

GemmProblem Problem(uint32_t m, uint32_t n, uint32_t k, uint32_t ranks, Collective collective) {
  return {.collective = collective,
          .rows = {1, m, (m + ranks - 1) / ranks},
          .ranks = ranks,
          .n = n,
          .k = k};
}

std::string Sm100(uint32_t m, uint32_t n, uint32_t k, Reducer reducer, uint32_t max_ctas = 148) {
  const GemmProblem problem = Problem(m, n, k, 8, Collective::kReduceScatter);
  return Describe(ChooseConfig(Arch::kSm100, problem, reducer, max_ctas));
}

void ExpectDescription(const std::string& got, const std::string& want) {
  CHECK(got == want, "got ", got, ", expected ", want);
}

void TestSm100Rules() {
  // An odd number of tiles along m below 1024 rows: single CTAs.
  ExpectDescription(Sm100(128, 7168, 768, Reducer::kMulticast),
                    "sm100 multicast 128x128x64 cluster=1 stages=7 band=1 ctas=56");
  ExpectDescription(Sm100(129, 7168, 768, Reducer::kMulticast),
                    "sm100 multicast 128x128x64 cluster=2 stages=9 band=1 ctas=112");
  ExpectDescription(Sm100(300, 512, 768, Reducer::kPull),
                    "sm100 pull 128x128x64 cluster=1 stages=7 band=3 ctas=12");
  // Push gives a stage to staging.
  ExpectDescription(Sm100(8192, 7168, 1536, Reducer::kPush),
                    "sm100 push 128x128x64 cluster=2 stages=8 band=8 ctas=148");
  // From m * k = 24 Mi on, wide tiles.
  ExpectDescription(Sm100(16384, 7168, 1536, Reducer::kPush),
                    "sm100 push 128x256x64 cluster=2 stages=6 band=8 ctas=148");
  ExpectDescription(Sm100(16384, 7168, 1536, Reducer::kMulticast, 147),
                    "sm100 multicast 128x256x64 cluster=2 stages=7 band=8 ctas=146");
  // A single CTA cannot be a pair.
  ExpectDescription(Sm100(16384, 7168, 1536, Reducer::kPush, 1),
                    "sm100 push 128x128x64 cluster=1 stages=6 band=16 ctas=1");
}

void TestEveryConfigHasAKernel() {
  for (uint32_t m : {1u, 128u, 129u, 1024u, 65536u}) {
    for (Reducer reducer : {Reducer::kPush, Reducer::kPull, Reducer::kMulticast}) {
      const GemmProblem problem = Problem(m, 4096, 4096, 4, Collective::kAllReduce);
      const GemmConfig config = ChooseSm100Config(problem, reducer, 148);
      bool listed = false;
      for (const TileShape& shape : ShapesOf(Arch::kSm100)) {
        listed |= shape.tile_m == config.shape.tile_m && shape.tile_n == config.shape.tile_n &&
                  shape.cluster == config.shape.cluster;
      }
      CHECK(listed, Describe(config));
      CHECK(config.ctas % config.shape.cluster == 0 && config.ctas > 0, Describe(config));
      CHECK(config.shape.shared_bytes <= 227 * 1024, Describe(config));
    }
  }
}

void TestArchitectures() {
  CHECK(ValueOrDie(ArchOf(9, 0)) == Arch::kSm90);
  CHECK(ValueOrDie(ArchOf(10, 0)) == Arch::kSm100);
  CHECK(ValueOrDie(ArchOf(10, 3)) == Arch::kSm100);
  CheckError(ArchOf(8, 0).status(), StatusCode::kUnimplemented, "got 8.0");
  CheckError(ArchOf(12, 0).status(), StatusCode::kUnimplemented, "got 12.0");
}

void TestReducerByBytes() {
  for (uint32_t ranks : {2u, 3u, 4u, 8u, 16u, 72u}) {
    const GemmProblem scatter = Problem(4096, 7168, 1536, ranks, Collective::kReduceScatter);
    const GemmProblem all = Problem(4096, 7168, 1536, ranks, Collective::kAllReduce);
    CHECK(ChooseReducer(scatter, true) == Reducer::kPush, ranks);
    CHECK(ChooseReducer(all, false) == Reducer::kPush, ranks);
    // At three ranks both move 4/3 of the product.
    const Reducer want = ranks >= 4 ? Reducer::kMulticast : Reducer::kPush;
    CHECK(ChooseReducer(all, true) == want, ranks);
  }
}

void TestReasons() {
  GemmProblem problem = Problem(128, 512, 512, 8, Collective::kAllReduce);
  CHECK(WhyNotSupported(problem).empty());
  problem.k = 500;
  CHECK(WhyNotSupported(problem).find("got 500") != std::string::npos);
  problem.k = 512;
  problem.n = 510;
  CHECK(WhyNotSupported(problem).find("got 510") != std::string::npos);
  problem.n = 512;
  problem.element = ElementType::kF32;
  CHECK(WhyNotSupported(problem).find("f32") != std::string::npos);
  const Advice few_rows =
      Advise(Problem(127, 512, 512, 8, Collective::kAllReduce), Reducer::kMulticast, B200Rates());
  CHECK(few_rows.can_run && !few_rows.should_run, few_rows.reason);
}

/// Ranks that differ in any of this must not take each other's flags for their own.
void TestCallsAreToldApart() {
  const GemmProblem base = Problem(1024, 512, 512, 8, Collective::kAllReduce);
  std::vector<GemmProblem> problems(8, base);
  problems[1].collective = Collective::kReduceScatter;
  problems[2].element = ElementType::kF16;
  problems[3].output = ElementType::kF32;
  problems[4].rows.batch = 2;
  problems[5].rows.shard_rows = 256;
  problems[6].n = 520;
  problems[7].k = 520;
  std::set<uint32_t> calls = {HashCall(2, base)};
  for (const GemmProblem& problem : problems) calls.insert(HashCall(1, problem));
  CHECK(calls.size() == 9, calls.size());

  const GemmConfig config = ChooseConfig(Arch::kSm90, base, Reducer::kPush, 132);
  std::vector<GemmConfig> configs(6, config);
  configs[1].reducer = Reducer::kPull;
  configs[2].shape.tile_n /= 2;
  configs[3].shape.cluster = 3 - configs[3].shape.cluster;
  configs[4].m_groups_per_band += 1;
  configs[5].arch = Arch::kSm100;
  std::set<uint32_t> launches = {HashLaunch(2, config)};
  for (const GemmConfig& one : configs) launches.insert(HashLaunch(1, one));
  CHECK(launches.size() == 7, launches.size());
  for (uint32_t hash : launches) CHECK(hash < (1u << 24), hash);
}

}  // namespace
}  // namespace jax_symm

int main() {
  jax_symm::TestSm100Rules();
  jax_symm::TestEveryConfigHasAKernel();
  jax_symm::TestArchitectures();
  jax_symm::TestReducerByBytes();
  jax_symm::TestReasons();
  jax_symm::TestCallsAreToldApart();
}
