// The README's recipe for several machines, each machine a network namespace with a process namespace of its own:
// nothing is shared but the cable, so workers find each other by --router and --listen alone and KV goes over TCP.
// Cables are pulled in the middle of requests.
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "e2e/cluster.h"

namespace baton::test {
namespace {

constexpr size_t kPrompt = 100;
constexpr int64_t kLongAnswer = kTinyContext - kPrompt - 1;

// One network of hosts 10.77.0.N on a bridge, and this process's place in it. The machine's own network is not touched.
class Network {
 public:
  // "" or why there is no network here.
  std::string Build(int hosts) {
    if (geteuid() != 0) return "network namespaces need root";
    if (!Run("ip netns add " + Name(0))) return "ip netns add failed: iproute2 and CAP_SYS_ADMIN are needed";
    made_ = 1;
    if (!Run("ip -n " + Name(0) + " link add b0 type bridge && ip -n " + Name(0) + " link set b0 up && ip -n " +
             Name(0) + " link set lo up && ip -n " + Name(0) + " addr add 10.77.0.254/24 dev b0")) {
      return "no bridge can be made here";
    }
    for (int i = 1; i <= hosts; ++i) {
      const std::string n = std::to_string(i), host = Name(i);
      if (!Run("ip netns add " + host)) return "ip netns add failed";
      made_ = i + 1;
      if (!Run("ip link add e0 netns " + host + " type veth peer name c" + n + " netns " + Name(0) + " && ip -n " +
               Name(0) + " link set c" + n + " master b0 up && ip -n " + host + " link set lo up && ip -n " + host +
               " addr add " + Address(i) + "/24 dev e0 && ip -n " + host + " link set e0 up")) {
        return "no veth pair can be made here";
      }
    }
    // The client's place. Whatever this process starts from now on lives here unless it says otherwise.
    const int fd = open(("/run/netns/" + Name(0)).c_str(), O_RDONLY | O_CLOEXEC);
    const bool moved = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    close(fd);
    return moved ? "" : "setns failed";
  }
  ~Network() {
    for (int i = 0; i < made_; ++i) Run("ip netns del " + Name(i));
  }

  static std::string Address(int host) { return "10.77.0." + std::to_string(host); }
  void Pull(int host) const { BATON_CHECK(Cable(host, "down"), "cable"); }
  void Plug(int host) const { BATON_CHECK(Cable(host, "up"), "cable"); }

  // The command line of a process on that host. Its process namespace makes it a machine of its own for Baton too.
  std::vector<std::string> On(int host, const std::vector<std::string>& arguments) const {
    std::vector<std::string> out = {"/sbin/ip", "netns", "exec",   Name(host),
                                    "unshare",  "--pid", "--fork", "--kill-child"};
    out.insert(out.end(), arguments.begin(), arguments.end());
    return out;
  }

 private:
  static bool Run(const std::string& command) {
    return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
  }
  bool Cable(int host, const char* state) const {
    return Run("ip -n " + Name(0) + " link set c" + std::to_string(host) + " " + state);
  }
  std::string Name(int i) const { return "baton-" + std::to_string(getpid()) + "-" + std::to_string(i); }
  int made_ = 0;
};

// A router on the first host (or the first two), then workers, a host each.
class HostsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    network_ = new Network;
    why_not_ = network_->Build(5);
  }
  static void TearDownTestSuite() { delete network_; }
  void SetUp() override {
    if (!why_not_.empty()) GTEST_SKIP() << why_not_;
  }
  void TearDown() override {
    if (!HasFailure()) return;
    for (const auto& [host, process] : processes_) {
      std::fprintf(stderr, "host %d:\n%s%s\n", host, process->out().c_str(), process->err().c_str());
    }
  }

  void Start(int host, const std::string& command, const std::string& routers = "") {
    std::vector<std::string> arguments = {BATON_BINARY,
                                          command,
                                          TinyModel(),
                                          "--listen",
                                          Network::Address(host) + ":8700",
                                          "--state-dir",
                                          folder_.path() + "/state" + std::to_string(host)};
    const auto& secured = command == "router" ? router_secured_ : worker_secured_;
    arguments.insert(arguments.end(), secured.begin(), secured.end());
    if (command != "router") {
      arguments.insert(arguments.end(), {"--router", routers, "--kv-memory", "64MiB", "--threads", "1", "--name",
                                         command + "-" + std::to_string(host)});
    }
    processes_[host] = std::make_unique<Process>(folder_, network_->On(host, arguments));
  }
  // Pulls the cables of these hosts at one moment: they stand still meanwhile, so that nothing they would still have
  // sent between two of the commands crosses.
  void Pull(const std::vector<int>& hosts) const {
    for (const int host : hosts) SignalHost(host, SIGSTOP);
    for (const int host : hosts) network_->Pull(host);
    for (const int host : hosts) SignalHost(host, SIGCONT);
  }
  // To the server on that host: the child of the process that made its namespaces.
  void SignalHost(int host, int number) const {
    const std::string pid = std::to_string(processes_.at(host)->pid());
    const std::string child = ReadWhole("/proc/" + pid + "/task/" + pid + "/children");
    BATON_CHECK(!child.empty(), "no server on host " + std::to_string(host));
    kill(static_cast<pid_t>(std::stol(child)), number);
  }
  std::unique_ptr<InferenceClient> Client(int router) const {
    return InferenceClient::Create({.address = Network::Address(router) + ":8700", .in_process = nullptr}, client_);
  }
  // Until that router sees exactly so many workers, idle, with every block free or cached.
  testing::AssertionResult Sees(int router, size_t workers, milliseconds limit = milliseconds(30'000)) {
    std::string seen;
    const bool good = Eventually(limit, [&] {
      const auto state = Client(router)->GetCluster();  // afresh: a call that fails fast leaves a handshake half done
      if (!state.ok()) {
        seen = state.status().message();
        return false;
      }
      bool idle = state->live == 0;
      for (const WorkerDescription& w : state->workers) {
        idle = idle && w.running + w.waiting == 0 && w.free_blocks == w.total_blocks &&
               w.quarantined_blocks == std::vector<uint32_t>(1, 0);
      }
      seen = std::to_string(state->workers.size()) + " workers, live " + std::to_string(state->live) +
             (idle ? ", idle" : ", busy or blocks missing");
      return state->workers.size() == workers && idle;
    });
    return good ? testing::AssertionSuccess() : testing::AssertionFailure() << seen;
  }
  // Asks, and pulls cables in the middle of the answer. All of it may have been on its way by then, on a machine where
  // this thread waits for a core: such an answer shows nothing, and the request is sent again.
  Answer AskAndPull(int router, const ClientRequest& request, size_t workers,
                    const std::function<std::vector<int>(const Answer&)>& hosts) {
    for (int attempt = 1;; ++attempt) {
      std::vector<int> pulled;
      Answer answer = Ask(Client(router).get(), request, [&](const Answer& so_far) {
        if (!pulled.empty() || so_far.ids.size() < 3) return;
        pulled = hosts(so_far);
        Pull(pulled);
      });
      EXPECT_FALSE(pulled.empty());
      if (!answer.ok() || answer.done.timings.placements > 1 || attempt == 8) return answer;
      for (const int host : pulled) network_->Plug(host);
      EXPECT_TRUE(Sees(router, workers));
    }
  }
  static ClientRequest LongRequest(uint64_t seed) {
    ClientRequest request = GreedyIds(RandomPrompt(seed, kPrompt), kLongAnswer);
    request.placement = PlacementHint::kDisaggregated;
    return request;
  }
  // What one process on one host says.
  std::vector<TokenId> Expected(const ClientRequest& request) {
    Cluster unified({});
    ClientRequest alone = request;
    alone.placement = PlacementHint::kAuto;
    const Answer answer = Ask(unified.Client().get(), alone);
    EXPECT_TRUE(answer.ok()) << answer.result.status.ToString();
    return answer.ids;
  }

  static Network* network_;
  static std::string why_not_;
  ScratchFolder folder_;
  std::vector<std::string> router_secured_ = {"--insecure-listen"}, worker_secured_ = {"--insecure-listen"};
  InferenceClient::Options client_;
  std::map<int, std::unique_ptr<Process>> processes_;
};
Network* HostsTest::network_ = nullptr;
std::string HostsTest::why_not_;

constexpr const char* kRouter = "10.77.0.1:8700";

TEST_F(HostsTest, ThreeHostsAnswerAsOneProcessDoesAndTheKvCrossesTheNetwork) {
  const ClientRequest request = LongRequest(1);
  const auto expected = Expected(request);
  Start(1, "router");
  Start(2, "prefill", kRouter);
  Start(3, "decode", kRouter);
  ASSERT_TRUE(Sees(1, 2));
  const Answer answer = Ask(Client(1).get(), request);
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_EQ(answer.started.prefill_worker, "prefill-2");
  EXPECT_EQ(answer.started.decode_worker, "decode-3");
  EXPECT_GT(answer.done.timings.prefill.transfer_bytes, 0u);
  EXPECT_EQ(answer.done.timings.placements, 1u);
  EXPECT_TRUE(Sees(1, 2));
}

TEST_F(HostsTest, ThreeHostsWithCertificatesAndAKeyNeedNoInsistenceAndSendNothingUnencrypted) {
  const ClientRequest request = LongRequest(1);
  const auto expected = Expected(request);
  const std::string certs = folder_.path() + "/certs", keys = folder_.path() + "/keys";
  Process made(folder_, {BATON_BINARY, "certs", certs, "--hosts", Network::Address(1), "--names",
                         "router=router,prefill-2,decode-3"});
  ASSERT_EQ(made.Wait(kStopLimit), 0) << made.err();
  client_.api_key = "a-key-of-at-least-sixteen-letters";
  client_.tls.ca = ReadWhole(certs + "/ca.crt");
  std::ofstream(keys) << client_.api_key << "\n";
  std::filesystem::permissions(keys, std::filesystem::perms::owner_read);
  const std::vector<std::string> tls = {
      "--tls-ca",  certs + "/ca.crt",     "--tls-cert",          certs + "/{name}.crt",
      "--tls-key", certs + "/{name}.key", "--require-encryption"};
  router_secured_ = worker_secured_ = tls;
  router_secured_.insert(router_secured_.end(), {"--api-keys", keys, "--name", "router"});
  worker_secured_.insert(worker_secured_.end(), {"--transport", "grpc"});

  Start(1, "router");
  Start(2, "prefill", kRouter);
  Start(3, "decode", kRouter);
  ASSERT_TRUE(Sees(1, 2));
  const Answer answer = Ask(Client(1).get(), request);
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_EQ(answer.started.decode_worker, "decode-3");
  EXPECT_GT(answer.done.timings.prefill.transfer_bytes, 0u);
  EXPECT_EQ(answer.done.timings.placements, 1u);
  EXPECT_TRUE(Sees(1, 2));
}

TEST_F(HostsTest, TheCableOfTheDecodingHostIsPulledAndTheAnswerGoesOnElsewhere) {
  const ClientRequest request = LongRequest(2);
  const auto expected = Expected(request);
  Start(1, "router");
  Start(2, "prefill", kRouter);
  Start(3, "decode", kRouter);
  Start(4, "decode", kRouter);
  ASSERT_TRUE(Sees(1, 3));
  int pulled = 0;
  const Answer answer = AskAndPull(1, request, 3, [&](const Answer& so_far) {
    pulled = so_far.started.decode_worker == "decode-3" ? 3 : 4;
    return std::vector<int>{pulled};
  });
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GE(answer.done.timings.placements, 2u);
  EXPECT_TRUE(Sees(1, 2));  // the silent one is out, the others' blocks are back
  network_->Plug(pulled);
  EXPECT_TRUE(Sees(1, 3));  // and comes back by itself, with all of its blocks
}

TEST_F(HostsTest, TheCableOfThePrefillingHostIsPulledAndThePromptIsComputedElsewhere) {
  const ClientRequest request = LongRequest(3);
  const auto expected = Expected(request);
  Start(1, "router");
  Start(2, "prefill", kRouter);
  Start(3, "decode", kRouter);
  ASSERT_TRUE(Sees(1, 2));
  // Pulled before the request: the router does not know yet, and places it there.
  network_->Pull(2);
  const Answer answer = Ask(Client(1).get(), request);
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GE(answer.done.timings.placements, 2u);
  EXPECT_TRUE(Sees(1, 1));
  network_->Plug(2);
  EXPECT_TRUE(Sees(1, 2));
  const Answer again = Ask(Client(1).get(), request);
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
}

// FF-014
TEST_F(HostsTest, TheCableBetweenRouterAndWorkersIsPulledAndTheRestartedClusterServes) {
  const ClientRequest request = LongRequest(4);
  const auto expected = Expected(request);
  Start(1, "router");
  Start(2, "prefill", kRouter);
  Start(3, "decode", kRouter);
  ASSERT_TRUE(Sees(1, 2));
  ClientRequest impatient = request;
  impatient.deadline = std::chrono::seconds(8);
  const Answer cut = AskAndPull(1, impatient, 2, [](const Answer&) { return std::vector<int>{2, 3}; });
  EXPECT_FALSE(cut.ok());  // nobody is left: it ends, in words, by its deadline at the latest
  network_->Plug(2);
  network_->Plug(3);
  ASSERT_TRUE(Sees(1, 2));
  const Answer again = Ask(Client(1).get(), request);
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
}

TEST_F(HostsTest, TwoRoutersServeAtOnceAndOneGoesOnWithoutTheOther) {
  const ClientRequest request = LongRequest(5), other = LongRequest(6);
  const auto expected = Expected(request), expected_other = Expected(other);
  const std::string both = "10.77.0.1:8700,10.77.0.5:8700";
  Start(1, "router");
  Start(5, "router");
  Start(2, "prefill", both);
  Start(3, "decode", both);
  ASSERT_TRUE(Sees(1, 2));
  ASSERT_TRUE(Sees(5, 2));
  Answer second;
  std::thread asking([&] { second = Ask(Client(5).get(), other); });
  ClientRequest impatient = request;
  impatient.deadline = std::chrono::seconds(8);
  const Answer first = AskAndPull(1, impatient, 2, [](const Answer&) { return std::vector<int>{1}; });
  asking.join();
  EXPECT_FALSE(first.ok());
  ASSERT_TRUE(second.ok()) << second.result.status.ToString();
  EXPECT_EQ(second.ids, expected_other);
  EXPECT_TRUE(Sees(5, 2));  // what the first router had running there is gone
  network_->Plug(1);
  ASSERT_TRUE(Sees(1, 2));
  const Answer again = Ask(Client(1).get(), request);
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
}

}  // namespace
}  // namespace baton::test
