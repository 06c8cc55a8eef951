#include "route/router.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/rng.h"
#include "baton/check.h"
#include "route/holder_index.h"
#include "route/worker_view.h"

namespace baton {
namespace {

constexpr size_t kBest = 8;  // candidates of each side that are paired
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Duration kRetrySoon = std::chrono::milliseconds(200);
constexpr Duration kRetryLater = std::chrono::seconds(1);

// A worker and what choosing it would cost in seconds.
struct Candidate {
  uint32_t slot = 0;
  double seconds = kInfinity;
};
// Equal candidates do not all go to the lowest slot: `draw` orders them anew for every decision.
struct Better {
  uint64_t draw;
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.seconds != b.seconds) return a.seconds < b.seconds;
    const uint64_t at = Mix64(draw ^ a.slot), bt = Mix64(draw ^ b.slot);
    return at != bt ? at < bt : a.slot < b.slot;
  }
};
// The best kBest, best first.
class Shortlist {
 public:
  void Offer(const Candidate& c, const Better& better) {
    if (size_ < kBest || c.seconds <= best_[kBest - 1].seconds) Insert(c, better);  // seldom
  }
  std::span<const Candidate> all() const { return {best_.data(), size_}; }
  void clear() { size_ = 0; }

 private:
  void Insert(const Candidate& c, const Better& better) {
    size_t at = size_;
    if (size_ < kBest) {
      ++size_;
    } else if (!better(c, best_[--at])) {
      return;
    }
    for (; at > 0 && better(c, best_[at - 1]); --at) best_[at] = best_[at - 1];
    best_[at] = c;
  }

  std::array<Candidate, kBest> best_;
  size_t size_ = 0;
};

}  // namespace

struct Router::State {
  explicit State(RouterOptions o) : options(o), rng(o.seed) {}

  RouterOptions options;
  Rng rng;
  std::vector<std::optional<WorkerView>> workers;  // by slot
  std::vector<LoadLine> lines;                     // by slot: workers[slot]->Line(), always
  std::vector<uint32_t> free_slots;
  std::vector<CompatibilityClass> classes;  // who may pair with whom; grows only
  std::map<WorkerId, uint32_t> slot_of;
  uint64_t next_id = 1;
  HolderIndex holders;
  struct Entry {
    Placement placement;
    uint64_t expected = 0;      // its number at P or at the local worker
    LedgerShare decode_share;   // counted at D of a pair
    bool prefill_open = false;  // the credit is out
    bool decode_open = false;
  };
  std::map<std::pair<ChildId, Epoch>, Entry> ledger;
  void Close(Entry* e);

  // Scratch of Place.
  std::vector<uint32_t> depth;  // [slot] leading pages held
  std::vector<HolderIndex::Slot> touched;

  const WorkerView* Find(WorkerId id) const {
    const auto it = slot_of.find(id);
    return it == slot_of.end() ? nullptr : &*workers[it->second];
  }
  // change(WorkerView&), if it is still here.
  template <typename Fn>
  void Change(WorkerId id, Fn change) {
    const auto it = slot_of.find(id);
    if (it == slot_of.end()) return;
    change(*workers[it->second]);
    lines[it->second] = workers[it->second]->Line();
  }
  uint32_t ClassOf(const WorkerHello& hello);
  void MatchPrefixes(const PlaceQuery& query);
  bool NamedAway(uint32_t slot, const std::string& asked) const {
    return !asked.empty() && workers[slot]->hello.self.process.name != asked;
  }
  // The chain counts full pages of the whole prompt; at least one token is always computed.
  uint32_t Cached(uint32_t slot, const PlaceQuery& q) const {
    return std::min(depth[slot] * kPageTokens, q.prompt_tokens - 1);
  }
  uint32_t ExpectedAnswer(const PlaceQuery& q) const {
    return std::max<uint32_t>(1, std::min(q.answer_tokens, options.expected_answer_tokens));
  }
  // What one look at every worker gives.
  struct Scan {
    bool anyone_holds = false;  // some worker, fit or not, could hold the request
    bool no_credit = false;     // someone was passed over for its credits alone
    Duration soonest = kRetryLater;
    std::vector<Shortlist> writers, readers;  // [class]
    Candidate local;
  };
  void ScanWorkers(const PlaceQuery& q, TimePoint now, const Better& better);
  struct Choice {
    double score = kInfinity;
    Placement placement;
  };
  Choice BestPair(const PlaceQuery& q, const Better& better);
  Choice BestLocal(const PlaceQuery& q, TimePoint now);
  Refusal RefuseAsked(const PlaceQuery& q) const;
  Scan scan;  // scratch of Place
};

Router::Router(RouterOptions options) : state_(std::make_unique<State>(options)) {}
Router::~Router() = default;

// ---- membership and facts -----------------------------------------------------------------------

uint32_t Router::State::ClassOf(const WorkerHello& hello) {
  CompatibilityClass c{hello.model.weights, hello.numeric, hello.layout, {}};
  const auto it =
      std::find_if(classes.begin(), classes.end(), [&](const CompatibilityClass& o) { return c.IsAlike(o); });
  if (it != classes.end()) return static_cast<uint32_t>(it - classes.begin());
  const auto number = static_cast<uint32_t>(classes.size());
  classes.push_back(std::move(c));
  for (uint32_t other = 0; other <= number; ++other) {
    if (!classes[other].MayHandOffTo(classes[number])) continue;  // symmetric
    classes[other].readers.push_back(number);
    if (other != number) classes[number].readers.push_back(other);
  }
  return number;
}

WorkerId Router::AddWorker(const WorkerHello& hello, TimePoint now) {
  State& s = *state_;
  uint32_t slot;
  if (s.free_slots.empty()) {
    slot = static_cast<uint32_t>(s.workers.size());
    s.workers.emplace_back();
    s.lines.emplace_back();
  } else {
    slot = s.free_slots.back();
    s.free_slots.pop_back();
  }
  const WorkerId id{s.next_id++};
  s.workers[slot].emplace(id, hello, s.ClassOf(hello), s.options.cost_prior, now);
  s.lines[slot] = s.workers[slot]->Line();
  s.slot_of.emplace(id, slot);
  return id;
}

void Router::RemoveWorker(WorkerId id) {
  State& s = *state_;
  const auto it = s.slot_of.find(id);
  if (it == s.slot_of.end()) return;
  const uint32_t slot = it->second;
  s.holders.DropHolder(slot);
  s.workers[slot].reset();
  s.lines[slot] = {};
  s.free_slots.push_back(slot);
  s.slot_of.erase(it);
}

void Router::OnHeartbeat(WorkerId id, const Heartbeat& heartbeat, TimePoint now) {
  state_->Change(id, [&](WorkerView& w) { w.OnHeartbeat(heartbeat, now, state_->options.confirm_after); });
}

void Router::OnReport(WorkerId id, const WorkerReport& report, TimePoint now) {
  const auto it = state_->slot_of.find(id);
  if (it == state_->slot_of.end()) return;
  state_->workers[it->second]->report = report;
  state_->workers[it->second]->reported = now;
}

void Router::OnOrder(WorkerId id, uint64_t order, const Admission& admission) {
  state_->Change(id, [&](WorkerView& w) {
    w.order = order;
    w.roles = admission.roles;
    w.draining = admission.draining;
  });
}

bool Router::OnCacheEvents(WorkerId id, const CacheEvents& events) {
  State& s = *state_;
  const auto it = s.slot_of.find(id);
  if (it == s.slot_of.end() || events.sequence == 0) return true;
  const uint32_t slot = it->second;
  WorkerView* w = &*s.workers[slot];  // nothing that its line holds changes
  if (events.snapshot) {
    s.holders.DropHolder(slot);
    w->cache_known = true;
    w->resync_asked = false;
  } else if (w->resync_asked) {
    return true;
  } else if (!w->cache_known || events.sequence != w->cache_sequence + 1) {
    s.holders.DropHolder(slot);
    w->cache_known = false;
    w->resync_asked = true;
    return false;
  }
  w->cache_sequence = events.sequence;
  for (const Hash128& page : events.removed) s.holders.Remove(page, slot);
  // A worker cannot hold more than its pool, whatever it says: the index stays as small as the cluster is.
  const uint64_t most = uint64_t{w->num_blocks} * w->block_tokens / kPageTokens;
  for (const Hash128& page : events.stored) {
    if (s.holders.pages_of(slot) < most) s.holders.Add(page, slot);
  }
  return true;
}

// ---- decisions ----------------------------------------------------------------------------------

void Router::State::MatchPrefixes(const PlaceQuery& query) {
  for (const HolderIndex::Slot slot : touched) depth[slot] = 0;
  touched.clear();
  depth.resize(std::max(depth.size(), lines.size()), 0);
  if (query.pages == nullptr) return;
  // A page's hash covers the numeric identity, so each chain finds only workers of its own kind.
  for (const auto& [numeric, chain] : *query.pages) holders.Match(chain, &depth, &touched);
}

void Router::State::ScanWorkers(const PlaceQuery& q, TimePoint now, const Better& better) {
  scan.writers.resize(classes.size());
  scan.readers.resize(classes.size());
  for (Shortlist& s : scan.writers) s.clear();
  for (Shortlist& s : scan.readers) s.clear();
  const bool pairs = q.hint != PlacementHint::kColocated, locals = q.hint != PlacementHint::kDisaggregated;
  const bool picky = q.excluded != nullptr || !q.prefill_worker.empty() || !q.decode_worker.empty();
  const uint32_t prompt = q.prompt_tokens, expected = ExpectedAnswer(q);
  const uint64_t all_tokens = uint64_t{prompt} + expected;
  bool anyone_holds = false, no_credit = false;
  Duration soonest = kRetryLater;
  Candidate local;
  uint32_t work_cached = 0;  // neighbours mostly hold equally much
  PrefillWork work(prompt, work_cached);
  for (uint32_t slot = 0; slot < lines.size(); ++slot) {
    const LoadLine& w = lines[slot];
    const bool holds = w.Holds(prompt, q.answer_tokens);
    anyone_holds |= holds;
    bool writer = pairs && w.has_peers && w.prefills && w.Holds(prompt, 1), decodes = w.decodes && holds;
    if (picky) {
      const bool out = q.excluded != nullptr && q.excluded->contains(w.id);
      writer = writer && !out && !NamedAway(slot, q.prefill_worker);
      decodes = decodes && !out && !NamedAway(slot, q.decode_worker);
    }
    if (!writer && !decodes) continue;
    const uint32_t cached = Cached(slot, q);
    if (cached != work_cached) work = PrefillWork(prompt - cached, work_cached = cached);
    const double queued = w.QueuedSeconds(now), prefill = w.PrefillSeconds(work);
    if (!w.has_credit && (writer || locals)) {
      no_credit = true;
      soonest = std::min(soonest, std::max(kRetrySoon, FromSeconds(queued)));
    }
    if (writer && w.has_credit) scan.writers[w.compatibility].Offer({slot, queued + prefill}, better);
    if (!decodes) continue;
    // Until an answer would be decoded here, once its KV is there: steps, what disturbs them, blocks. While prompts
    // are computed here, an answer advances at most once a chunk.
    const double step = w.StepSeconds(prompt + expected / 2);
    const double decode = expected * step + queued + w.WaitForBlocks(all_tokens, options.expected_answer_tokens, step);
    if (pairs && w.has_peers && (q.no_handoff_to == nullptr || !q.no_handoff_to->contains(w.id))) {
      scan.readers[w.compatibility].Offer({slot, decode}, better);
    }
    // A prompt computed here holds up every answer that runs here.
    const Candidate here{slot, decode + prefill + 0.1 * w.answers * prefill};
    if (locals && w.has_credit && better(here, local)) local = here;
  }
  scan.anyone_holds = anyone_holds;
  scan.no_credit = no_credit;
  scan.soonest = soonest;
  scan.local = local;
}

Router::State::Choice Router::State::BestPair(const PlaceQuery& q, const Better& better) {
  Choice best;
  Candidate best_p, best_d;
  for (size_t cls = 0; cls < classes.size(); ++cls) {
    const std::span<const Candidate> writers = scan.writers[cls].all();
    std::array<double, kBest> prefill;
    for (size_t i = 0; i < writers.size(); ++i) {
      const uint32_t cached = Cached(writers[i].slot, q);
      prefill[i] = lines[writers[i].slot].PrefillSeconds(PrefillWork(q.prompt_tokens - cached, cached));
    }
    for (const uint32_t reads : classes[cls].readers) {
      for (const Candidate& d : scan.readers[reads].all()) {
        // Chunks go out layer by layer while later layers compute: only the last layer's share is never hidden.
        const LoadLine& reader = lines[d.slot];
        // What it computed itself is no hit for what others computed with another rounding.
        const uint32_t held = classes[cls].numeric == classes[reads].numeric ? Cached(d.slot, q) : 0;
        const auto tokens = static_cast<double>(q.prompt_tokens - held);
        const double last_layer = 1.0 / reader.layers;
        // Nothing hides a conversion: it begins with the last byte.
        const double convert = reads == cls ? 0 : tokens * reader.bytes_per_token / options.convert_bytes_per_second;
        for (size_t i = 0; i < writers.size(); ++i) {
          const Candidate& p = writers[i];
          if (d.slot == p.slot) continue;  // no hand-off to oneself (L10)
          const double on_wire = tokens * lines[p.slot].bytes_per_token / options.link_bytes_per_second;
          const double exposed = options.link_latency_seconds +
                                 std::max(on_wire - prefill[i] * (1 - last_layer), on_wire * last_layer) + convert;
          const double score = p.seconds + exposed + d.seconds;
          if (score > best.score) continue;
          if (score == best.score && !(better(p, best_p) || (p.slot == best_p.slot && better(d, best_d)))) continue;
          best_p = p;
          best_d = d;
          best.score = score;
          best.placement.exposed_seconds = exposed;
          best.placement.cached_tokens = Cached(p.slot, q);
        }
      }
    }
  }
  if (best.score == kInfinity) return best;
  Placement& out = best.placement;
  out.mode = Placement::Mode::kDisaggregated;
  out.prefill = lines[best_p.slot].id;
  out.decode = lines[best_d.slot].id;
  out.ttft_seconds = best_p.seconds;
  out.step_seconds = lines[best_d.slot].StepSeconds(q.prompt_tokens + ExpectedAnswer(q) / 2);
  return best;
}

Router::State::Choice Router::State::BestLocal(const PlaceQuery& q, TimePoint now) {
  Choice best;
  best.score = scan.local.seconds;
  if (best.score == kInfinity) return best;
  const LoadLine& w = lines[scan.local.slot];
  const uint32_t cached = Cached(scan.local.slot, q);
  Placement& out = best.placement;
  out.mode = Placement::Mode::kLocal;
  out.decode = w.id;
  out.ttft_seconds = w.QueuedSeconds(now) + w.PrefillSeconds(PrefillWork(q.prompt_tokens - cached, cached));
  out.cached_tokens = cached;
  out.step_seconds = w.StepSeconds(q.prompt_tokens + ExpectedAnswer(q) / 2);
  return best;
}

// A hint or names that the connected workers cannot meet. Where only unified workers are, fewer than two of a kind, no
// pair is to be expected; a dedicated worker tells of a partner that may come back, and so may a named one.
Refusal Router::State::RefuseAsked(const PlaceQuery& q) const {
  uint32_t prefill_only = 0, decode_only = 0, unified = 0;
  std::vector<uint32_t> partners(classes.size(), 0);
  uint32_t most_alike = 0;
  for (const auto& w : workers) {
    if (!w) continue;
    ++(w->roles.prefill && w->roles.decode ? unified : w->roles.prefill ? prefill_only : decode_only);
    for (const uint32_t cls : classes[w->compatibility].readers) most_alike = std::max(most_alike, ++partners[cls]);
  }
  const std::string connected = std::to_string(prefill_only) + " prefill, " + std::to_string(decode_only) +
                                " decode and " + std::to_string(unified) + " unified connected";
  std::string asked = q.hint == PlacementHint::kDisaggregated ? "placement disaggregated"
                      : q.hint == PlacementHint::kColocated   ? "placement colocated"
                                                              : "placement auto";
  if (!q.prefill_worker.empty()) asked += ", prefill_worker \"" + q.prefill_worker + "\"";
  if (!q.decode_worker.empty()) asked += ", decode_worker \"" + q.decode_worker + "\"";
  if (q.hint != PlacementHint::kDisaggregated) {
    return {Refusal::Why::kNotAllowed,
            UnavailableError(asked + ": no such worker can take the request now (" + connected + ")"), kRetryLater};
  }
  asked +=
      ": needs two workers, one that prefills and another that decodes, of one model and KV formats that convert (" +
      connected + ")";
  if (prefill_only + decode_only == 0 && most_alike < 2) {
    return {Refusal::Why::kNotAllowed,
            FailedPreconditionError(asked + "; start them with `baton up --prefill 1 --decode 1`, or ask for auto"),
            {}};
  }
  return {Refusal::Why::kNotAllowed, UnavailableError(asked + "; no such pair can take the request now"), kRetryLater};
}

Refusal Router::Refuse(const PlaceQuery& query) const {
  const State& s = *state_;
  if (!s.slot_of.empty() && !s.scan.anyone_holds) {
    const uint64_t total = uint64_t{query.prompt_tokens} + query.answer_tokens;
    return {Refusal::Why::kNeverFits,
            InvalidArgumentError("prompt of " + std::to_string(query.prompt_tokens) + " tokens plus max_tokens " +
                                 std::to_string(query.answer_tokens) + " is " + std::to_string(total) +
                                 " tokens: the largest worker here holds " + std::to_string(LargestRequest())),
            {}};
  }
  const bool asked =
      query.hint != PlacementHint::kAuto || !query.prefill_worker.empty() || !query.decode_worker.empty();
  if (asked && !s.slot_of.empty()) {
    Refusal refusal = s.RefuseAsked(query);
    // What can never be met waits for no credit.
    if (!s.scan.no_credit || refusal.status.code() == Code::kFailedPrecondition) return refusal;
  }
  if (s.scan.no_credit) {
    return {Refusal::Why::kNoCredit, ResourceExhaustedError("every fit worker has as much work as it admits"),
            s.scan.soonest};
  }
  return {Refusal::Why::kNoWorker,
          UnavailableError("no live worker admits requests (" + std::to_string(s.slot_of.size()) +
                           " connected): a decode worker is needed"),
          kRetryLater};
}

std::variant<Placement, Refusal> Router::Place(const PlaceQuery& query, TimePoint now) {
  State& s = *state_;
  BATON_CHECK(query.prompt_tokens > 0);
  const Better better{s.rng.Next()};
  s.MatchPrefixes(query);
  s.ScanWorkers(query, now, better);
  if (!s.scan.anyone_holds) return Refuse(query);
  State::Choice pair = s.BestPair(query, better), local = s.BestLocal(query, now);

  const bool has_pair = pair.score < kInfinity, has_local = local.score < kInfinity;
  if (!has_pair && !has_local) return Refuse(query);
  if (!has_pair) {
    local.placement.why = query.hint == PlacementHint::kColocated ? Placement::Why::kAsked : Placement::Why::kNoPrefill;
    return local.placement;
  }
  if (!has_local) {
    pair.placement.why =
        query.hint == PlacementHint::kDisaggregated ? Placement::Why::kAsked : Placement::Why::kPredicted;
    return pair.placement;
  }
  if (query.prompt_tokens - local.placement.cached_tokens <= s.options.local_below_tokens &&
      local.score <= pair.score + Seconds(s.options.local_margin)) {
    local.placement.why = Placement::Why::kShortPrompt;
    return local.placement;
  }
  // A worker that prefills anyway takes prompts on its merits; a dedicated decode worker only when it pays.
  const bool dedicated = !s.Find(local.placement.decode)->roles.prefill;
  const double margin =
      dedicated ? Seconds(s.options.local_margin) + s.options.local_margin_fraction * pair.placement.ttft_seconds : 0;
  return local.score + margin <= pair.score ? local.placement : pair.placement;
}

std::optional<WorkerId> Router::PlaceMigration(const PlaceQuery& query, WorkerId from) const {
  const State& s = *state_;
  const WorkerView* source = s.Find(from);
  if (source == nullptr || source->hello.protocol < kMigrationProtocol) return std::nullopt;
  const uint32_t expected = s.ExpectedAnswer(query);
  std::optional<uint32_t> best;
  double best_seconds = kInfinity;
  for (uint32_t slot = 0; slot < s.lines.size(); ++slot) {
    const LoadLine& w = s.lines[slot];
    const bool fit = w.id != from && w.decodes && w.has_peers && w.compatibility == source->compatibility &&
                     w.Holds(query.prompt_tokens, query.answer_tokens) &&
                     s.workers[slot]->hello.protocol >= kMigrationProtocol &&
                     (query.excluded == nullptr || !query.excluded->contains(w.id));
    // Its blocks and one to grow, now: a migration is not worth a wait.
    if (!fit || w.free_tokens < uint64_t{query.prompt_tokens} + 2 * w.block_tokens) continue;
    const double seconds = expected * w.StepSeconds(query.prompt_tokens + expected / 2);
    if (seconds < best_seconds) best = slot, best_seconds = seconds;
  }
  return best ? std::optional(s.lines[*best].id) : std::nullopt;
}

bool Router::HasCredit() const {
  return std::any_of(state_->lines.begin(), state_->lines.end(),
                     [](const LoadLine& w) { return w.has_credit && (w.prefills || w.decodes); });
}

uint64_t Router::LargestRequest() const {
  uint64_t largest = 0;
  for (const LoadLine& w : state_->lines) largest = std::max(largest, w.capacity);
  return largest;
}

std::vector<Hash128> Router::numerics() const {
  std::set<Hash128> found;
  for (const auto& w : state_->workers) {
    if (w) found.insert(w->hello.numeric);
  }
  return {found.begin(), found.end()};
}

// ---- ledger -------------------------------------------------------------------------------------

void Router::Dispatched(ChildId child, Epoch epoch, const Placement& placement, const PlaceQuery& query,
                        TimePoint now) {
  State& s = *state_;
  State::Entry e;
  e.placement = placement;
  const bool pair = placement.mode == Placement::Mode::kDisaggregated;
  const uint32_t blocks_ahead = s.ExpectedAnswer(query);
  const PrefillWork work(query.prompt_tokens - placement.cached_tokens, placement.cached_tokens);
  const auto share = [&](const WorkerView& w, bool prefills, bool decodes) {
    LedgerShare out;
    if (prefills) out.seconds = w.Line().PrefillSeconds(work);
    out.sequences = decodes ? 1 : 0;
    out.tokens = decodes ? query.prompt_tokens : 0;
    out.blocks = w.BlocksFor(uint64_t{query.prompt_tokens} + (decodes ? blocks_ahead : 0));
    return out;
  };
  s.Change(pair ? placement.prefill : placement.decode, [&](WorkerView& w) {
    e.prefill_open = true;
    ++w.credits_used;
    e.expected = w.Expect(share(w, true, !pair), now);
  });
  if (pair) {
    s.Change(placement.decode, [&](WorkerView& w) {
      e.decode_share = share(w, false, true);
      e.decode_open = true;
      w.Promise(e.decode_share);
    });
  }
  BATON_CHECK(s.ledger.emplace(std::pair(child, epoch), std::move(e)).second, "epoch dispatched twice");
}

void Router::Migrates(ChildId child, Epoch next, WorkerId to, const PlaceQuery& query) {
  State& s = *state_;
  State::Entry e;
  e.placement.mode = Placement::Mode::kDisaggregated;  // nobody's credit, and the load of `to` until it is there
  e.placement.decode = to;
  s.Change(to, [&](WorkerView& w) {
    e.decode_share.sequences = 1;
    e.decode_share.tokens = query.prompt_tokens;
    e.decode_share.blocks = w.BlocksFor(uint64_t{query.prompt_tokens} + s.ExpectedAnswer(query));
    e.decode_open = true;
    w.Promise(e.decode_share);
  });
  BATON_CHECK(s.ledger.emplace(std::pair(child, next), std::move(e)).second, "epoch dispatched twice");
}

// The credit of P, or of the local worker, comes back; what D was promised is D's to report, or nobody's.
void Router::State::Close(Entry* e) {
  const bool pair = e->placement.mode == Placement::Mode::kDisaggregated;
  if (std::exchange(e->prefill_open, false)) {
    Change(pair ? e->placement.prefill : e->placement.decode, [&](WorkerView& w) {
      --w.credits_used;
      w.Forget(e->expected);
    });
  }
  if (std::exchange(e->decode_open, false)) {
    Change(e->placement.decode, [&](WorkerView& w) { w.Release(e->decode_share); });
  }
}

void Router::PrefillEnded(ChildId child, Epoch epoch) {
  const auto it = state_->ledger.find({child, epoch});
  if (it == state_->ledger.end() || it->second.placement.mode != Placement::Mode::kDisaggregated) return;
  state_->Close(&it->second);
}

void Router::Ended(ChildId child, Epoch epoch) {
  const auto it = state_->ledger.find({child, epoch});
  if (it == state_->ledger.end()) return;
  state_->Close(&it->second);
  state_->ledger.erase(it);
}

// ---- views --------------------------------------------------------------------------------------

const WorkerHello* Router::hello(WorkerId id) const {
  const WorkerView* w = state_->Find(id);
  return w == nullptr ? nullptr : &w->hello;
}

const Heartbeat* Router::heartbeat(WorkerId id) const {
  const WorkerView* w = state_->Find(id);
  return w == nullptr ? nullptr : &w->heartbeat;
}

Admission Router::admission(WorkerId id) const {
  const WorkerView* w = state_->Find(id);
  BATON_CHECK(w != nullptr, "a worker that is not here");
  return {w->roles, w->draining};
}

bool Router::SomeDecoder(WorkerId except) const {
  return std::any_of(state_->lines.begin(), state_->lines.end(),
                     [&](const LoadLine& w) { return w.capacity > 0 && w.decodes && w.id != except; });
}

size_t Router::num_workers() const { return state_->slot_of.size(); }

std::vector<WorkerSnapshot> Router::Snapshot(TimePoint now) const {
  std::vector<WorkerSnapshot> out;
  for (const auto& [id, slot] : state_->slot_of) {
    const WorkerView& w = *state_->workers[slot];
    WorkerSnapshot one;
    one.id = id;
    one.process = w.hello.self.process;
    one.address = w.hello.self.address;
    one.roles = w.roles;
    one.model = w.hello.model.name;
    one.layout = w.hello.layout;
    one.draining = w.draining;
    one.confirmed = w.heartbeat.order >= w.order;
    one.heard_ago = now - w.heard;
    one.connected_for = now - w.connected;
    one.heartbeat = w.heartbeat;
    one.num_blocks = w.hello.num_blocks;
    one.max_context_tokens = w.hello.max_context_tokens;
    one.credits = w.credits;
    one.credits_used = w.credits_used;
    one.cached_pages = state_->holders.pages_of(slot);
    one.cache_known = w.cache_known;
    const PrefillWork cold(PrefillWork::kChunk, 0);
    one.prefill_tokens_per_second = cold.tokens / std::max(1e-9, state_->lines[slot].PrefillSeconds(cold));
    one.decode_step_seconds = w.cost[0] + w.cost[3] * w.running + w.cost[4] * static_cast<double>(w.context_tokens);
    one.report = w.report;
    one.report_age = w.reported == TimePoint{} ? Duration(0) : now - w.reported;
    out.push_back(std::move(one));
  }
  return out;
}

std::string_view Name(Placement::Why why) {
  switch (why) {
    case Placement::Why::kPredicted:
      return "predicted";
    case Placement::Why::kShortPrompt:
      return "short prompt";
    case Placement::Why::kNoPrefill:
      return "no prefill worker";
    case Placement::Why::kAsked:
      return "asked for";
  }
  return "unknown";
}

}  // namespace baton
