// Rows of the failure matrix (../failure_matrix.md) that need a process stopped, killed, cut off or corrupted at a
// chosen point of a hand-off. Prefill is slow, so that a hand-off has a middle; what is stopped first decides what
// comes in time.
#include <fcntl.h>

#include <atomic>
#include <fstream>
#include <sstream>

#include "disturbed.h"
#include "support/tcp_proxy.h"

namespace baton::test {
namespace {

constexpr size_t kSlowPrompt = 400;
constexpr uint64_t kSlowPromptSteps = kSlowPrompt / 16;
constexpr uint64_t kStopAt = kSlowPromptSteps - 5;  // what stands still from here to the end is not yet taken for dead

ClientRequest SlowRequest(uint64_t seed, int64_t tokens = 8) {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < kSlowPrompt; ++i) {
    ids.push_back(static_cast<int64_t>(1000 + Mix64(seed * 1'000'003 + i) % 40'000));
  }
  ClientRequest request = GreedyIds(ids, tokens);
  request.placement = PlacementHint::kDisaggregated;
  return request;
}
ClusterShape Slow(int decode = 1) {
  return {.model = RealModel(),
          .prefill = 1,
          .decode = decode,
          .transport = "ucx-shm",
          .kv_memory = "64MiB",
          .more = kSmallSteps};
}

class SlowHandOffTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RealModel().empty()) GTEST_SKIP() << "no model; scripts/fetch_model.sh brings it";
  }
};

uint64_t StepsOf(const Cluster& cluster, const std::string& worker) {
  const auto w = Look(cluster, worker);
  return w ? w->steps : 0;
}
// False: they never came.
bool StepsReach(const Cluster& cluster, const std::string& worker, uint64_t steps) {
  return Eventually(milliseconds(20'000), [&] { return StepsOf(cluster, worker) >= steps; });
}

// Which of them has given blocks away; "": none did.
std::string GrantedBy(const Cluster& cluster, const std::vector<std::string>& workers) {
  std::string who;
  Eventually(milliseconds(20'000), [&] {
    for (const std::string& name : workers) {
      const auto w = Look(cluster, name);
      if (w && w->free_blocks != w->total_blocks) who = name;
    }
    return !who.empty();
  });
  return who;
}

// A request in a thread of its own.
class Asking {
 public:
  Asking(const Cluster& cluster, ClientRequest request)
      : thread_([this, client = cluster.Client(), request = std::move(request)] {
          answer_ = Ask(client.get(), request);
          over_ = true;
        }) {}
  ~Asking() {
    if (thread_.joinable()) thread_.join();
  }
  bool over() const { return over_; }
  const Answer& Get() {
    if (thread_.joinable()) thread_.join();
    return answer_;
  }

 private:
  Answer answer_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// ---- row 2: the client goes ---------------------------------------------------------------------------------

struct Window {
  const char* name;
  const char* stopped;   // the worker that stands still while the client goes; "": none
  uint64_t stop_after;   // steps of the prompt that prefill-0 has done by then
  uint64_t leave_after;  // and when the client goes
  bool decoding = false;
};

constexpr Window kWindows[] = {{"queued", "prefill-0", 0, 0},
                               {"prefilling", "", 0, 3},
                               {"transferring", "decode-0", kStopAt, kStopAt + 2},
                               {"before the first step", "decode-0", kStopAt, kSlowPromptSteps},
                               {"decoding", "", 0, kSlowPromptSteps, true}};

TEST_F(SlowHandOffTest, TheClientGoesInEveryWindowAndBothSidesHaveTheirBlocksBack) {
  Cluster cluster(Slow());
  uint64_t seed = 700;
  for (const Window& window : kWindows) {
    SCOPED_TRACE(window.name);
    const uint64_t before = StepsOf(cluster, "prefill-0");
    const pid_t stopped = window.stopped[0] == 0 ? 0 : cluster.Pid(window.stopped);
    if (stopped != 0 && window.stop_after == 0) kill(stopped, SIGSTOP);
    const ClientRequest request = SlowRequest(++seed, window.decoding ? 100 : 8);
    std::string ids;
    for (const TokenId id : std::get<TokenPrompt>(request.prompt).ids) {
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
    }
    ScratchFolder folder;
    Process client(folder, {BATON_BINARY, "complete", "--server", cluster.address(), "--ids", ids, "--max-tokens",
                            std::to_string(*request.max_tokens), "--ignore-eos", "--placement", "disaggregated"});
    ASSERT_TRUE(Eventually(milliseconds(20'000), [&] {
      const auto state = cluster.Client()->GetCluster();
      return state.ok() && state->live == 1;
    }));
    if (stopped != 0 && window.stop_after > 0) {
      ASSERT_TRUE(StepsReach(cluster, "prefill-0", before + window.stop_after));
      kill(stopped, SIGSTOP);
    }
    if (window.leave_after > 0) ASSERT_TRUE(StepsReach(cluster, "prefill-0", before + window.leave_after));
    if (window.decoding) ASSERT_TRUE(Eventually(milliseconds(20'000), [&] { return !client.out().empty(); }));
    client.Signal(SIGKILL);
    EXPECT_EQ(client.Wait(kStopLimit), 128 + SIGKILL);
    EXPECT_TRUE(Eventually(milliseconds(5000), [&] {
      const auto state = cluster.Client()->GetCluster();
      return state.ok() && state->live == 0;
    })) << "the router lets go of it at once, whoever stands still";
    if (stopped != 0) kill(stopped, SIGCONT);
    EXPECT_TRUE(cluster.BecomesIdle());
  }
  const ClientRequest next = SlowRequest(++seed);
  const Answer answer = Ask(cluster.Client().get(), next);
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, Undisturbed(next, RealModel()));
  EXPECT_EQ(answer.done.timings.placements, 1u);
  cluster.StopInOrder();
}

// ---- rows 4 and 5: one side dies, before and after the ACK --------------------------------------------------------

TEST(PrefillDiesTest, AfterTheHandOffAndTheAnswerGoesOnWhereItIs) {
  const ClientRequest request = LongRequest(31);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = 1});
  bool killed = false;
  const Answer answer = Ask(cluster.Client().get(), request, [&](const Answer& so_far) {
    if (std::exchange(killed, so_far.ids.size() >= 2)) return;  // the second token is decode-0's
    if (killed) kill(cluster.Pid("prefill-0"), SIGKILL);
  });
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_TRUE(killed);
  EXPECT_EQ(answer.ids, expected);
  EXPECT_EQ(answer.done.timings.placements, 1u);
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

TEST_F(SlowHandOffTest, DecodeDiesBeforeItHasEverythingAndAnotherTakesTheSameBlocks) {
  const ClientRequest request = SlowRequest(710);
  Cluster cluster(Slow(2));
  const uint64_t before = StepsOf(cluster, "prefill-0");
  Asking asking(cluster, request);
  const std::string chosen = GrantedBy(cluster, {"decode-0", "decode-1"});
  ASSERT_TRUE(StepsReach(cluster, "prefill-0", before + kStopAt));
  const pid_t pid = cluster.Pid(chosen);
  kill(pid, SIGSTOP);  // it cannot acknowledge
  ASSERT_TRUE(StepsReach(cluster, "prefill-0", before + kSlowPromptSteps));
  kill(pid, SIGKILL);
  const Answer& answer = asking.Get();
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, Undisturbed(request, RealModel()));
  EXPECT_GE(answer.done.timings.placements, 2u);
  EXPECT_NE(answer.done.timings.decode_worker, chosen);
  // Its owner kept the prompt's whole blocks, but for the one that the last steps were still writing.
  EXPECT_GE(answer.done.timings.prefill.cached_tokens + 64, answer.done.timings.prefill.prompt_tokens);
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

// ---- rows 7, 8 and 13: the control stream of a pair breaks, its data path does not
// -----------------------------------

TEST_F(SlowHandOffTest, ThePairsControlStreamBreaksAndTheAnswerIsTheSame) {
  ScratchFolder folder;
  const std::string state = folder.path() + "/state";
  const std::string port = std::to_string(FreePort());
  TcpProxy proxy(std::stoi(port));
  Process router(folder, {BATON_BINARY, "router", RealModel(), "--listen", "127.0.0.1:0", "--state-dir", state});
  const size_t at = router.WaitForOut("listening on ", kStartLimit);
  ASSERT_NE(at, std::string::npos) << router.err();
  std::string address = router.out().substr(at + 13);
  address = address.substr(0, address.find('\n'));
  std::vector<std::string> prefill = {BATON_BINARY,  "prefill",     RealModel(), "--router",  address,
                                      "--state-dir", state,         "--name",    "prefill-0", "--kv-memory",
                                      "64MiB",       "--transport", "ucx-shm"};
  prefill.insert(prefill.end(), kSmallSteps.begin(), kSmallSteps.end());
  Process p(folder, prefill);
  Process d(folder, {BATON_BINARY, "decode", RealModel(), "--router", address, "--state-dir", state, "--name",
                     "decode-0", "--kv-memory", "64MiB", "--transport", "ucx-shm", "--listen", "127.0.0.1:" + port,
                     "--advertise", proxy.address()});
  const auto client = InferenceClient::Create({.address = address, .in_process = nullptr});
  ASSERT_TRUE(Eventually(kStartLimit, [&] {
    const auto cluster = client->GetCluster();
    return cluster.ok() && cluster->workers.size() == 2;
  }));
  const ClientRequest request = SlowRequest(720);
  const auto expected = Undisturbed(request, RealModel());
  Answer answer;
  std::thread asking([&] { answer = Ask(client.get(), request); });
  const auto looking = InferenceClient::Create({.address = address, .in_process = nullptr});
  EXPECT_TRUE(Eventually(milliseconds(20'000), [&] {
    const auto w = Look(*looking, "prefill-0");
    return w && w->steps >= 3;
  }));
  EXPECT_GE(proxy.Cut(), 1) << "the pair's session went through it";
  asking.join();
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_TRUE(Eventually(milliseconds(15'000), [&] {
    const auto cluster = client->GetCluster();
    if (!cluster.ok() || cluster->live != 0 || cluster->workers.size() != 2) return false;
    for (const WorkerDescription& w : cluster->workers) {
      if (w.free_blocks != w.total_blocks || w.quarantined_blocks != std::vector<uint32_t>(1, 0)) return false;
    }
    return true;
  })) << "blocks of the broken hand-off come back over the next session";
  for (Process* process : {&p, &d, &router}) {
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(kStopLimit), 0) << process->err();
  }
}

// ---- row 15: bytes arrive wrong --------------------------------------------------------------------------------

// Flips a bit in every page of the process's shared KV pool that holds anything. How many.
size_t CorruptSharedPool(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  const int memory = open((proc + "/mem").c_str(), O_RDWR | O_CLOEXEC);
  BATON_CHECK(memory >= 0, "/proc/PID/mem");
  std::ifstream maps(proc + "/maps");
  size_t flipped = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, access) != 3) continue;
    if (access[1] != 'w' || access[3] != 's' || to - from < (size_t{32} << 20)) continue;
    std::vector<uint8_t> page(4096);
    for (unsigned long at = from; at < to; at += page.size()) {
      if (pread(memory, page.data(), page.size(), static_cast<off_t>(at)) != 4096) continue;
      const auto held = std::find_if(page.begin(), page.end(), [](uint8_t b) { return b != 0; });
      if (held == page.end()) continue;
      const uint8_t wrong = *held ^ 1;
      flipped += pwrite(memory, &wrong, 1, static_cast<off_t>(at + static_cast<size_t>(held - page.begin()))) == 1;
    }
  }
  close(memory);
  return flipped;
}

TEST_F(SlowHandOffTest, BytesThatChangeOnTheWayAreNeverDecoded) {
  Cluster cluster(Slow());
  const pid_t decode = cluster.Pid("decode-0");
  const auto found = [&] {
    const auto w = Look(cluster, "decode-0");
    return w && w->metrics.count("kv_checksum_fail_total") > 0 && w->metrics.at("kv_checksum_fail_total") >= 1;
  };
  // On a machine that is slow enough the hand-off is given up before its last bytes are stored: then another request.
  for (uint64_t seed = 730; seed < 736 && !found(); ++seed) {
    const ClientRequest request = SlowRequest(seed);
    const uint64_t before = StepsOf(cluster, "prefill-0");
    Asking asking(cluster, request);
    ASSERT_EQ(GrantedBy(cluster, {"decode-0"}), "decode-0");
    ASSERT_TRUE(StepsReach(cluster, "prefill-0", before + kStopAt));
    kill(decode, SIGSTOP);  // what is stored from now on it has not looked at
    EXPECT_TRUE(StepsReach(cluster, "prefill-0", before + kSlowPromptSteps));
    (void)CorruptSharedPool(decode);
    kill(decode, SIGCONT);
    const Answer& answer = asking.Get();
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.ids, Undisturbed(request, RealModel()));
    EXPECT_TRUE(cluster.BecomesIdle());
    Eventually(milliseconds(3000), found);  // metrics come once a second
  }
  EXPECT_TRUE(found());
  cluster.StopInOrder();
}

}  // namespace
}  // namespace baton::test
