// A cluster of real workers in one process: real model, kernels, runner, engine threads and transport; a Front on a
// thread of its own; messages carried by function calls instead of gRPC. For equality tests, also under sanitizers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mailbox.h"
#include "device/cpu/cpu_device.h"
#include "engine/engine_core.h"
#include "engine/engine_thread.h"
#include "front/front.h"
#include "model/loaded_model.h"
#include "model/memory_plan.h"
#include "model/model_file.h"
#include "runner/cpu_model_runner.h"
#include "text/bpe_tokenizer.h"
#include "transport/fake/fake_transport.h"
#include "transport/local/local_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace baton::test {

struct ClusterOptions {
  std::string model;
  uint32_t num_prefill = 0, num_decode = 0, num_unified = 0;
  std::string transport = "local";  // local, ucx-shm, ucx-tcp, fake (over local)
  FaultRates faults;                // fake only
  int threads = 1;
  std::string kernels = "auto";
  uint32_t block_tokens = 16;
  uint32_t decode_block_tokens = 0;                               // of dedicated decode workers; 0: the same
  DType kv_dtype = DType::kBF16, decode_kv_dtype = DType::kBF16;  // the second: of dedicated decode workers
  uint32_t pool_blocks = 256;
  uint32_t max_step_tokens = 512, max_prefill_tokens = 512;
  uint32_t max_running = 32;
  bool prefix_cache = true;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<OutputToken> logprobs;
  std::string text;
  FinishReason reason = FinishReason::kNone;
  Status status;
  Timings timings;
  Usage usage;
};

template <typename T>
T Must(StatusOr<T> value) {
  BATON_CHECK(value.ok(), value.status().ToString());
  return *std::move(value);
}

class InProcessCluster {
 public:
  explicit InProcessCluster(ClusterOptions options) : options_(std::move(options)) {
    file_ = Must(ModelFile::Open(options_.model));
    tokenizer_ = Must(BpeTokenizer::Make(Must(LoadVocabulary(*file_))));
    FrontOptions front;
    front.self = {"front", {1, 99}};
    front.model = file_->identity();
    front.max_context_tokens = file_->decoder().context_tokens;
    front.limits.retry_budget = 4;
    front.router.local_below_tokens = 0;
    front.router.local_margin = std::chrono::hours(1);  // P does the prompts
    front_ = std::make_unique<Front>(front, tokenizer_.get(), nullptr);
    const auto add = [this](const std::string& name, RoleMask roles) {
      workers_.push_back(std::make_unique<Worker>());
      workers_.back()->name = name;
      workers_.back()->roles = roles;
    };
    for (uint32_t i = 0; i < options_.num_prefill; ++i) add("p" + std::to_string(i), {true, false});
    for (uint32_t i = 0; i < options_.num_decode; ++i) add("d" + std::to_string(i), {false, true});
    for (uint32_t i = 0; i < options_.num_unified; ++i) add("u" + std::to_string(i), {true, true});
    for (size_t i = 0; i < workers_.size(); ++i) Boot(i);
    front_thread_ = std::jthread([this](const std::stop_token& stop) { FrontLoop(stop); });
    for (size_t i = 0; i < workers_.size(); ++i) {
      workers_[i]->thread->Start();
      const LinkId link{kFrontLink + i};
      Push(i, LinkUp{link, LinkKind::kFront});
    }
    WaitFor([this] { return registered_ == workers_.size(); });
  }

  ~InProcessCluster() { Stop(); }

  std::vector<Answer> Ask(std::vector<ClientRequest> requests) {
    const size_t first = next_client_;
    {
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < requests.size(); ++i) answers_[first + i];
    }
    next_client_ += requests.size();
    for (size_t i = 0; i < requests.size(); ++i) {
      PushFront(ClientSubmit{ClientHandle{first + i}, std::move(requests[i])});
    }
    WaitFor([&] {
      for (size_t i = 0; i < requests.size(); ++i) {
        if (!answers_[first + i].over) return false;
      }
      return true;
    });
    std::vector<Answer> answers;
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < requests.size(); ++i) answers.push_back(answers_[first + i].answer);
    return answers;
  }
  Answer Ask(ClientRequest request) { return Ask(std::vector<ClientRequest>{std::move(request)})[0]; }

  // Ends every thread; the cores can be looked at afterwards.
  void Stop() {
    for (auto& w : workers_) w->thread->Stop();
    if (front_thread_.joinable()) {
      front_thread_.request_stop();
      front_inbox_.Wake();
      front_thread_.join();
    }
  }
  const EngineCore& core(const std::string& name) const {
    for (const auto& w : workers_) {
      if (w->name == name) return *w->core;
    }
    BATON_CHECK(false, name);
    std::abort();
  }
  uint64_t bytes_posted() const {
    uint64_t bytes = 0;
    for (const auto& w : workers_) bytes += w->core->connector().counters().bytes_posted;
    return bytes;
  }
  // Digest of the logits that chose token `index` of a prompt's answer, as some worker computed them; a position
  // that was computed twice with unlike bits is reported as 0.
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> logits() {
    std::lock_guard lock(logits_mutex_);
    return logits_;
  }
  const ModelFile& file() const { return *file_; }

 private:
  static constexpr uint64_t kTop = uint64_t{1} << 63;
  static constexpr uint64_t kFrontLink = kTop | (uint64_t{1} << 32);

  struct Worker {
    std::string name;
    RoleMask roles;
    PeerAddress self;
    std::unique_ptr<CpuDevice> device;
    std::unique_ptr<LoadedModel> model;
    std::unique_ptr<Mailbox<EngineCommand>> mailbox = std::make_unique<Mailbox<EngineCommand>>(4096, 65536);
    std::unique_ptr<KvTransport> transport;
    std::unique_ptr<CpuModelRunner> runner;
    std::unique_ptr<EngineCore> core;
    std::unique_ptr<EngineThread> thread;
  };
  struct Pending {
    Answer answer;
    bool over = false;
  };

  void Boot(size_t index) {
    Worker& w = *workers_[index];
    w.self = {{w.name, {1, 1000 + index}}, w.name + ":1"};
    w.device = Must(CpuDevice::Create({.threads = options_.threads, .cpus = {}, .kernels = options_.kernels}));
    w.model = Must(LoadedModel::Load(*file_, w.device->pool()));
    EngineOptions o;
    o.self = w.self;
    o.model = file_->identity();
    const bool reads = !w.roles.prefill;
    const bool other = reads && options_.decode_block_tokens != 0;
    o.layout = MakeKvLayout(w.model->decoder(), other ? options_.decode_block_tokens : options_.block_tokens,
                            reads ? options_.decode_kv_dtype : options_.kv_dtype);
    o.pool = PlanPool(o.layout, uint64_t{options_.pool_blocks} * o.layout.BlockBytes(0) + 4096);
    o.vocab_size = w.model->decoder().vocab_size;
    o.scheduler.max_step_tokens = options_.max_step_tokens;
    o.scheduler.max_prefill_tokens = options_.max_prefill_tokens;
    o.scheduler.max_running = options_.max_running;
    o.scheduler.max_context_tokens = w.model->decoder().context_tokens;
    o.scheduler.prefix_cache = options_.prefix_cache;
    o.roles = w.roles;
    o.submit_credits = 256;
    o.host = "here";
    o.pid = index;
    o.seed = index;
    w.transport = MakeTransport(w);
    std::span<std::byte> pool = Must(w.transport->AllocatePool(o.pool.total_bytes));
    CpuRunnerOptions runner;
    runner.max_step_tokens = options_.max_step_tokens;
    runner.waker = w.mailbox.get();
    runner.observe_logits = [this](SequenceId, const Request& request, uint32_t position, std::span<const float> row) {
      const uint64_t prompt = Hash64(std::as_bytes(std::span(request.prompt)));
      const uint64_t digest = Hash64(std::as_bytes(row));
      std::lock_guard lock(logits_mutex_);
      const auto [it, fresh] = logits_.try_emplace({prompt, position}, digest);
      if (!fresh && it->second != digest) it->second = 0;
    };
    w.runner = Must(CpuModelRunner::Create(*w.model, *w.device, o.layout, o.pool, pool, runner));
    o.numeric = w.runner->numeric_identity();
    w.core = std::make_unique<EngineCore>(o, w.runner.get(), w.transport.get());
    w.thread = std::make_unique<EngineThread>(w.core.get(), w.mailbox.get(), &clock_,
                                              [this, index](Outbox&& out) { Carry(index, std::move(out)); });
  }

  std::unique_ptr<KvTransport> MakeTransport(Worker& w) {
    if (options_.transport == "local" || options_.transport == "fake") {
      auto local = std::make_unique<LocalTransport>(fabric_, LocalOptions{.self = w.self.process}, w.mailbox.get());
      if (options_.transport == "local") return local;
      return std::make_unique<FakeTransport>(std::move(local), FaultPolicy(7, options_.faults), w.mailbox.get());
    }
    UcxOptions ucx;
    ucx.self = w.self.process;
    ucx.tls = options_.transport == "ucx-shm" ? "shm" : "tcp";
    return Must(UcxTransport::Create(ucx, w.mailbox.get()));
  }

  void Push(size_t worker, EngineCommand command) {
    BATON_CHECK(workers_[worker]->mailbox->PushControl(std::move(command)), "a test's mailbox overflows");
  }
  void PushFront(FrontInput input) { BATON_CHECK(front_inbox_.PushControl(std::move(input)), "overflow"); }

  // Engine thread of `index`.
  void Carry(size_t index, Outbox&& out) {
    for (const Dial& dial : out.dial) {
      for (size_t peer = 0; peer < workers_.size(); ++peer) {
        if (workers_[peer]->self.address != dial.peer.address) continue;
        const LinkId theirs{kTop | next_link_++};
        {
          std::lock_guard lock(links_mutex_);
          links_[{index, dial.link}] = {peer, theirs};
          links_[{peer, theirs}] = {index, dial.link};
        }
        Push(peer, LinkUp{theirs, LinkKind::kPairReader});
        Push(index, LinkUp{dial.link, LinkKind::kPairWriter});
      }
    }
    for (auto& [link, message] : out.to_peers) {
      if (const auto end = Other(index, link)) Push(end->first, FromPeer{end->second, std::move(message)});
    }
    for (auto& [link, message] : out.to_fronts) {
      if (auto* hello = std::get_if<WorkerHello>(&message)) {
        PushFront(WorkerUp{link, std::move(*hello)});
      } else {
        PushFront(FromWorker{link, std::move(std::get<WorkerBatch>(message))});
      }
    }
    for (const WatchProcess& watch : out.watch) Push(index, ProcessWatched{watch.process, true});
    for (const LinkId link : out.close) {
      const auto end = Other(index, link);
      if (!end) continue;
      {
        std::lock_guard lock(links_mutex_);
        links_.erase({index, link});
        links_.erase(*end);
      }
      Push(end->first, LinkDown{end->second, UnavailableError("closed")});
      Push(index, LinkDown{link, UnavailableError("closed")});
    }
  }
  std::optional<std::pair<size_t, LinkId>> Other(size_t index, LinkId link) {
    std::lock_guard lock(links_mutex_);
    const auto it = links_.find({index, link});
    if (it == links_.end()) return std::nullopt;
    return it->second;
  }

  void FrontLoop(const std::stop_token& stop) {
    std::vector<FrontInput> inputs;
    while (!stop.stop_requested()) {
      const TimePoint timer = front_->NextTimer();
      const Duration wait = std::clamp<Duration>(timer - clock_.Now(), Duration(0), std::chrono::milliseconds(200));
      front_inbox_.Drain(&inputs, wait);
      inputs.push_back(Tick{});
      for (FrontInput& input : inputs) {
        const bool up = std::holds_alternative<WorkerUp>(input);
        FrontOutput out;
        front_->Handle(std::move(input), clock_.Now(), &out);
        for (auto& [link, command] : out.to_workers) {
          Push(static_cast<size_t>(Raw(link) - kFrontLink), FromFront{link, std::move(command)});
        }
        std::lock_guard lock(mutex_);
        if (up) ++registered_;
        for (auto& [client, event] : out.to_clients) Record(&answers_[Raw(client)], event);
      }
      inputs.clear();
      changed_.notify_all();
    }
  }

  static void Record(Pending* p, const ClientEvent& event) {
    if (const auto* delta = std::get_if<Delta>(&event)) {
      p->answer.text += delta->text;
      p->answer.tokens.insert(p->answer.tokens.end(), delta->token_ids.begin(), delta->token_ids.end());
      p->answer.logprobs.insert(p->answer.logprobs.end(), delta->logprobs.begin(), delta->logprobs.end());
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      p->answer.reason = finished->reason;
    } else if (const auto* done = std::get_if<Done>(&event)) {
      p->answer.timings = done->timings;
      p->answer.usage = done->usage;
      p->over = true;
    } else if (const auto* failed = std::get_if<Failed>(&event)) {
      p->answer.status = failed->status;
      p->over = true;
    }
  }
  void WaitFor(const std::function<bool()>& what) {
    std::unique_lock lock(mutex_);
    const bool in_time = changed_.wait_for(lock, std::chrono::minutes(5), what);
    BATON_CHECK(in_time, "the cluster does not answer");
  }

  const ClusterOptions options_;
  SteadyClock clock_;
  LocalFabric fabric_;
  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<BpeTokenizer> tokenizer_;
  std::unique_ptr<Front> front_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex links_mutex_;
  std::map<std::pair<size_t, LinkId>, std::pair<size_t, LinkId>> links_;
  std::atomic<uint64_t> next_link_{1};
  Mailbox<FrontInput> front_inbox_{65536, 65536};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Pending> answers_;
  size_t registered_ = 0;
  uint64_t next_client_ = 1;
  std::mutex logits_mutex_;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> logits_;
  std::jthread front_thread_;
};

}  // namespace baton::test
