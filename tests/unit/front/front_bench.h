// A Front on a table: tokens are bytes, workers are links that a test speaks for, time moves when told.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "front/front.h"

namespace baton {

// Ids 0..255 are bytes, 256 ends an answer, 257 is another control token.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kEnd = 256, kControl = 257;
  ByteTokenizer() {
    for (int b = 0; b < 256; ++b) bytes_.push_back(std::string(1, static_cast<char>(b)));
    bytes_.push_back("<end>");
    bytes_.push_back("<control>");
  }
  void Encode(const std::vector<TextSpan>& text, bool, std::vector<TokenId>* ids) const override {
    for (const TextSpan& span : text) {
      for (const char c : span.text) ids->push_back(static_cast<uint8_t>(c));
    }
  }
  std::string_view TokenBytes(TokenId id, bool with_special) const override {
    return id >= 256 && !with_special ? std::string_view() : std::string_view(bytes_.at(static_cast<size_t>(id)));
  }
  bool IsSpecial(TokenId id) const override { return id >= 256; }
  uint32_t vocab_size() const override { return 258; }
  const std::vector<TokenId>& eos_ids() const override { return eos_; }

 private:
  std::vector<std::string> bytes_;
  std::vector<TokenId> eos_ = {kEnd};
};

inline KvLayout SmallLayout() {
  KvLayout layout;
  layout.block_tokens = 32;
  layout.groups = {KvGroup{KvKind::kFull, 4, 2, 32, DType::kBF16}};
  return layout;
}

inline WorkerHello HelloOf(const std::string& name, bool prefill, bool decode, uint64_t incarnation = 1) {
  WorkerHello h;
  h.self = {{name, {incarnation, 7 * incarnation}}, name + ".host:9000"};
  h.roles = {prefill, decode};
  h.model = {"tiny", {1, 2}};
  h.layout = SmallLayout();
  h.num_blocks = {64};
  h.numeric = {3, 4};
  h.max_context_tokens = 1024;
  h.submit_credits = 8;
  return h;
}

inline FrontOptions SmallOptions() {
  FrontOptions o;
  o.self = {"router", {5, 6}};
  o.model = {"tiny", {1, 2}};
  o.max_context_tokens = 1024;
  return o;
}

class FrontBench {
 public:
  explicit FrontBench(FrontOptions options = SmallOptions(), const ChatTemplate* chat = nullptr)
      : front(std::move(options), &tokenizer, chat) {}

  void Do(FrontInput input) {
    out.Clear();
    front.Handle(std::move(input), now, &out);
    for (auto& [client, event] : out.to_clients) told.emplace_back(client, event);
    for (auto& [handle, update] : out.to_operators) orders[handle].push_back(update);
  }
  // Time passes, and every timer on the way fires at its time.
  void Pass(Duration d) {
    const TimePoint until = now + d;
    while (front.NextTimer() <= until) {
      now = std::max(now, front.NextTimer());
      FrontOutput all = std::exchange(out, {});
      Do(Tick{});
      out.to_workers.insert(out.to_workers.begin(), all.to_workers.begin(), all.to_workers.end());
      out.to_clients.insert(out.to_clients.begin(), all.to_clients.begin(), all.to_clients.end());
      out.close.insert(out.close.begin(), all.close.begin(), all.close.end());
    }
    now = until;
  }
  LinkId Up(const WorkerHello& hello) {
    const LinkId link{next_link_++};
    roles_[link] = hello.roles;
    Do(WorkerUp{link, hello});
    return link;
  }
  LinkId Up(const std::string& name, bool prefill, bool decode) { return Up(HelloOf(name, prefill, decode)); }
  void Down(LinkId link) { Do(WorkerDown{link, UnavailableError("gone")}); }
  ClientHandle Submit(ClientRequest r) {
    const ClientHandle client{next_client_++};
    Do(ClientSubmit{client, std::move(r)});
    return client;
  }
  ClientHandle Submit(const std::string& text, int64_t max_tokens = 8) {
    ClientRequest r;
    r.prompt = TextPrompt{text};
    r.max_tokens = max_tokens;
    return Submit(std::move(r));
  }
  // A worker says something. Every worker message carries a heartbeat.
  void Say(LinkId link, ChildEvent event) { Do(FromWorker{link, BatchOf(link, {std::move(event)})}); }
  void Beat(LinkId link) { Do(FromWorker{link, BatchOf(link, {})}); }
  void Token(LinkId link, ChildId child, Epoch epoch, uint32_t index, TokenId id,
             FinishReason f = FinishReason::kNone) {
    in_step[link] = {child};
    Say(link, TokenEvent{child, epoch, index, {id, 0, {}}, f});
  }
  WorkerBatch BatchOf(LinkId link, std::vector<ChildEvent> events) {
    WorkerBatch b;
    b.events = std::move(events);
    b.heartbeat.roles = roles_.at(link);
    b.heartbeat.order = confirmed_[link];
    b.heartbeat.draining = draining_[link];
    b.heartbeat.free_blocks = {64};
    b.heartbeat.steps = ++steps_;
    b.heartbeat.once_hit_in_step = in_step[link];
    return b;
  }

  // The worker carries out the orders of the last Do, and says so with its next heartbeats.
  void Obey() {
    for (const auto& [link, command] : out.to_workers) {
      if (const auto* drain = std::get_if<DrainCommand>(&command)) {
        confirmed_[link] = drain->order;
        draining_[link] = !drain->undo;
      } else if (const auto* role = std::get_if<SetRoleCommand>(&command)) {
        confirmed_[link] = role->order;
        roles_[link] = role->roles;
      }
    }
  }
  void Beat(LinkId link, bool idle, uint32_t running) {
    WorkerBatch batch = BatchOf(link, {});
    batch.heartbeat.idle = idle;
    batch.heartbeat.running = running;
    Do(FromWorker{link, std::move(batch)});
  }
  OperatorHandle Drain(const std::string& worker, bool undo = false, bool force = false,
                       Duration wait = std::chrono::seconds(60)) {
    const OperatorHandle handle{next_order_++};
    Do(DrainOrder{handle, worker, worker.empty(), undo, force, wait});
    return handle;
  }
  OperatorHandle SetRole(const std::string& worker, RoleMask roles, bool force = false) {
    const OperatorHandle handle{next_order_++};
    Do(RoleOrder{handle, worker, roles, force, std::chrono::seconds(5)});
    return handle;
  }
  // The order's last update; nothing while it goes on.
  const OrderUpdate* Ended(OperatorHandle handle) {
    const auto& updates = orders[handle];
    return updates.empty() || !updates.back().last ? nullptr : &updates.back();
  }

  // Of the last Do: commands of one kind, with their links.
  template <typename T>
  std::vector<std::pair<LinkId, T>> Sent() const {
    std::vector<std::pair<LinkId, T>> found;
    for (const auto& [link, command] : out.to_workers) {
      if (const T* c = std::get_if<T>(&command)) found.emplace_back(link, *c);
    }
    return found;
  }
  // Of the whole life of a client.
  template <typename T>
  std::vector<T> Told(ClientHandle client) const {
    std::vector<T> found;
    for (const auto& [c, event] : told) {
      const T* e = std::get_if<T>(&event);
      if (c == client && e != nullptr) found.push_back(*e);
    }
    return found;
  }
  std::string TextOf(ClientHandle client) const {
    std::string text;
    for (const Delta& d : Told<Delta>(client)) text += d.text;
    return text;
  }

  ByteTokenizer tokenizer;
  Front front;
  FrontOutput out;
  std::vector<std::pair<ClientHandle, ClientEvent>> told;
  std::map<OperatorHandle, std::vector<OrderUpdate>> orders;
  TimePoint now{std::chrono::seconds(1)};
  // What heartbeats say of launched steps: the child whose token came last, or what a test wants.
  std::map<LinkId, std::vector<ChildId>> in_step;

 private:
  std::map<LinkId, RoleMask> roles_;
  std::map<LinkId, uint64_t> confirmed_;
  std::map<LinkId, bool> draining_;
  uint64_t next_order_ = 1;
  uint64_t next_link_ = 1;
  uint64_t next_client_ = 1;
  uint64_t steps_ = 0;
};

}  // namespace baton
