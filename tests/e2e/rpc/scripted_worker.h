// A worker without a model: real connections (WorkerNetwork), and in the engine's place a thread that answers
// commands by a script. Token i of a request's answer is a function of the prompt alone, so every client can
// check what it got.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "baton/tokenizer.h"
#include "rpc/worker_network.h"

namespace baton::testing {

// One token per byte, and 256 as the end token.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int i = 0; i < 256; ++i) bytes_.push_back(std::string(1, static_cast<char>(i)));
  }
  void Encode(const std::vector<TextSpan>& text, bool, std::vector<TokenId>* ids) const override {
    for (const TextSpan& span : text) {
      for (unsigned char c : span.text) ids->push_back(c);
    }
  }
  std::string_view TokenBytes(TokenId id, bool with_special) const override {
    if (id == 256) return with_special ? "<end>" : "";
    return bytes_[static_cast<size_t>(id)];
  }
  bool IsSpecial(TokenId id) const override { return id == 256; }
  uint32_t vocab_size() const override { return 257; }
  const std::vector<TokenId>& eos_ids() const override { return eos_; }

 private:
  std::vector<std::string> bytes_;
  const std::vector<TokenId> eos_{256};
};

inline TokenId AnswerToken(size_t prompt_tokens, uint32_t index) {
  return 'a' + static_cast<TokenId>((prompt_tokens + index) % 26);
}
inline std::string AnswerText(size_t prompt_tokens, uint32_t count) {
  std::string text;
  for (uint32_t i = 0; i < count; ++i) text += static_cast<char>(AnswerToken(prompt_tokens, i));
  return text;
}

inline ModelIdentity TestModel() { return {"test-model", {1, 2}}; }
inline KvLayout TestLayout() { return {32, TileForm::kPairs, {{KvKind::kFull, 2, 1, 8, DType::kBF16}}}; }

// Waits until `done` holds; false after a generous while. For events that come, not for how fast they come.
template <typename Done>
bool Eventually(Done done) {
  for (int i = 0; i < 3000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return done();
}

class ScriptedWorker {
 public:
  struct Options {
    std::string name = "worker";
    uint64_t incarnation = 1;
    std::vector<Endpoint> routers;
    std::chrono::milliseconds token_every{0};  // one token per running request
    uint32_t credits = 64;
    uint32_t tokens_per_batch = 1;
    std::chrono::milliseconds keepalive{1000};
    TlsPems tls;
    RoleMask roles;
  };

  explicit ScriptedWorker(Options options) : options_(std::move(options)), mailbox_(1024, 1 << 16) {
    WorkerNetworkOptions network;
    network.tls = options_.tls;
    network.keepalive_time = options_.keepalive;
    network.keepalive_timeout = options_.keepalive;
    network.on_refused = [this](const Status& why) {
      std::lock_guard lock(mutex_);
      refused_ = why;
    };
    auto listening = WorkerNetwork::Listen(std::move(network));
    BATON_CHECK(listening.ok(), listening.status().message());
    network_ = *std::move(listening);
    network_->Start(&mailbox_, options_.routers);
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }
  ~ScriptedWorker() {
    network_->Shutdown();
    thread_.request_stop();
    mailbox_.Wake();
    thread_.join();
  }

  // ---- what happened so far ----
  uint32_t links_up() const { return ups_.load(); }
  uint32_t links_down() const { return downs_.load(); }
  uint32_t tokens() const { return tokens_.load(); }
  uint32_t cancels() const { return cancels_.load(); }    // of children that were running here
  uint32_t running() const { return running_.load(); }
  bool link_down_twice() const { return twice_.load(); }
  Status refused() const {
    std::lock_guard lock(mutex_);
    return refused_;
  }

 private:
  struct Child {
    LinkId link;
    RequestPtr request;
    Epoch epoch;
    uint32_t next;
  };

  void Run(const std::stop_token& stop) {
    std::vector<EngineCommand> commands;
    TimePoint next_beat{}, next_token{};
    while (!stop.stop_requested()) {
      mailbox_.Drain(&commands, children_.empty() ? std::chrono::milliseconds(20) : std::chrono::milliseconds(1));
      for (EngineCommand& command : commands) On(std::move(command));
      commands.clear();
      const TimePoint now = clock_.Now();
      std::map<LinkId, WorkerBatch> batches;
      if (now >= next_token) {
        EmitTokens(&batches);
        next_token = now + options_.token_every;
      }
      if (now >= next_beat) {
        for (LinkId link : links_) batches[link];
        next_beat = now + std::chrono::milliseconds(50);
      }
      Outbox out;
      for (auto& [link, batch] : batches) {
        batch.heartbeat.roles = options_.roles;
        batch.heartbeat.steps = ++steps_;
        batch.heartbeat.running = static_cast<uint32_t>(children_.size());
        batch.heartbeat.free_blocks = {1000};
        batch.heartbeat.quarantined_blocks = {0};
        out.to_fronts.emplace_back(link, WorkerMessage(std::move(batch)));
      }
      running_ = static_cast<uint32_t>(children_.size());
      if (!out.empty()) network_->Deliver(std::move(out));
    }
  }

  void EmitTokens(std::map<LinkId, WorkerBatch>* batches) {
    for (auto it = children_.begin(); it != children_.end();) {
      Child& child = it->second;
      WorkerBatch& batch = (*batches)[child.link];
      bool over = false;
      for (uint32_t i = 0; i < options_.tokens_per_batch && !over; ++i) {
        const TokenId token = AnswerToken(child.request->prompt.size(), child.next);
        const FinishReason finish = FinishAt(child.request->stop, token, child.next);
        over = finish != FinishReason::kNone;
        if (over) {
          Receipt receipt;
          receipt.prompt_tokens = static_cast<uint32_t>(child.request->prompt.size());
          receipt.queue = std::chrono::microseconds(123);
          batch.events.push_back(ReceiptEvent{it->first, child.epoch, receipt});
        }
        batch.events.push_back(TokenEvent{it->first, child.epoch, child.next, {token, -0.5f, {}}, finish});
        ++child.next;
        ++tokens_;
      }
      it = over ? children_.erase(it) : std::next(it);
    }
  }

  void On(EngineCommand command) {
    if (const auto* up = std::get_if<LinkUp>(&command)) {
      ++ups_;
      links_.push_back(up->link);
      WorkerHello hello;
      hello.self = {{options_.name, {options_.incarnation, 7}}, network_->pair_address()};
      hello.roles = options_.roles;
      hello.model = TestModel();
      hello.layout = TestLayout();
      hello.num_blocks = {1000};
      hello.max_context_tokens = 4096;
      hello.submit_credits = options_.credits;
      Outbox out;
      out.to_fronts.emplace_back(up->link, WorkerMessage(hello));
      network_->Deliver(std::move(out));
    } else if (const auto* down = std::get_if<LinkDown>(&command)) {
      ++downs_;
      const auto it = std::find(links_.begin(), links_.end(), down->link);
      if (it == links_.end()) {
        twice_ = true;
      } else {
        links_.erase(it);
      }
      std::erase_if(children_, [&](const auto& child) { return child.second.link == down->link; });
    } else if (auto* from = std::get_if<FromFront>(&command)) {
      OnFront(from->link, std::move(from->command));
    }
  }

  void OnFront(LinkId link, FrontCommand command) {
    if (auto* decode = std::get_if<DecodeCommand>(&command)) {
      const ChildId child = decode->request->id;
      children_[child] = {link, decode->request, decode->epoch, decode->progress.delivered};
    } else if (const auto* cancel = std::get_if<CancelCommand>(&command)) {
      if (children_.erase(cancel->child) > 0) ++cancels_;
    }
  }

  const Options options_;
  SteadyClock clock_;
  Mailbox<EngineCommand> mailbox_;
  std::unique_ptr<WorkerNetwork> network_;
  std::vector<LinkId> links_;           // worker thread
  std::map<ChildId, Child> children_;   // worker thread
  uint64_t steps_ = 0;                  // worker thread
  std::atomic<uint32_t> ups_{0}, downs_{0}, tokens_{0}, cancels_{0}, running_{0};
  std::atomic<bool> twice_{false};
  mutable std::mutex mutex_;
  Status refused_;
  std::jthread thread_;
};

}  // namespace baton::testing
