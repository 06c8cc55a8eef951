// A prefill and a decode engine in one process, each with its thread, its runner and the local transport
// between them, and a pump that carries what they say. No gRPC and no UCX, so sanitizers see everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "engine/engine_thread.h"
#include "model/loaded_model.h"
#include "runner/cpu_model_runner.h"
#include "transport/local/local_transport.h"

namespace baton {
namespace {

constexpr uint32_t kVocabulary = 290;
constexpr uint64_t kFront = 77;
constexpr LinkId kFrontLink{(uint64_t{1} << 63) | 1};
constexpr std::chrono::seconds kLimit{60};

template <typename T>
T Unwrap(StatusOr<T> value) {
  BATON_CHECK(value.ok(), value.status().message());
  return *std::move(value);
}

// The weights, once for all engines.
struct Weights {
  std::unique_ptr<ModelFile> file;
  std::unique_ptr<CpuDevice> device;
  std::unique_ptr<LoadedModel> model;
};
const Weights& TinyWeights() {
  static const Weights weights = [] {
    Weights out;
    out.file = Unwrap(ModelFile::Open(std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/tiny-q8_0.gguf"));
    out.device = Unwrap(CpuDevice::Create({.threads = 1, .cpus = {}, .kernels = {}}));
    out.model = Unwrap(LoadedModel::Load(*out.file, out.device->pool()));
    return out;
  }();
  return weights;
}

class Pump;

// One worker without a network.
struct Node {
  Node(std::string name, RoleMask roles, uint32_t kv_tokens, const LocalFabric& fabric, Pump* pump);
  ~Node() { thread->Stop(); }

  PeerAddress self;
  SteadyClock clock;
  Mailbox<EngineCommand> inlet{4096, 65536};
  std::unique_ptr<CpuDevice> device;
  std::unique_ptr<LocalTransport> transport;
  std::unique_ptr<CpuModelRunner> runner;
  std::unique_ptr<EngineCore> core;
  std::unique_ptr<EngineThread> thread;

  void Push(EngineCommand command) {
    BATON_CHECK(inlet.PushControl(std::move(command)), "the inlet is full");
  }
};

// Carries Outbox contents between nodes, and keeps what they say to the front. Called by engine threads.
class Pump {
 public:
  void Add(Node* node) {
    std::lock_guard lock(mutex_);
    nodes_[node->self.process] = node;
  }
  void Deliver(Node* from, Outbox&& out) {
    std::lock_guard lock(mutex_);
    for (const Dial& dial : out.dial) {
      const auto it = nodes_.find(dial.peer.process);
      if (it == nodes_.end()) {
        from->Push(LinkDown{dial.link, UnavailableError("nobody of that name")});
        continue;
      }
      const LinkId accepted{(uint64_t{1} << 63) | ++next_link_};
      far_end_[{from, dial.link}] = {it->second, accepted};
      far_end_[{it->second, accepted}] = {from, dial.link};
      from->Push(LinkUp{dial.link, LinkKind::kPairWriter});
      it->second->Push(LinkUp{accepted, LinkKind::kPairReader});
    }
    for (auto& [link, message] : out.to_peers) {
      const auto it = far_end_.find({from, link});
      if (it != far_end_.end()) it->second.first->Push(FromPeer{it->second.second, std::move(message)});
    }
    for (auto& [link, message] : out.to_fronts) {
      if (auto* batch = std::get_if<WorkerBatch>(&message)) {
        for (ChildEvent& event : batch->events) events_.push_back(std::move(event));
      }
    }
    for (const WatchProcess& watch : out.watch) from->Push(ProcessWatched{watch.process, false});
    for (const LinkId link : out.close) {
      const auto it = far_end_.find({from, link});
      if (it == far_end_.end()) continue;
      const auto [peer, peer_link] = it->second;
      far_end_.erase(it);
      far_end_.erase({peer, peer_link});
      from->Push(LinkDown{link, CancelledError("closed here")});
      peer->Push(LinkDown{peer_link, UnavailableError("closed by the peer")});
    }
    changed_.notify_all();
  }
  // Waits until `done` says so about all that was heard; false: it did not come.
  bool WaitFor(const std::function<bool(const std::vector<ChildEvent>&)>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return done(events_); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ProcessId, Node*> nodes_;
  std::map<std::pair<Node*, LinkId>, std::pair<Node*, LinkId>> far_end_;
  std::vector<ChildEvent> events_;
  uint64_t next_link_ = 1000;
};

Node::Node(std::string name, RoleMask roles, uint32_t kv_tokens, const LocalFabric& fabric, Pump* pump) {
  const Weights& weights = TinyWeights();
  self = {{name, {1, Mix64(name.size() + static_cast<uint64_t>(name[0]))}}, name};
  device = Unwrap(CpuDevice::Create({.threads = 1, .cpus = {}, .kernels = {}}));
  transport = std::make_unique<LocalTransport>(fabric, LocalOptions{.self = self.process}, &inlet);
  EngineOptions options;
  options.self = self;
  options.model = weights.model->identity();
  options.layout = MakeKvLayout(weights.model->decoder(), 32);
  options.pool = PlanPool(
      options.layout, uint64_t{options.layout.BlocksFor(kv_tokens)} * options.layout.BlockBytes(0) + 4096);
  const std::span<std::byte> pool = Unwrap(transport->AllocatePool(options.pool.total_bytes));
  CpuRunnerOptions runner_options;
  runner_options.max_step_tokens = 64;
  runner_options.waker = &inlet;
  runner = Unwrap(
      CpuModelRunner::Create(*weights.model, *device, options.layout, options.pool, pool, runner_options));
  options.numeric = runner->numeric_identity();
  options.vocab_size = kVocabulary;
  options.roles = roles;
  options.scheduler.max_step_tokens = 64;
  options.scheduler.max_prefill_tokens = 64;
  options.scheduler.max_running = 16;
  options.scheduler.max_context_tokens = 512;
  options.prior = PriorFor(
      {.active_parameters = 1e5, .weight_bytes = 1e5, .attention_width = 256, .kv_bytes_per_token = 1024});
  core = std::make_unique<EngineCore>(options, runner.get(), transport.get());
  thread = std::make_unique<EngineThread>(
      core.get(), &inlet, &clock, [this, pump](Outbox&& out) { pump->Deliver(this, std::move(out)); });
  pump->Add(this);
  thread->Start();
  Push(LinkUp{kFrontLink, LinkKind::kFront});
  Push(FromFront{kFrontLink, FrontHello{{"front", {1, 1}}, kFront}});
}

RequestPtr MakeRequest(uint64_t number, size_t length, uint32_t max_tokens, float temperature) {
  auto request = std::make_shared<Request>();
  request->id = {kFront, number, 0};
  for (size_t i = 0; i < length; ++i)
    request->prompt.push_back(static_cast<TokenId>(3 + Mix64(length * 1000 + i) % (kVocabulary - 3)));
  request->sampling.temperature = temperature;
  request->sampling.seed = 99;
  request->sampling.logprobs = 2;
  request->stop.max_tokens = max_tokens;
  return request;
}

// What the front was told of one child.
struct Told {
  std::map<uint32_t, OutputToken> tokens;  // by index
  bool finished = false;
  bool handed_off = false;
  bool disagreed = false;  // one index with two tokens
  std::string failure;
  uint64_t transfer_bytes = 0, transfer_blocks = 0;
  uint32_t preemptions = 0;
};
Told Collect(const std::vector<ChildEvent>& events, uint64_t number) {
  Told out;
  for (const ChildEvent& event : events) {
    if (std::visit([](const auto& e) { return e.child.number; }, event) != number) continue;
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      const auto [it, added] = out.tokens.emplace(token->index, token->token);
      out.disagreed |= !added && it->second.id != token->token.id;
      out.finished |= token->finish != FinishReason::kNone;
    } else if (std::holds_alternative<HandedOff>(event)) {
      out.handed_off = true;
    } else if (const auto* failed = std::get_if<HandoffFailed>(&event)) {
      out.failure = "hand-off: " + failed->detail;
    } else if (const auto* failed_child = std::get_if<ChildFailed>(&event)) {
      out.failure = failed_child->why.ToString();
    } else if (const auto* receipt = std::get_if<ReceiptEvent>(&event)) {
      out.transfer_bytes += receipt->receipt.transfer_bytes;
      out.transfer_blocks += receipt->receipt.transfer_blocks;
      out.preemptions += receipt->receipt.preemptions;
    }
  }
  return out;
}

// handed_off: the writer's own word that it let go is waited for too; it may come after the reader's last token.
std::vector<Told> WaitForAll(Pump* pump, size_t count, bool handed_off = false) {
  std::vector<Told> out(count);
  const bool all = pump->WaitFor([&](const std::vector<ChildEvent>& events) {
    for (size_t i = 0; i < count; ++i) {
      out[i] = Collect(events, i + 1);
      if (!out[i].finished && out[i].failure.empty()) return false;
      if (handed_off && !out[i].handed_off && out[i].failure.empty()) return false;
    }
    return true;
  });
  EXPECT_TRUE(all) << "not all requests ended";
  return out;
}

std::vector<OutputToken> Tokens(const Told& told) {
  std::vector<OutputToken> out;
  for (const auto& [index, token] : told.tokens) out.push_back(token);
  return out;
}

// Nothing is left: drains, then looks at the core with its thread gone.
void ExpectClean(Node* node) {
  node->Push(BeginDrain{});
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!node->thread->drained() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(node->thread->drained()) << node->self.process.name;
  node->thread->Stop();
  node->core->Audit();
  EXPECT_TRUE(node->core->idle());
}

const std::vector<size_t> kLengths = {1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129};

std::vector<RequestPtr> MakeRequests(float temperature) {
  std::vector<RequestPtr> out;
  for (const size_t length : kLengths) out.push_back(MakeRequest(out.size() + 1, length, 20, temperature));
  return out;
}

std::vector<Told> RunUnified(const std::vector<RequestPtr>& requests, uint32_t kv_tokens) {
  LocalFabric fabric;
  Pump pump;
  Node unified("unified", {true, true}, kv_tokens, fabric, &pump);
  for (const RequestPtr& request : requests) {
    unified.Push(FromFront{kFrontLink, DecodeCommand{request, {{}, 0, kLimit}, 1}});
  }
  auto out = WaitForAll(&pump, requests.size());
  ExpectClean(&unified);
  return out;
}

class LocalHandOffTest : public ::testing::TestWithParam<float> {};

// FF-029
TEST_P(LocalHandOffTest, GivesTheTokensAndLogprobsOfOneWorker) {
  const auto requests = MakeRequests(GetParam());
  const auto expected = RunUnified(requests, 8192);

  LocalFabric fabric;
  Pump pump;
  Node decode("decode", {false, true}, 8192, fabric, &pump);
  Node prefill("prefill", {true, false}, 8192, fabric, &pump);
  for (const RequestPtr& request : requests) {
    prefill.Push(FromFront{kFrontLink, PrefillCommand{request, {{}, 0, kLimit}, 1, decode.self}});
  }
  const auto told = WaitForAll(&pump, requests.size(), /*handed_off=*/true);
  const uint64_t block_bytes = MakeKvLayout(TinyWeights().model->decoder(), 32).BlockBytes(0);
  uint64_t bytes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(told[i].failure, "") << kLengths[i];
    EXPECT_TRUE(told[i].handed_off) << kLengths[i];
    EXPECT_FALSE(told[i].disagreed) << kLengths[i];
    EXPECT_EQ(Tokens(told[i]).size(), 20u) << kLengths[i];
    EXPECT_EQ(Tokens(told[i]), Tokens(expected[i])) << kLengths[i];
    EXPECT_EQ(told[i].transfer_blocks, (kLengths[i] + 31) / 32) << kLengths[i];
    EXPECT_EQ(told[i].transfer_bytes, told[i].transfer_blocks * block_bytes) << kLengths[i];
    bytes += told[i].transfer_bytes;
  }
  EXPECT_EQ(prefill.transport->counters().bytes_quiesced, bytes);
  EXPECT_EQ(decode.transport->counters().placements_refused, 0u);
  ExpectClean(&prefill);
  ExpectClean(&decode);
}

INSTANTIATE_TEST_SUITE_P(Temperatures, LocalHandOffTest, ::testing::Values(0.0f, 0.8f),
                         [](const auto& info) { return info.param == 0 ? "greedy" : "sampled"; });

TEST(LocalPressureTest, APoolThatIsTooSmallForAllChangesNoToken) {
  const auto requests = MakeRequests(0);
  const auto expected = RunUnified(requests, 8192);

  const auto squeezed = RunUnified(requests, 256);
  uint32_t preemptions = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(Tokens(squeezed[i]), Tokens(expected[i])) << kLengths[i];
    preemptions += squeezed[i].preemptions;
  }
  EXPECT_GT(preemptions, 0u);

  LocalFabric fabric;
  Pump pump;
  Node decode("decode", {false, true}, 384, fabric, &pump);
  Node prefill("prefill", {true, false}, 384, fabric, &pump);
  for (const RequestPtr& request : requests) {
    prefill.Push(FromFront{kFrontLink, PrefillCommand{request, {{}, 0, kLimit}, 1, decode.self}});
  }
  const auto told = WaitForAll(&pump, requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(told[i].failure, "") << kLengths[i];
    EXPECT_EQ(Tokens(told[i]), Tokens(expected[i])) << kLengths[i];
  }
  ExpectClean(&prefill);
  ExpectClean(&decode);
}

// FF-021
TEST(LocalCancelTest, RequestsThatAreCancelledAnywhereLeaveNothingBehind) {
  LocalFabric fabric;
  Pump pump;
  Node decode("decode", {false, true}, 4096, fabric, &pump);
  Node prefill("prefill", {true, false}, 4096, fabric, &pump);
  constexpr uint64_t kCount = 40;
  for (uint64_t n = 1; n <= kCount; ++n) {
    const RequestPtr request = MakeRequest(n, 20 + n * 3, 200, 0);
    prefill.Push(FromFront{kFrontLink, PrefillCommand{request, {{}, 0, kLimit}, 1, decode.self}});
    if (n % 4 == 0) {  // by then its neighbours are anywhere on their way
      EXPECT_TRUE(pump.WaitFor([&](const auto& events) { return !Collect(events, n - 1).tokens.empty(); }));
    }
    if (n % 2 == 0) {
      for (Node* node : {&prefill, &decode}) node->Push(FromFront{kFrontLink, CancelCommand{request->id, 1}});
    }
  }
  EXPECT_TRUE(pump.WaitFor([&](const std::vector<ChildEvent>& events) {
    for (uint64_t n = 1; n <= kCount; n += 2) {
      const Told told = Collect(events, n);
      if (!told.finished && told.failure.empty()) return false;
    }
    return true;
  }));
  ExpectClean(&prefill);
  ExpectClean(&decode);
}

}  // namespace
}  // namespace baton
