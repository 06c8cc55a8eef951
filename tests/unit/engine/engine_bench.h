// An EngineCore on a table: the test is its runner, its transport, its front and its peers; time moves when told.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"

namespace baton {

class ScriptedRunner : public ModelRunner {
 public:
  void Launch(StepPlan plan) override { launched.push_back(std::move(plan)); }
  void Convert(KvConversion conversion) override { conversions.push_back(std::move(conversion)); }
  void Poll(std::vector<RunnerEvent>* out) override {
    for (RunnerEvent& e : events) out->push_back(std::move(e));
    events.clear();
  }
  // The oldest step ends; every sample of it gives `token`.
  void Finish(TokenId token) {
    StepResult result;
    result.id = launched.front().id;
    for (const SequenceStep& s : launched.front().sequences) {
      if (s.sample) result.tokens.push_back({s.sequence, s.sample_index, {token, 0, {}}});
    }
    launched.pop_front();
    events.push_back(std::move(result));
  }

  std::deque<StepPlan> launched;
  std::deque<KvConversion> conversions;
  std::vector<RunnerEvent> events;
};

// Endpoints open and tickets fall quiet at once; posts end when the test says so.
class ScriptedTransport : public KvTransport {
 public:
  std::string_view name() const override { return "scripted"; }
  StatusOr<std::span<std::byte>> AllocatePool(size_t) override { return std::span<std::byte>(); }
  std::vector<std::byte> LocalDescriptor() const override { return {}; }
  void Open(const ProcessId& reader, std::span<const std::byte>) override {
    events.push_back(PeerOpened{reader, OkStatus(), TransferMode::kReceiverPosted});
  }
  void Close(const ProcessId& peer) override { events.push_back(Severed{peer}); }
  void Admit(const Ticket& ticket, const ProcessId&, std::vector<uint64_t>, std::vector<uint64_t>) override {
    admitted.push_back(ticket);
  }
  void Retire(const Ticket& ticket) override { events.push_back(Quiet{ticket}); }
  void Post(TransferPost post) override { posts.push_back(std::move(post)); }
  void Poll(std::vector<TransportEvent>* out) override {
    for (TransportEvent& e : events) out->push_back(std::move(e));
    events.clear();
  }
  uint64_t bytes_posted() const {
    uint64_t bytes = 0;
    for (const TransferPost& post : posts) {
      for (const CopyPiece& piece : post.pieces) bytes += piece.bytes;
    }
    return bytes;
  }
  static uint64_t DigestOf(const TransferPost& post) { return 1000 + post.chunk; }
  void QuiesceAll() {
    for (const TransferPost& post : posts) events.push_back(Quiesced{post.op, OkStatus(), DigestOf(post)});
  }

  std::vector<Ticket> admitted;
  std::vector<TransferPost> posts;
  std::vector<TransportEvent> events;
};

struct EngineBench {
  static constexpr uint64_t kFront = 77;
  static constexpr LinkId kFrontLink{uint64_t{1} << 63};
  static constexpr LinkId kWriterLink{(uint64_t{1} << 63) + 1};

  explicit EngineBench(RoleMask roles = {}, uint32_t pool_blocks = 16, SendWindowOptions send = {}) {
    EngineOptions o;
    o.send = send;
    o.self = {{"w", {3, 4}}, "w.host:1"};
    o.model = {"tiny", {1, 2}};
    o.layout.block_tokens = 16;
    o.layout.groups = {KvGroup{KvKind::kFull, 4, 2, 32, DType::kBF16}};
    o.pool = PlanPool(o.layout, uint64_t{pool_blocks} * o.layout.BlockBytes(0) + 4096);
    o.vocab_size = 100;
    o.scheduler.max_context_tokens = 400;
    o.scheduler.watermark_blocks = 0;
    o.roles = roles;
    o.host = "this.host";
    layout = o.layout;
    options = o;
    core = std::make_unique<EngineCore>(o, &runner, &transport);
    Do(LinkUp{kFrontLink, LinkKind::kFront});
    Front(FrontHello{{"front", {1, 1}}, kFront});
  }

  // One turn with this command; what it says is added to the lists below.
  void Do(EngineCommand command) {
    std::vector<EngineCommand> commands;
    commands.push_back(std::move(command));
    Turn(&commands);
  }
  void Front(FrontCommand command) { Do(FromFront{kFrontLink, std::move(command)}); }
  void Turn() {
    std::vector<EngineCommand> none;
    Turn(&none);
  }
  void Turn(std::vector<EngineCommand>* commands) {
    Outbox out;
    core->Step(now, commands, &out);
    core->Audit();
    for (auto& [link, message] : out.to_fronts) {
      if (auto* batch = std::get_if<WorkerBatch>(&message)) {
        heartbeats.push_back(batch->heartbeat);
        for (WorkerReport& report : batch->report) reports.push_back(std::move(report));
        for (ChildEvent& e : batch->events) events.push_back(std::move(e));
      }
    }
    for (auto& [link, message] : out.to_peers) {
      to_peers.push_back(std::move(message));
      to_links.push_back(link);
    }
    stuck.insert(stuck.end(), out.stuck.begin(), out.stuck.end());
    for (Dial& dial : out.dial) dials.push_back(std::move(dial));
    closed.insert(closed.end(), out.close.begin(), out.close.end());
  }
  void Finish(TokenId token) {
    runner.Finish(token);
    Turn();
  }

  RequestPtr Make(uint64_t number, uint32_t prompt_tokens, uint32_t max_tokens, int32_t priority = 0) const {
    Request r;
    r.id = {kFront, number, 0};
    for (uint32_t i = 0; i < prompt_tokens; ++i) r.prompt.push_back(static_cast<TokenId>((number * 31 + i) % 100));
    r.stop.max_tokens = max_tokens;
    r.priority = priority;
    return std::make_shared<const Request>(std::move(r));
  }
  static Progress Fresh(Duration deadline = std::chrono::seconds(60)) { return {{}, 0, deadline}; }

  // ---- this worker writes: the test is the reader "d"
  PeerAddress reader{{"d", {5, 6}}, "d.host:1"};
  LinkId reader_link{};
  void AnswerDial() {
    reader_link = dials.back().link;
    Do(LinkUp{reader_link, LinkKind::kPairWriter});
    const auto hello = Last<PairHello>();
    FromReader(PairHelloAnswer{OkStatus(), reader.process, hello.session, {}, {}});
    Turn();  // the endpoint opened
  }
  void FromReader(PairMessage message) { Do(FromPeer{reader_link, std::move(message)}); }
  Grant GrantFor(const Reserve& reserve, uint32_t hit_blocks) const {
    Grant grant;
    grant.child = reserve.child;
    grant.epoch = reserve.epoch;
    grant.attempt = reserve.attempt;
    grant.ticket = {reader.process.incarnation, 0, 1};
    grant.hit_tokens = hit_blocks * layout.block_tokens;
    grant.blocks.emplace_back();
    grant.base.emplace_back();
    for (uint32_t b = hit_blocks; b < layout.BlocksFor(reserve.num_tokens); ++b) {
      grant.blocks[0].push_back(BlockId{b});
      grant.base[0].push_back(b * layout.BlockBytes(0));
    }
    return grant;
  }

  // ---- this worker reads: the test is the writer "p"
  ProcessId writer{"p", {8, 9}};
  void Greet(const std::string& host = "", uint64_t pid = 0) { Greet(layout, {}, host, pid); }
  void Greet(const KvLayout& of_writer, const Hash128& numeric = {}, const std::string& host = "", uint64_t pid = 0) {
    writer_layout = of_writer;
    Do(LinkUp{kWriterLink, LinkKind::kPairReader});
    PairHello hello;
    hello.writer = writer;
    hello.reader = options.self.process;
    hello.session = 1;
    hello.model = options.model;
    hello.layout = of_writer;
    hello.host = host;
    hello.pid = pid;
    hello.numeric = numeric;
    FromWriter(hello);
  }
  void FromWriter(PairMessage message) { Do(FromPeer{kWriterLink, std::move(message)}); }
  Reserve ReserveFor(RequestPtr request, Epoch epoch) const {
    Reserve r;
    r.child = request->id;
    r.epoch = epoch;
    r.num_tokens = static_cast<uint32_t>(request->prompt.size());
    r.progress = Fresh();
    r.mode = TransferMode::kReceiverPosted;
    r.request = std::move(request);
    return r;
  }
  // Every chunk arrives, then COMMIT with the answer's first token.
  void Fill(const Grant& grant, TokenId first_token) {
    uint32_t num_tokens = grant.hit_tokens;
    for (size_t b = 0; b < grant.blocks[0].size(); ++b) num_tokens += layout.block_tokens;
    Fill(grant, num_tokens, first_token);
  }
  void Fill(const Grant& grant, uint32_t num_tokens, TokenId first_token, uint64_t damage = 0) {
    const ChunkGrid grid(writer_layout, {NumMovingBlocks(writer_layout, grant.hit_tokens, num_tokens)});
    Commit commit;
    commit.child = grant.child;
    commit.epoch = grant.epoch;
    commit.ticket = grant.ticket;
    commit.progress = Fresh();
    commit.progress.tokens = {{first_token, 0, {}}};
    for (ChunkIndex i = 0; i < grid.size(); ++i) {
      transport.events.push_back(ChunkArrived{writer, grant.ticket, i, 1, 50 + i});
      commit.digests.push_back({i, 50 + i + damage});
    }
    commit.token_count = num_tokens;
    Turn();
    FromWriter(commit);
  }

  template <typename T>
  std::vector<T> Told() const {
    std::vector<T> out;
    for (const ChildEvent& e : events) {
      if (const auto* x = std::get_if<T>(&e)) out.push_back(*x);
    }
    return out;
  }
  template <typename T>
  std::vector<T> Sent() const {
    std::vector<T> out;
    for (const PairMessage& m : to_peers) {
      if (const auto* x = std::get_if<T>(&m)) out.push_back(*x);
    }
    return out;
  }
  template <typename T>
  T Last() const {
    return Sent<T>().back();
  }
  uint32_t free_blocks() const { return core->pool().counts(0).available(); }

  TimePoint now{std::chrono::seconds(1)};
  void Convert(Status status = {}) {
    runner.events.push_back(KvConverted{runner.conversions.front().op, std::move(status)});
    runner.conversions.pop_front();
    Turn();
  }

  KvLayout layout, writer_layout;
  EngineOptions options;
  ScriptedRunner runner;
  ScriptedTransport transport;
  std::unique_ptr<EngineCore> core;
  std::vector<ChildEvent> events;
  std::vector<Heartbeat> heartbeats;
  std::vector<WorkerReport> reports;
  std::vector<PairMessage> to_peers;
  std::vector<LinkId> to_links;  // of each of these
  std::vector<Dial> dials;
  std::vector<LinkId> closed;
  std::vector<Quarantine> stuck;
};

}  // namespace baton
