// Random link messages within the protocol's bounds, and equality of any two, from one list of fields per struct.
// FieldCount proves at compile time that each list is complete.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/rng.h"
#include "baton/front_link.h"
#include "baton/pair_link.h"

namespace baton::testing {

// ---- fields -----------------------------------------------------------------------------------------------

struct Anything {
  template <typename T>
  operator T() const;  // only named in unevaluated braces
};
template <typename T, size_t... I>
constexpr bool TakesFields(std::index_sequence<I...>) {
  return requires { T{((void)I, Anything{})...}; };
}
template <typename T, size_t N = 24>
constexpr size_t FieldCount() {
  if constexpr (TakesFields<T>(std::make_index_sequence<N>{}) || N == 0) {
    return N;
  } else {
    return FieldCount<T, N - 1>();
  }
}

#define BATON_FIELDS(Type, ...)                                                      \
  inline auto Fields(Type& x) {                                                      \
    auto fields = [&x] {                                                             \
      (void)x;                                                                       \
      return std::tie(__VA_ARGS__);                                                  \
    }();                                                                             \
    static_assert(std::tuple_size_v<decltype(fields)> == FieldCount<Type>(), #Type); \
    return fields;                                                                   \
  }

BATON_FIELDS(Incarnation, x.counter, x.random)
BATON_FIELDS(ProcessId, x.name, x.incarnation)
BATON_FIELDS(ChildId, x.front, x.number, x.choice)
BATON_FIELDS(Ticket, x.reader, x.slot, x.generation)
BATON_FIELDS(Hash128, x.high, x.low)
BATON_FIELDS(RoleMask, x.prefill, x.decode)
BATON_FIELDS(PeerAddress, x.process, x.address)
BATON_FIELDS(ModelIdentity, x.name, x.weights)
BATON_FIELDS(KvGroup, x.kind, x.num_layers, x.num_kv_heads, x.head_dim, x.dtype)
BATON_FIELDS(KvLayout, x.block_tokens, x.tile, x.groups)
BATON_FIELDS(WorkerHello, x.self, x.roles, x.model, x.layout, x.num_blocks, x.numeric, x.max_context_tokens,
             x.submit_credits, x.draining, x.protocol, x.may)
BATON_FIELDS(TokenLogprob, x.id, x.logprob)
BATON_FIELDS(OutputToken, x.id, x.logprob, x.top)
BATON_FIELDS(TokenEvent, x.child, x.epoch, x.index, x.token, x.finish)
BATON_FIELDS(HandedOff, x.child, x.epoch)
BATON_FIELDS(HandoffFailed, x.child, x.epoch, x.why, x.detail)
BATON_FIELDS(Running, x.child, x.epoch)
BATON_FIELDS(NotHeld, x.child, x.epoch)
BATON_FIELDS(ChildFailed, x.child, x.epoch, x.why)
BATON_FIELDS(Receipt, x.queue, x.prefill, x.reserve, x.transfer, x.exposed, x.transfer_bytes, x.transfer_blocks,
             x.hidden_bytes, x.prompt_tokens, x.cached_tokens, x.preemptions)
BATON_FIELDS(ReceiptEvent, x.child, x.epoch, x.receipt)
BATON_FIELDS(Quarantine, x.writer, x.pid, x.blocks, x.age, x.stuck)
BATON_FIELDS(Heartbeat, x.steps, x.step_overdue_in, x.draining, x.idle, x.roles, x.order, x.waiting, x.running,
             x.queued_tokens, x.context_tokens, x.queued_work, x.free_blocks, x.quarantined_blocks, x.quarantines,
             x.once_hit_in_step, x.cost)
BATON_FIELDS(CacheEvents, x.sequence, x.snapshot, x.stored, x.removed)
BATON_FIELDS(Metric, x.name, x.value)
BATON_FIELDS(BlockReport, x.free, x.owned, x.cached, x.quarantined)
BATON_FIELDS(PeerReport, x.name, x.incarnation, x.up, x.writes_here, x.mode, x.lane, x.hand_offs, x.quarantined_blocks,
             x.oldest_quarantine, x.bytes, x.transfer_time, x.bytes_per_second, x.in_flight_bytes, x.queued_bytes,
             x.credit_bytes, x.credit_tickets, x.states)
BATON_FIELDS(WorkerReport, x.uptime, x.transport, x.blocks, x.tickets, x.sends, x.peers, x.metrics)
BATON_FIELDS(WorkerBatch, x.events, x.heartbeat, x.cache, x.report)
BATON_FIELDS(SamplingParams, x.temperature, x.top_k, x.top_p, x.seed, x.logit_bias, x.logprobs)
BATON_FIELDS(StopRules, x.max_tokens, x.min_tokens, x.ignore_eos, x.stop_token_ids, x.eos_token_ids)
BATON_FIELDS(Request, x.id, x.prompt, x.sampling, x.stop, x.priority, x.cache_salt)
BATON_FIELDS(Progress, x.tokens, x.delivered, x.deadline_remaining, x.once_hit)
BATON_FIELDS(FrontHello, x.front, x.fingerprint)
BATON_FIELDS(PrefillCommand, x.request, x.progress, x.epoch, x.decode)
BATON_FIELDS(DecodeCommand, x.request, x.progress, x.epoch)
BATON_FIELDS(CancelCommand, x.child, x.epoch)
BATON_FIELDS(AdoptCommand, x.child, x.epoch, x.once_hit)
BATON_FIELDS(MigrateCommand, x.child, x.epoch, x.next, x.delivered, x.to)
BATON_FIELDS(DrainCommand, x.order, x.undo)
BATON_FIELDS(SetRoleCommand, x.order, x.roles)
inline std::tuple<> Fields(CacheResyncCommand&) { return {}; }
BATON_FIELDS(PairHello, x.protocol, x.writer, x.reader, x.session, x.model, x.layout, x.numeric, x.host, x.pid)
BATON_FIELDS(Reserve, x.child, x.epoch, x.attempt, x.request, x.progress, x.page_hashes, x.num_tokens, x.mode,
             x.migration)
BATON_FIELDS(Extend, x.child, x.epoch, x.ticket, x.extension, x.num_tokens)
BATON_FIELDS(ChunkDigest, x.chunk, x.digest)
BATON_FIELDS(Commit, x.child, x.epoch, x.ticket, x.attempt, x.progress, x.token_count, x.digests)
BATON_FIELDS(Drained, x.ticket, x.severed)
BATON_FIELDS(PairHeartbeat, x.alive)
BATON_FIELDS(PairHelloAnswer, x.status, x.reader, x.session, x.descriptor, x.open_tickets)
BATON_FIELDS(Grant, x.child, x.epoch, x.attempt, x.ticket, x.hit_tokens, x.blocks, x.base, x.staging_block_bytes,
             x.extension)
BATON_FIELDS(Busy, x.child, x.epoch, x.attempt, x.retry_after)
BATON_FIELDS(Refused, x.child, x.epoch, x.attempt, x.why, x.detail)
BATON_FIELDS(CommitAnswer, x.child, x.epoch, x.ticket, x.attempt, x.verdict, x.missing)
BATON_FIELDS(AbortTicket, x.ticket)
BATON_FIELDS(DrainedAck, x.ticket)

template <typename T>
concept HasFields = requires(T& x) {
  Fields(x);
};

// ---- equality ---------------------------------------------------------------------------------------------

template <typename T>
bool Same(const T& a, const T& b);
template <typename... T>
bool Same(const std::variant<T...>& a, const std::variant<T...>& b);
template <typename T>
bool Same(const std::vector<T>& a, const std::vector<T>& b);
inline bool Same(const RequestPtr& a, const RequestPtr& b);

template <typename T>
bool Same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!Same(a[i], b[i])) return false;
  }
  return true;
}
inline bool Same(const RequestPtr& a, const RequestPtr& b) { return Same(*a, *b); }
template <typename... T>
bool Same(const std::variant<T...>& a, const std::variant<T...>& b) {
  if (a.index() != b.index()) return false;
  return std::visit([&b](const auto& x) { return Same(x, std::get<std::decay_t<decltype(x)>>(b)); }, a);
}
template <typename T>
bool Same(const T& a, const T& b) {
  if constexpr (HasFields<T>) {
    return [&]<size_t... I>(std::index_sequence<I...>, [[maybe_unused]] auto x, [[maybe_unused]] auto y) {
      return (Same(std::get<I>(x), std::get<I>(y)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(Fields(const_cast<T&>(a)))>>{}, Fields(const_cast<T&>(a)),
     Fields(const_cast<T&>(b)));
  } else {
    return a == b;
  }
}

// ---- random values ----------------------------------------------------------------------------------------

// Fills values from a seed. Numbers are often 0, often extreme. What the protocol bounds is then put right by
// Mend, so that every filled message is a legal one.
class Filler {
 public:
  explicit Filler(uint64_t seed) : rng_(seed) {}

  template <typename V>
  V Message() {
    V out;
    Fill(out);
    return out;
  }

 private:
  template <typename T>
  void Fill(T& x) {
    if constexpr (HasFields<T>) {
      std::apply([this](auto&... field) { (Fill(field), ...); }, Fields(x));
      Mend(x);
    } else if constexpr (std::is_same_v<T, bool>) {
      x = rng_.Chance(0.5);
    } else if constexpr (std::is_integral_v<T>) {
      x = static_cast<T>(Number());
    } else if constexpr (std::is_floating_point_v<T>) {
      x = static_cast<T>((rng_.Unit() - 0.5) * (rng_.Chance(0.2) ? 1e30 : 10));
    } else {
      x = static_cast<T>(Number());  // BlockId, std::byte
    }
  }
  uint64_t Number() {
    const uint64_t kind = rng_.Below(4);
    if (kind == 0) return 0;
    if (kind == 1) return ~uint64_t{0} >> rng_.Below(64);
    if (kind == 2) return rng_.Below(1000);
    return rng_.Next();
  }
  void Fill(std::string& s) {
    s.resize(rng_.Below(20));
    for (char& c : s) c = static_cast<char>(rng_.Next());
  }
  void Fill(Duration& d) { d = Duration(static_cast<int64_t>(Number() >> 1)); }
  void Fill(Status& s) {
    const auto code = static_cast<Code>(rng_.Below(17));
    std::string message;
    Fill(message);
    s = Status(code, std::move(message));
  }
  void Fill(DType& d) {
    const uint64_t n = rng_.Below(4);
    d = n == 3 ? DType::kI8 : static_cast<DType>(n);
  }
  void Fill(KvKind& k) { k = KvKind::kFull; }
  void Fill(TileForm& t) { t = static_cast<TileForm>(rng_.Below(2)); }
  void Fill(FinishReason& r) { r = static_cast<FinishReason>(rng_.Below(3)); }
  void Fill(HandoffFailure& f) { f = static_cast<HandoffFailure>(rng_.Below(6)); }
  void Fill(TransferMode& m) { m = static_cast<TransferMode>(rng_.Below(3)); }
  void Fill(RefuseReason& r) { r = static_cast<RefuseReason>(rng_.Below(5)); }
  void Fill(CommitVerdict& v) { v = static_cast<CommitVerdict>(rng_.Below(4)); }
  void Fill(RequestPtr& r) {
    auto request = std::make_shared<Request>();
    Fill(*request);
    r = std::move(request);
  }
  template <typename A, typename B>
  void Fill(std::pair<A, B>& p) {
    Fill(p.first);
    Fill(p.second);
  }
  template <typename T>
  void Fill(std::vector<T>& v) {
    v.resize(rng_.Below(6));
    for (T& x : v) Fill(x);
  }
  template <typename... T>
  void Fill(std::variant<T...>& v) {
    const uint64_t which = rng_.Below(sizeof...(T));
    uint64_t i = 0;
    ((i++ == which ? Fill(v.template emplace<T>()) : void()), ...);
  }

  template <typename T>
  void Mend(T&) {}
  void MendToken(TokenId& id) { id &= 0x7fffffff; }
  void Mend(ProcessId& p) {
    if (p.name.empty()) p.name = "worker";
    for (char& c : p.name) c = static_cast<char>('!' + static_cast<unsigned char>(c) % 94);
  }
  void Mend(PeerAddress& p) {
    for (char& c : p.address) c = static_cast<char>('!' + static_cast<unsigned char>(c) % 94);
  }
  void Mend(TokenLogprob& t) { MendToken(t.id); }
  void Mend(OutputToken& t) { MendToken(t.id); }
  void Mend(KvGroup& g) {
    g.num_layers = 1 + g.num_layers % 65536;
    g.num_kv_heads = 1 + g.num_kv_heads % 65536;
    g.head_dim = 2 + 2 * (g.head_dim % 32768) - (g.head_dim % 32768 == 32767 ? 2 : 0);
  }
  void Mend(KvLayout& l) {
    l.block_tokens = kPageTokens * (1 + l.block_tokens % 256);
    if (l.groups.empty()) Fill(l.groups.emplace_back());
  }
  void Mend(WorkerHello& h) {
    h.num_blocks.resize(h.layout.groups.size());
    h.may = {};  // the receiver's own
  }
  void Mend(SetRoleCommand& c) { c.roles.prefill |= !c.roles.decode; }
  static void MendWord(std::string& word) {
    for (char& c : word) c = static_cast<char>('!' + static_cast<unsigned char>(c) % 94);
  }
  void Mend(Metric& m) { MendWord(m.name); }
  void Mend(PeerReport& p) {
    MendWord(p.name);
    MendWord(p.lane);
  }
  void Mend(WorkerReport& r) { MendWord(r.transport); }
  void Mend(WorkerBatch& b) { b.report.resize(std::min<size_t>(b.report.size(), 1)); }
  void Mend(ChildFailed& f) {
    if (f.why.ok()) f.why = InternalError(f.why.message());
  }
  void Mend(SamplingParams& s) {
    s.temperature = static_cast<float>(100 * rng_.Unit());
    s.top_p = static_cast<float>(1 - 0.999 * rng_.Unit());
    s.logprobs = static_cast<int32_t>(rng_.Below(22)) - 1;
    TokenId next = 0;
    for (auto& [id, bias] : s.logit_bias) id = next += 1 + static_cast<TokenId>(rng_.Below(1000));
  }
  void Mend(StopRules& s) {
    s.max_tokens = 1 + s.max_tokens % (1 << 20);
    for (TokenId& id : s.stop_token_ids) MendToken(id);
    for (TokenId& id : s.eos_token_ids) MendToken(id);
  }
  void Mend(Request& r) {
    if (r.prompt.empty()) r.prompt.push_back(0);
    for (TokenId& id : r.prompt) MendToken(id);
  }
  void Mend(Progress& p) {
    p.delivered = static_cast<uint32_t>(rng_.Below(p.tokens.size() + 1));
    if (rng_.Chance(0.2)) p.deadline_remaining = -p.deadline_remaining;
  }
  void Mend(PrefillCommand& c) { c.epoch |= 1; }
  void Mend(DecodeCommand& c) { c.epoch |= 1; }
  void Mend(MigrateCommand& c) {
    c.epoch = 1 + c.epoch % (1 << 30);
    c.next = c.epoch + 1 + c.next % (1 << 30);
  }
  void Mend(Extend& e) {
    e.extension |= 1;
    e.num_tokens %= 1 << 20;
  }
  void Mend(Reserve& r) {
    const size_t tokens = r.request->prompt.size() + r.progress.tokens.size();
    r.num_tokens = 1 + r.num_tokens % tokens;
    r.page_hashes.resize(std::min(r.page_hashes.size(), tokens / kPageTokens));
  }
  void Mend(Commit& c) { c.token_count %= 1 << 20; }
  void Mend(Grant& g) {
    g.base.resize(g.blocks.size());
    for (size_t i = 0; i < g.base.size(); ++i) g.base[i].resize(g.blocks[i].size());
    if (g.staged()) g.staging_block_bytes.resize(g.blocks.size());
  }

  Rng rng_;
};

}  // namespace baton::testing
