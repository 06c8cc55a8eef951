// `baton up` as a fixture: started on a free port, asked through gRPC, stopped in order, with every process
// accounted for. The test's main thread, and threads that only ask.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "rpc/inference_client.h"
#include "support/process.h"

namespace baton::test {

using std::chrono::milliseconds;

inline constexpr milliseconds kStartLimit{60'000};
inline constexpr milliseconds kStopLimit{10'000};
inline constexpr uint32_t kTinyVocabulary = 290;
inline constexpr uint32_t kTinyContext = 512;

inline std::string TinyModel(const std::string& name = "tiny-q8_0") {
  return std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/" + name + ".gguf";
}
// The default model, or "" where it is not (scripts/fetch_model.sh).
inline std::string RealModel() {
  std::string path;
  if (const char* given = std::getenv("BATON_TEST_MODEL")) {
    path = given;
  } else if (const char* home = std::getenv("HOME")) {
    path = std::string(home) + "/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::exists(path) ? path : "";
}

struct Answer {
  Started started;
  std::string text;
  std::vector<TokenId> ids;
  Finished finished;
  Done done;
  CallResult result;
  bool ok() const { return result.status.ok(); }
};

inline std::vector<int64_t> RandomPrompt(uint64_t seed, size_t length) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < length; ++i)
    out.push_back(static_cast<int64_t>(3 + Mix64(seed * 1'000'003 + i) % (kTinyVocabulary - 3)));
  return out;
}

inline ClientRequest GreedyIds(std::vector<int64_t> ids, int64_t max_tokens) {
  ClientRequest out;
  out.prompt = TokenPrompt{std::move(ids)};
  out.temperature = 0;
  out.max_tokens = max_tokens;
  out.ignore_eos = true;
  out.want_token_ids = true;
  out.timings = true;
  out.deadline = std::chrono::seconds(120);
  return out;
}

inline Answer Ask(InferenceClient* client, const ClientRequest& request,
                  const std::function<void(const Answer&)>& on_delta = {}) {
  Answer answer;
  answer.result = client->Generate(request, [&](const ClientEvent& event) {
    if (const auto* started = std::get_if<Started>(&event)) {
      answer.started = *started;
    } else if (const auto* delta = std::get_if<Delta>(&event)) {
      answer.text += delta->text;
      answer.ids.insert(answer.ids.end(), delta->token_ids.begin(), delta->token_ids.end());
      if (on_delta) on_delta(answer);
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      answer.finished = *finished;
    } else if (const auto* done = std::get_if<Done>(&event)) {
      answer.done = *done;
    }
    return true;
  });
  return answer;
}

// A port of loopback that nobody listens on now.
inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  BATON_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
  BATON_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
  close(fd);
  return ntohs(address.sin_port);
}

inline bool Alive(pid_t pid) { return kill(pid, 0) == 0; }

struct ClusterShape {
  std::string model = TinyModel();
  int prefill = 0, decode = 0;  // 0 and 0: one process
  std::string transport;        // "" = default
  std::string kv_memory = "64MiB";
  std::vector<std::string> more;
  InferenceClient::Options client;  // how it is asked
};

class Cluster {
 public:
  explicit Cluster(const ClusterShape& shape) : shape_(shape) {
    std::vector<std::string> arguments = {BATON_BINARY, "up", shape.model, "--listen", "127.0.0.1:0"};
    arguments.insert(arguments.end(), {"--state-dir", folder_.path() + "/state", "--kv-memory", shape.kv_memory});
    if (shape.decode > 0) {
      arguments.insert(arguments.end(),
                       {"--prefill", std::to_string(shape.prefill), "--decode", std::to_string(shape.decode)});
    }
    if (!shape.transport.empty()) arguments.insert(arguments.end(), {"--transport", shape.transport});
    arguments.insert(arguments.end(), shape.more.begin(), shape.more.end());
    process_ = std::make_unique<Process>(folder_, arguments);
    const size_t at = process_->WaitForOut(kReady, kStartLimit);
    BATON_CHECK(at != std::string::npos, "not ready:\n" + Log());
    std::string line = process_->out().substr(at + std::string(kReady).size());
    address_ = line.substr(0, line.find(": "));
  }
  ~Cluster() {
    // Whatever the test did not stop dies with the supervisor.
    if (::testing::Test::HasFailure()) std::fprintf(stderr, "the cluster's log:\n%s\n", Log().c_str());
  }

  std::unique_ptr<InferenceClient> Client() const {
    return InferenceClient::Create({.address = address_, .in_process = nullptr}, shape_.client);
  }
  const std::string& address() const { return address_; }
  Process& process() { return *process_; }
  std::string Log() const { return process_->out() + process_->err(); }

  // The present process of that name ("prefill-0"); the supervisor says each that it starts.
  pid_t Pid(const std::string& name) const {
    const std::string log = process_->out();
    const std::string mark = "\n" + name + ": started, pid ";
    const size_t at = ("\n" + log).rfind(mark);
    BATON_CHECK(at != std::string::npos, name + " was never started");
    return std::atoi(log.c_str() + at + mark.size() - 1);
  }
  std::vector<pid_t> AllPids() const {
    std::vector<pid_t> out = {process_->pid()};
    const std::string log = process_->out();
    const std::string mark = ": started, pid ";
    for (size_t at = log.find(mark); at != std::string::npos; at = log.find(mark, at + 1)) {
      out.push_back(std::atoi(log.c_str() + at + mark.size()));
    }
    return out;
  }
  // What the log holds now; ReadyAgain waits for a line after it.
  size_t Mark() const { return process_->out().size(); }
  bool ReadyAgain(size_t mark) { return process_->WaitForOut(kReady, milliseconds(30'000), mark) != std::string::npos; }

  // Nothing runs and every block of every worker has come back.
  ::testing::AssertionResult BecomesIdle(milliseconds limit = milliseconds(15'000)) {
    const auto client = Client();
    std::string seen;
    const size_t workers = shape_.decode > 0 ? static_cast<size_t>(shape_.prefill + shape_.decode) : 1;
    const bool idle = Eventually(limit, [&] {
      const auto cluster = client->GetCluster();
      if (!cluster.ok()) {
        seen = cluster.status().message();
        return false;
      }
      bool all = cluster->workers.size() == workers && cluster->live == 0;
      seen = std::to_string(cluster->workers.size()) + " workers, live " + std::to_string(cluster->live);
      for (const WorkerDescription& w : cluster->workers) {
        const bool returned = w.free_blocks == w.total_blocks && w.quarantined_blocks == std::vector<uint32_t>(1, 0);
        all = all && w.running == 0 && w.waiting == 0 && returned;
        seen += "; " + w.name + " running " + std::to_string(w.running) + " free " +
                std::to_string(w.free_blocks.empty() ? 0 : w.free_blocks[0]) + " of " +
                std::to_string(w.total_blocks.empty() ? 0 : w.total_blocks[0]);
      }
      return all;
    });
    if (idle) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << seen;
  }

  // SIGTERM ends everything in order, in time, and leaves no process.
  void StopInOrder() {
    const std::vector<pid_t> pids = AllPids();
    process_->Signal(SIGTERM);
    EXPECT_EQ(process_->Wait(kStopLimit), 0) << Log();
    for (const pid_t pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
  }

 private:
  static constexpr const char* kReady = "baton is ready on ";
  const ClusterShape shape_;
  ScratchFolder folder_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

}  // namespace baton::test
