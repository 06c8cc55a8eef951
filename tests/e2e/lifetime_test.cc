// How processes start, idle and end; and the command-line client.
#include <unistd.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cluster.h"

namespace baton::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> LinesWith(const std::string& text, const std::string& part) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(part) != std::string::npos) out.push_back(line);
  }
  return out;
}

// User and system time so far.
double CpuSeconds(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::istringstream fields(all.substr(all.rfind(')') + 2));
  std::string skip;
  for (int i = 0; i < 11; ++i) fields >> skip;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// FF-112
TEST(IdleTest, AnIdleClusterUsesAlmostNoCpu) {
  Cluster cluster({.prefill = 1, .decode = 1});
  ASSERT_TRUE(Ask(cluster.Client().get(), GreedyIds(RandomPrompt(1, 70), 20)).ok());
  ASSERT_TRUE(cluster.BecomesIdle());
  std::map<std::string, double> before;
  for (const char* name : {"router", "prefill-0", "decode-0"}) before[name] = CpuSeconds(cluster.Pid(name));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  for (const auto& [name, seconds] : before) {
    EXPECT_LT(CpuSeconds(cluster.Pid(name)) - seconds, 0.1) << name << ", of 3 s";
  }
  EXPECT_LT(CpuSeconds(cluster.process().pid()), 0.5);  // the supervisor's whole life
  cluster.StopInOrder();
}

// FF-120, FF-121
TEST(DrainTest, SigtermLetsRunningAnswersEndAndRefusesNewOnes) {
  for (const bool split : {false, true}) {
    Cluster cluster({.prefill = split ? 1 : 0, .decode = split ? 1 : 0});
    const ClientRequest request = GreedyIds(RandomPrompt(7, 100), 400);
    const auto client = cluster.Client();
    const auto late = cluster.Client();
    ASSERT_TRUE(late->WaitReady(milliseconds(5000)));
    Answer refused;
    bool begun = false;
    const Answer answer = Ask(client.get(), request, [&](const Answer&) {
      if (begun) return;
      begun = true;
      cluster.process().Signal(SIGTERM);
      // The drain begins after the signal was seen; until then a request is still taken.
      Eventually(milliseconds(3000), [&] {
        refused = Ask(late.get(), GreedyIds(RandomPrompt(8, 4), 1));
        return !refused.ok();
      });
    });
    EXPECT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.ids.size(), 400u);
    EXPECT_EQ(refused.result.status.code(), Code::kUnavailable) << refused.result.status.ToString();
    const auto pids = cluster.AllPids();
    EXPECT_EQ(cluster.process().Wait(kStopLimit), 0);
    for (const pid_t pid : pids) EXPECT_FALSE(Alive(pid));
  }
}

TEST(SupervisorTest, ADeadWorkerIsStartedAgainUnderItsNameWithAHigherCounter) {
  Cluster cluster({.prefill = 1, .decode = 1});
  const auto before = cluster.Client()->GetCluster();
  ASSERT_TRUE(before.ok());
  const size_t mark = cluster.Mark();
  const pid_t old = cluster.Pid("decode-0");
  kill(old, SIGKILL);
  ASSERT_TRUE(cluster.ReadyAgain(mark));
  EXPECT_NE(cluster.Pid("decode-0"), old);
  const auto after = cluster.Client()->GetCluster();
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(after->workers.size(), before->workers.size());
  for (size_t i = 0; i < after->workers.size(); ++i) {
    EXPECT_EQ(after->workers[i].name, before->workers[i].name);
    const bool restarted = after->workers[i].name == "decode-0";
    EXPECT_EQ(after->workers[i].incarnation > before->workers[i].incarnation, restarted);
  }
  cluster.StopInOrder();
}

TEST(SupervisorTest, AWorkerThatEveryRouterRefusesEndsEverythingWithTwo) {
  ScratchFolder folder;
  const std::string model = folder.path() + "/model.gguf";
  std::filesystem::copy_file(TinyModel(), model);
  Cluster cluster({.model = model, .prefill = 1, .decode = 1});
  const std::vector<pid_t> pids = cluster.AllPids();
  // Another model under the same path: what starts again can never be let in.
  std::filesystem::copy_file(TinyModel("tiny-f32"), model + ".new");
  std::filesystem::rename(model + ".new", model);
  kill(cluster.Pid("decode-0"), SIGKILL);
  EXPECT_EQ(cluster.process().Wait(kStartLimit), 2) << cluster.Log();
  EXPECT_THAT(LinesWith(cluster.Log(), "decode-0: refused for good: "), ElementsAre(HasSubstr("tiny-f32")));
  EXPECT_THAT(cluster.Log(), HasSubstr("another start would end the same way"));
  for (const pid_t pid : cluster.AllPids()) EXPECT_FALSE(Alive(pid)) << pid;
  EXPECT_EQ(cluster.AllPids().size(), pids.size() + 1) << "started again once, for the crash";
}

TEST(SupervisorTest, ItsChildrenDieWithIt) {
  Cluster cluster({.prefill = 1, .decode = 1});
  const std::vector<pid_t> pids = cluster.AllPids();
  ASSERT_EQ(pids.size(), 4u);
  cluster.process().Signal(SIGKILL);
  EXPECT_TRUE(cluster.process().Wait(kStopLimit).has_value());
  for (size_t i = 1; i < pids.size(); ++i) {
    EXPECT_TRUE(Eventually(kStopLimit, [&] { return !Alive(pids[i]); })) << pids[i];
  }
}

TEST(UpTest, ACleanStopLogsNoWarning) {
  Cluster cluster({});
  ASSERT_TRUE(Ask(cluster.Client().get(), GreedyIds(RandomPrompt(1, 70), 20)).ok());
  cluster.StopInOrder();
  EXPECT_THAT(cluster.Log(), HasSubstr("draining"));
  for (const char* level : {" W ", " E ", " C "}) EXPECT_THAT(LinesWith(cluster.Log(), level), ElementsAre());
}

TEST(SupervisorTest, WorkersGetDisjointCores) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "one core";
  Cluster cluster({.prefill = 1, .decode = 1});
  cpu_set_t prefill, decode, both;
  ASSERT_EQ(sched_getaffinity(cluster.Pid("prefill-0"), sizeof(prefill), &prefill), 0);
  ASSERT_EQ(sched_getaffinity(cluster.Pid("decode-0"), sizeof(decode), &decode), 0);
  CPU_AND(&both, &prefill, &decode);
  const bool unpinned = CPU_EQUAL(&prefill, &decode);  // where a quota gives less than the cores
  EXPECT_TRUE(unpinned || CPU_COUNT(&both) == 0);
  cluster.StopInOrder();
}

TEST(HandStartedTest, ARouterAndWorkersFindEachOtherAndEndAlone) {
  ScratchFolder folder;
  const std::string state = folder.path() + "/state";
  Process router(folder, {BATON_BINARY, "router", TinyModel(), "--listen", "127.0.0.1:0", "--state-dir", state});
  size_t at = router.WaitForOut("listening on ", kStartLimit);
  ASSERT_NE(at, std::string::npos) << router.err();
  std::string address = router.out().substr(at + 13);
  address = address.substr(0, address.find('\n'));
  const std::vector<std::string> common = {"--router", address, "--state-dir", state, "--kv-memory", "16MiB"};
  std::vector<std::unique_ptr<Process>> workers;
  for (const char* role : {"prefill", "decode", "unified", "unified"}) {
    std::vector<std::string> arguments = {BATON_BINARY, role, TinyModel()};
    arguments.insert(arguments.end(), common.begin(), common.end());
    workers.push_back(std::make_unique<Process>(folder, arguments));
  }
  for (const char* name : {"prefill-0", "decode-0", "unified-0", "unified-1"}) {  // names of their own, unasked
    EXPECT_NE(router.WaitForOut(std::string(name) + " joined", kStartLimit), std::string::npos) << router.out();
  }
  const auto client = InferenceClient::Create({.address = address, .in_process = nullptr});
  EXPECT_TRUE(Ask(client.get(), GreedyIds(RandomPrompt(1, 70), 20)).ok());
  for (auto& worker : workers) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->Wait(kStopLimit), 0) << worker->err();
  }
  EXPECT_NE(router.WaitForOut("decode-0 left", kStopLimit), std::string::npos);
  router.Signal(SIGINT);
  EXPECT_EQ(router.Wait(kStopLimit), 0) << router.err();
}

TEST(HandStartedTest, AWorkerWithAnotherModelIsRefusedAndEndsWithTheReason) {
  ScratchFolder folder;
  const std::string state = folder.path() + "/state";
  Process router(folder, {BATON_BINARY, "router", TinyModel(), "--listen", "127.0.0.1:0", "--state-dir", state});
  const size_t at = router.WaitForOut("listening on ", kStartLimit);
  ASSERT_NE(at, std::string::npos) << router.err();
  std::string address = router.out().substr(at + 13);
  address = address.substr(0, address.find('\n'));
  Process worker(folder, {BATON_BINARY, "unified", TinyModel("tiny-f32"), "--router", address, "--state-dir", state,
                          "--kv-memory", "16MiB"});
  EXPECT_EQ(worker.Wait(kStartLimit), 2);
  EXPECT_THAT(LinesWith(worker.err(), "refuses"), ElementsAre(HasSubstr("tiny-f32")));
}

TEST(HandStartedTest, ASecondWorkerOfOneNameEndsWithTheReasonAndARestartAfterACrashJoinsAtOnce) {
  ScratchFolder folder;
  const std::string state = folder.path() + "/state";
  Process router(folder, {BATON_BINARY, "router", TinyModel(), "--listen", "127.0.0.1:0", "--state-dir", state});
  const size_t at = router.WaitForOut("listening on ", kStartLimit);
  ASSERT_NE(at, std::string::npos) << router.err();
  std::string address = router.out().substr(at + 13);
  address = address.substr(0, address.find('\n'));
  const std::vector<std::string> command = {BATON_BINARY, "unified",     TinyModel(), "--router",
                                            address,      "--state-dir", state,       "--kv-memory",
                                            "16MiB",      "--name",      "blue"};
  Process first(folder, command);
  ASSERT_NE(router.WaitForOut("blue joined", kStartLimit), std::string::npos) << router.err();
  Process second(folder, command);
  EXPECT_EQ(second.Wait(kStartLimit), 2);
  EXPECT_THAT(LinesWith(second.err(), "refuses"),
              ElementsAre(HasSubstr("the name blue belongs to a worker that lives")));
  EXPECT_THAT(LinesWith(router.err(), "is refused: "),
              ElementsAre(AllOf(HasSubstr(" W "), HasSubstr("start 1 ("), HasSubstr("start 2 ("))));
  EXPECT_EQ(router.out().find("blue left"), std::string::npos) << "the first one never noticed";
  first.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(kStopLimit), 128 + SIGKILL);
  const size_t mark = router.out().size();
  Process third(folder, command);
  EXPECT_NE(router.WaitForOut("blue joined", kStartLimit, mark), std::string::npos) << third.err();
}

TEST(ClientCommandTest, ChatStreamsTheAnswerAndPrintsAReceipt) {
  if (RealModel().empty()) GTEST_SKIP() << "no model; scripts/fetch_model.sh brings it";
  Cluster cluster({.model = RealModel(), .prefill = 1, .decode = 1});
  ScratchFolder folder;
  Process chat(folder, {BATON_BINARY, "chat", "--server", cluster.address(), "--message",
                        "What is the capital of France?", "--receipt"});
  ASSERT_EQ(chat.Wait(milliseconds(60'000)), 0) << chat.err();
  EXPECT_EQ(chat.out(), "The capital of France is Paris.\n");
  const std::string receipt = chat.err();
  for (const char* part :
       {"queue", "prefill", "transfer", "in 2 blocks", "exposed", "first token", "tokens/s", "prefill-0 -> decode-0"}) {
    EXPECT_THAT(receipt, HasSubstr(part));
  }
  Process talk(folder, {BATON_BINARY, "chat", "--server", cluster.address(), "--max-tokens", "8"}, {},
               "Say hello.\nAgain.\n");
  ASSERT_EQ(talk.Wait(milliseconds(60'000)), 0) << talk.err();
  const std::string answers = talk.out();
  EXPECT_GE(std::count(answers.begin(), answers.end(), '\n'), 2);
  cluster.StopInOrder();
}

TEST(ClientCommandTest, CompleteGivesJsonWithTokenIds) {
  Cluster cluster({});
  ScratchFolder folder;
  Process complete(folder, {BATON_BINARY, "complete", "--server", cluster.address(), "--ids", "5,6,7", "--max-tokens",
                            "4", "--ignore-eos", "--json"});
  ASSERT_EQ(complete.Wait(milliseconds(30'000)), 0) << complete.err();
  const Answer answer = Ask(cluster.Client().get(), GreedyIds({5, 6, 7}, 4));
  std::string ids;
  for (const TokenId id : answer.ids) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  EXPECT_THAT(complete.out(), HasSubstr("\"token_ids\":[" + ids + "]"));
  EXPECT_THAT(complete.out(), HasSubstr("\"completion_tokens\":4"));
  Process wrong(folder, {BATON_BINARY, "complete", "--server", cluster.address(), "--ids", "5,100000"});
  EXPECT_EQ(wrong.Wait(milliseconds(30'000)), 1);
  EXPECT_THAT(wrong.err(), HasSubstr("100000"));
  cluster.StopInOrder();
}

}  // namespace
}  // namespace baton::test
