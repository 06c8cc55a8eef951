// A machine that is full, out of descriptors or of another time than a second ago: what runs goes on.
#include <netinet/in.h>
#include <sys/socket.h>

#include <fstream>

#include "disturbed.h"

namespace baton::test {
namespace {

// `up` through a shell, for what a shell can do to a process before it starts.
class ShellCluster {
 public:
  ShellCluster(const std::string& before, const std::string& after,
               const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    process_ = std::make_unique<Process>(
        folder_,
        std::vector<std::string>{"/bin/bash", "-c",
                                 before +
                                     " exec \"$0\" up \"$1\" --listen 127.0.0.1:0 --prefill 1 --decode 1 --kv-memory "
                                     "64MiB --state-dir \"$2\" " +
                                     after,
                                 BATON_BINARY, TinyModel(), folder_.path() + "/state"},
        environment);
    const std::string ready = "baton is ready on ";
    const size_t at = process_->WaitForOut(ready, kStartLimit);
    BATON_CHECK(at != std::string::npos, "not ready:\n" + process_->out() + process_->err());
    const std::string line = process_->out().substr(at + ready.size());
    address_ = line.substr(0, line.find(": "));
  }
  const std::string& address() const { return address_; }
  Process& process() { return *process_; }
  std::unique_ptr<InferenceClient> Client() const {
    return InferenceClient::Create({.address = address_, .in_process = nullptr});
  }
  void StopInOrder() {
    process_->Signal(SIGTERM);
    EXPECT_EQ(process_->Wait(kStopLimit), 0) << process_->out() << process_->err();
  }

 private:
  ScratchFolder folder_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

TEST(FullDiskTest, LogsThatCannotBeWrittenCostNoAnswer) {
  const ClientRequest request = LongRequest(41);
  const auto expected = Undisturbed(request);
  ShellCluster cluster("", "--log-level trace 2>/dev/full");
  for (int i = 0; i < 3; ++i) {
    const Answer answer = Ask(cluster.Client().get(), request);
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.ids, expected);
  }
  cluster.StopInOrder();
}

TEST(DescriptorsTest, ARouterThatHasNoneLeftServesThoseItHasAndEverybodyOnceThereAreSome) {
  const ClientRequest request = LongRequest(42);
  const auto expected = Undisturbed(request);
  ShellCluster cluster("ulimit -n 96;", "");
  const auto early = cluster.Client();
  ASSERT_TRUE(early->WaitReady(milliseconds(5000)));
  std::vector<int> crowd;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(cluster.address().substr(cluster.address().rfind(':') + 1))));
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(crowd.back(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
  }
  const Answer during = Ask(early.get(), request);
  EXPECT_TRUE(during.ok()) << during.result.status.ToString();
  EXPECT_EQ(during.ids, expected);
  for (const int fd : crowd) close(fd);
  const auto late = cluster.Client();
  EXPECT_TRUE(late->WaitReady(milliseconds(20'000)));
  const Answer after = Ask(late.get(), request);
  EXPECT_TRUE(after.ok()) << after.result.status.ToString();
  EXPECT_EQ(after.ids, expected);
  cluster.StopInOrder();
}

TEST(ClockTest, AWallClockThatJumpsByDaysChangesNothing) {
  ScratchFolder folder;
  const std::string offset = folder.path() + "/offset";
  const auto jump_to = [&](long seconds) { std::ofstream(offset) << seconds << '\n'; };
  const ClientRequest request = LongRequest(43);
  const auto expected = Undisturbed(request);
  jump_to(0);
  ShellCluster cluster("", "", {{"LD_PRELOAD", CLOCK_SHIM}, {"CLOCK_SHIM_FILE", offset}});
  const auto client = cluster.Client();
  ASSERT_TRUE(client->WaitReady(milliseconds(5000)));
  for (const long seconds : {-3 * 86'400L, 0L, 3 * 86'400L, -3 * 86'400L}) {
    ClientRequest timed = request;
    timed.deadline = std::chrono::seconds(20);
    bool jumped = false;
    const Answer answer = Ask(client.get(), timed, [&](const Answer& so_far) {
      if (std::exchange(jumped, so_far.ids.size() >= 5) || !jumped) return;
      jump_to(seconds);
    });
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString() << " after a jump to " << seconds;
    EXPECT_EQ(answer.ids, expected);
    EXPECT_EQ(answer.done.timings.placements, 1u);
    EXPECT_LT(answer.done.timings.done, std::chrono::seconds(20)) << "times are of a clock that does not jump";
    const auto fresh = cluster.Client();
    const Answer next = Ask(fresh.get(), request);  // a new connection, at the new time
    ASSERT_TRUE(next.ok()) << next.result.status.ToString();
    EXPECT_EQ(next.ids, expected);
  }
  const auto state = client->GetCluster();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->workers.size(), 2u) << "nobody was declared dead";
  for (const WorkerDescription& w : state->workers) EXPECT_EQ(w.incarnation, 1u);
  cluster.StopInOrder();
}

}  // namespace
}  // namespace baton::test
