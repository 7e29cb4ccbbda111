// Who may launch: ranks meet once a site and group, nobody enters a gate that is shut, and those
// who wait hear why.
#include "dispatch/call_gate.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

namespace jax_symm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Status EnterAndLeave(CallGate& gate, int64_t site, int group, size_t local_ranks) {
  Status status = gate.Enter(site, group, local_ranks);
  if (status.ok()) gate.Leave();
  return status;
}

void TestRanksOfAGroupMeetOnce() {
  CallGate gate("tp", seconds(60));
  std::atomic<int> entered{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&] {
      CHECK_OK(gate.Enter(1, 0, 3));
      ++entered;
    });
  }
  // Another group has devices of its own, and a lone rank has nobody to wait for.
  CHECK_OK(EnterAndLeave(gate, 1, 1, 1));
  for (auto& rank : ranks) rank.join();
  CHECK(entered == 3);
  CHECK(!gate.Drain(CallGate::Clock::now()));
  for (int rank = 0; rank < 3; ++rank) gate.Leave();
  CHECK(gate.Drain(CallGate::Clock::now()));
  CHECK_OK(EnterAndLeave(gate, 1, 0, 3));  // known by now
}

void TestWhoDoesNotComeFailsTheGate() {
  CallGate gate("tp", milliseconds(20));
  const std::string text = "only 1 of the 2 ranks that group 4 has in this process";
  CheckError(gate.Enter(7, 4, 2), StatusCode::kDeadlineExceeded, text);
  CheckError(gate.Enter(7, 4, 2), StatusCode::kDeadlineExceeded, text);
  CheckError(gate.fault(), StatusCode::kDeadlineExceeded, text);
  CHECK(gate.Drain(CallGate::Clock::now()));
}

template <typename Shut>
void ExpectWaitEnds(StatusCode code, const std::string& text, Shut shut) {
  CallGate gate("tp", seconds(60));
  std::thread waiting([&] { CheckError(gate.Enter(1, 0, 2), code, text); });
  std::this_thread::sleep_for(milliseconds(5));
  shut(gate);
  waiting.join();
  CheckError(gate.Enter(2, 0, 1), code, text);
}

void TestAShutGateWakesThoseWhoWait() {
  ExpectWaitEnds(StatusCode::kAborted, "first", [](CallGate& gate) {
    gate.Fail(Status(StatusCode::kAborted, "first"));
    gate.Fail(Status(StatusCode::kInternal, "second"));
  });
  ExpectWaitEnds(StatusCode::kFailedPrecondition, "'tp' is closed", [](CallGate& gate) {
    CHECK(gate.Close());
    CHECK(!gate.Close());
    CHECK(gate.closed());
    CHECK_OK(gate.fault());
  });
}

void TestDrainWaitsForTheCallsInside() {
  CallGate gate("tp", seconds(60));
  CHECK_OK(gate.Enter(1, 0, 1));
  CHECK(gate.Close());
  CHECK(!gate.Drain(CallGate::Clock::now() + milliseconds(5)));
  std::thread leaving([&] { gate.Leave(); });
  CHECK(gate.Drain(CallGate::Clock::now() + seconds(60)));
  leaving.join();
}

}  // namespace
}  // namespace jax_symm

int main() {
  jax_symm::TestRanksOfAGroupMeetOnce();
  jax_symm::TestWhoDoesNotComeFailsTheGate();
  jax_symm::TestAShutGateWakesThoseWhoWait();
  jax_symm::TestDrainWaitsForTheCallsInside();
}
