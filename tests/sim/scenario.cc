#include "sim/scenario.h"

#include <algorithm>

namespace baton {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr uint32_t kMostPoisonDeaths = 2;  // L8; a scenario has at most one such request
}

void ScenarioCounts::Add(const ScenarioCounts& o) {
  done += o.done, failed += o.failed, cancelled += o.cancelled, tokens += o.tokens;
  disaggregated += o.disaggregated, preemptions += o.preemptions, cached_tokens += o.cached_tokens;
  grants += o.grants, quarantined += o.quarantined, handed_off += o.handed_off, repushes += o.repushes;
  corrupt += o.corrupt, replacements += o.replacements, lost_with_front += o.lost_with_front;
  step_failures += o.step_failures, missing += o.missing, unwanted_grants += o.unwanted_grants;
  surplus_parts += o.surplus_parts, transfer_bytes += o.transfer_bytes, hidden_bytes += o.hidden_bytes;
  replay_faults += o.replay_faults;
  cancelled_reserving += o.cancelled_reserving, cancelled_ready += o.cancelled_ready;
  leaked_blocks += o.leaked_blocks, busy += o.busy, chunks_waited += o.chunks_waited, fences += o.fences;
  faults.Add(o.faults);
  for (const auto& [front, n] : o.done_by_front) done_by_front[front] += n;
  for (const auto& [front, n] : o.failed_by_front) failed_by_front[front] += n;
  emptied += o.emptied, role_changes += o.role_changes, orders_refused += o.orders_refused;
  migrations += o.migrations, migrated += o.migrated, migrations_failed += o.migrations_failed;
  extensions += o.extensions;
  converted += o.converted, converted_unused += o.converted_unused;
  for (const auto& [name, n] : o.used) used[name] += n;
  for (const auto& [name, n] : o.failures) failures[name] += n;
}

Scenario::Scenario(uint64_t seed, ScenarioOptions options) : options_(std::move(options)), rng_(Mix64(seed ^ 0x5eed)) {
  SimOptions cluster = options_.cluster;
  cluster.seed = seed;
  cluster_ = std::make_unique<SimCluster>(cluster);
  cluster_->on_event = [this](ClientHandle h, const ClientEvent& e) { OnEvent(h, e); };
  cluster_->on_order = [this](OperatorHandle h, const OrderUpdate& u) { OnOrder(h, u); };
  cluster_->on_turn = [this](size_t worker) {
    if (violation_.empty()) Violation(oracles_.AfterTurn(*cluster_, worker));
    const Scheduler& scheduler = cluster_->core(worker)->scheduler();
    for (const LaunchedStep& step : scheduler.launched()) {
      for (const LaunchedPart& part : step.parts) counts_.surplus_parts += scheduler.IsCurrent(part) ? 0 : 1;
    }
  };
  for (int i = 0; i < 3; ++i) {
    prefixes_.emplace_back();
    for (int t = 0; t < 64; ++t) prefixes_.back().push_back(3 + static_cast<int64_t>(rng_.Below(kSimVocabulary - 3)));
  }
}

void Scenario::Violation(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void Scenario::Arrive() {
  ++submitted_;
  ClientRequest r;
  TokenPrompt prompt;
  if (rng_.Chance(0.6)) {
    const auto& prefix = prefixes_[rng_.Below(prefixes_.size())];
    prompt.ids.assign(prefix.begin(), prefix.begin() + static_cast<long>(rng_.Below(prefix.size())));
  }
  const uint32_t own = 1 + static_cast<uint32_t>(rng_.Below(options_.max_prompt));
  for (uint32_t i = 0; i < own; ++i) prompt.ids.push_back(3 + static_cast<int64_t>(rng_.Below(kSimVocabulary - 3)));
  r.prompt = std::move(prompt);
  r.temperature = rng_.Chance(options_.greedy) ? 0.0 : 1.0;
  r.seed = rng_.Below(1000);
  r.max_tokens = 1 + static_cast<int64_t>(rng_.Below(options_.max_answer));
  if (rng_.Chance(0.1)) r.max_tokens = 1;
  r.ignore_eos = rng_.Chance(0.5);
  if (rng_.Chance(0.2)) r.min_tokens = std::min<int64_t>(4, *r.max_tokens);
  r.priority = static_cast<int64_t>(rng_.Below(3));
  r.want_token_ids = true;
  r.timings = true;
  r.deadline = options_.deadline;
  if (options_.shape) options_.shape(submitted_, &r);
  Client client;
  const auto& ids = std::get<TokenPrompt>(r.prompt).ids;
  client.reference.prompt.assign(ids.begin(), ids.end());
  client.reference.sampling.temperature = static_cast<float>(*r.temperature);
  client.reference.sampling.seed = *r.seed;
  client.reference.stop.max_tokens = static_cast<uint32_t>(*r.max_tokens);
  client.reference.stop.min_tokens = static_cast<uint32_t>(r.min_tokens.value_or(0));
  client.reference.stop.ignore_eos = r.ignore_eos;
  client.reference.stop.eos_token_ids = {kSimEos};
  client.expected = SimReference(client.reference, options_.cluster.layers, client.reference.stop.max_tokens);
  client.poison = !r.cache_salt.empty() && r.cache_salt == options_.cluster.poison_salt;
  client.odd = options_.cluster.odd_worker != SIZE_MAX;
  // The first event can come before Submit returns: the handle is known from the order.
  clients_[ClientHandle{submitted_}] = std::move(client);
  const size_t front = cluster_->num_fronts() > 1 ? rng_.Below(cluster_->num_fronts()) : 0;
  const ClientHandle handle = cluster_->Submit(std::move(r), front);
  if (rng_.Chance(options_.cancel)) {
    cluster_->loop().After(milliseconds(rng_.Below(60)), [this, handle] {
      Client& c = clients_[handle];
      if (c.ended) return;
      c.cancelled = true;
      NoteCancel(handle);
      cluster_->Cancel(handle);
    });
  }
}

void Scenario::NoteCancel(ClientHandle handle) {
  const ChildId child = cluster_->front(cluster_->front_of(handle)).ChildOf(handle);
  for (size_t w = 0; w < cluster_->num_workers(); ++w) {
    if (!cluster_->alive(w)) continue;
    for (const WriterChild* c : cluster_->core(w)->connector().writer().Live()) {
      counts_.cancelled_reserving += c->key.child == child && c->state == WriterState::kReserving ? 1 : 0;
    }
    for (const ReaderTicket* t : cluster_->core(w)->connector().reader().Live()) {
      const bool ready = t->state == TicketState::kReady || t->state == TicketState::kRunning;
      counts_.cancelled_ready += t->child == child && ready ? 1 : 0;
    }
  }
}

void Scenario::OnEvent(ClientHandle handle, const ClientEvent& event) {
  const auto it = clients_.find(handle);
  if (it == clients_.end()) return Violation("an event for an unknown client");
  Client& c = it->second;
  if (c.ended) return Violation("an event after the end");
  if (const auto* delta = std::get_if<Delta>(&event)) {
    for (const TokenId id : delta->token_ids) {
      const size_t i = c.seen.size();
      if (!c.odd && (i >= c.expected.size() || c.expected[i] != id)) {
        return Violation("a token that the reference does not have");
      }
      c.seen.push_back(id);
      ++counts_.tokens;
    }
  } else if (std::holds_alternative<Finished>(event)) {
    if (c.finished) return Violation("finished twice");
    c.finished = true;
    if (!c.odd && c.seen != c.expected) Violation("the answer is cut short");
  } else if (const auto* done = std::get_if<Done>(&event)) {
    OnEnd(c);
    if (!c.finished) Violation("done without finished");
    ++counts_.done;
    ++counts_.done_by_front[cluster_->front_of(handle)];
    counts_.disaggregated += done->timings.disaggregated ? 1 : 0;
    counts_.replacements += done->timings.retries;
    counts_.transfer_bytes += done->timings.prefill.transfer_bytes;
    counts_.hidden_bytes += done->timings.prefill.hidden_bytes;
    ++counts_.used[done->timings.decode_worker];
    if (!done->timings.prefill_worker.empty()) ++counts_.used[done->timings.prefill_worker];
  } else if (const auto* failed = std::get_if<Failed>(&event)) {
    OnEnd(c);
    if (c.cancelled && failed->status.code() == Code::kCancelled) {
      ++counts_.cancelled;
    } else {
      ++counts_.failed;
      ++counts_.failed_by_front[cluster_->front_of(handle)];
      if (options_.every_request_succeeds) Violation("a request failed: " + failed->status.ToString());
      if (options_.innocents_survive && !c.poison && failed->reason != "NO_WORKER") {
        Violation("a request that kills nobody failed: " + failed->status.ToString());
      }
      const bool late = failed->status.code() == Code::kDeadlineExceeded;
      if (late && options_.deadlines_hold) Violation("a request failed by its deadline: " + failed->status.ToString());
      ++counts_.failures[std::string(CodeName(failed->status.code())) + " " + failed->reason];
    }
  }
}

void Scenario::OnEnd(Client& c) {
  c.ended = true;
  if (!c.odd) return;
  // A worker with a numeric fault may say what it likes, but nobody may mix two histories (S7).
  if (!SimFollows(c.reference, options_.cluster.layers, c.seen, {0, kOddDialect})) {
    Violation("a token that does not follow from what the client has");
  }
}

void Scenario::PlanFaults() {
  const auto at = [this](const std::function<void()>& what) {
    cluster_->loop().After(Duration(static_cast<int64_t>(rng_.Below(options_.faults_over.count()))), what);
  };
  const auto some_worker = [this] { return rng_.Below(cluster_->num_workers()); };
  for (uint32_t i = 0; i < options_.kills; ++i) {
    const size_t w = some_worker();
    const Duration dead_for = milliseconds(1 + rng_.Below(200));
    at([this, w, dead_for] {
      cluster_->Kill(w);
      cluster_->loop().After(dead_for, [this, w] { cluster_->Restart(w); });
    });
  }
  for (uint32_t i = 0; i < options_.pauses; ++i) {
    at([this, w = some_worker()] {
      cluster_->Pause(w, Duration(static_cast<int64_t>(rng_.Below(options_.pause_for.count()))));
    });
  }
  for (uint32_t i = 0; i < options_.front_breaks; ++i) at([this, w = some_worker()] { cluster_->BreakFrontLink(w); });
  for (uint32_t i = 0; i < options_.pair_breaks; ++i) at([this, w = some_worker()] { cluster_->BreakPairLinks(w); });
  for (uint32_t i = 0; i < options_.step_failures; ++i) {
    at([this, w = some_worker()] {
      cluster_->FailStep(w);
      ++counts_.step_failures;
    });
  }
  for (uint32_t i = 0; i < options_.moves; ++i) {
    const auto over = static_cast<uint64_t>((options_.arrivals_over + milliseconds(100)).count());
    cluster_->loop().After(Duration(static_cast<int64_t>(rng_.Below(over))), [this] {
      std::vector<ClientHandle> live;
      for (const auto& [handle, client] : clients_) {
        if (!client.ended && !client.seen.empty()) live.push_back(handle);
      }
      if (!live.empty()) cluster_->Move(live[rng_.Below(live.size())]);
    });
  }
  for (uint32_t i = 0; i < options_.hangs; ++i) {
    at([this, w = some_worker()] {
      cluster_->Hang(w);
      cluster_->loop().After(seconds(30), [this, w] {
        cluster_->Kill(w);
        cluster_->Restart(w);
      });
    });
  }
  for (uint32_t i = 0; i < options_.orders; ++i) at([this] { Order(); });
  for (size_t w = 0; options_.decode_workers_die && w < cluster_->num_workers(); ++w) {
    if (cluster_->name(w)[0] != 'p')
      cluster_->loop().After(milliseconds(rng_.Below(30)), [this, w] { cluster_->Kill(w); });
  }
  for (uint32_t i = 0; i < options_.front_restarts; ++i) {
    const bool any = options_.restarted_front == SIZE_MAX && cluster_->num_fronts() > 1;
    at([this, front = any ? rng_.Below(cluster_->num_fronts())
                          : std::min(options_.restarted_front, cluster_->num_fronts() - 1)] {
      for (auto& [handle, c] : clients_) {
        if (c.ended || cluster_->front_of(handle) != front) continue;
        c.ended = true;
        ++counts_.lost_with_front;
      }
      if (front == 0) waiting_.clear();  // nobody hears of them any more
      cluster_->RestartFront(front);
      for (size_t w = 0; options_.orders > 0 && w < cluster_->num_workers(); ++w) Undo(cluster_->name(w));
    });
  }
  for (uint32_t i = 0; i < options_.cuts; ++i) {
    const size_t a = rng_.Below(cluster_->num_workers());
    const size_t b = rng_.Below(cluster_->num_processes());
    const auto how_long = Duration(1 + static_cast<int64_t>(rng_.Below(options_.cut_for.count())));
    const uint64_t way = rng_.Below(3);
    at([this, a, b, how_long, way] {
      if (way != 1) cluster_->Cut(a, b, how_long);
      if (way != 0) cluster_->Cut(b, a, how_long);
    });
  }
  for (uint32_t i = 0; i < options_.drains; ++i) at([this, w = some_worker()] { cluster_->Drain(w); });
  for (size_t w = 0; options_.drain_each && w < cluster_->num_workers(); ++w) {
    cluster_->loop().After(options_.faults_over * static_cast<int>(w + 1) / static_cast<int>(cluster_->num_workers()),
                           [this, w] { cluster_->Drain(w); });
  }
}

void Scenario::Order() {
  const std::string worker = cluster_->name(rng_.Below(cluster_->num_workers()));
  const OperatorHandle handle{next_order_++};
  const bool drain = rng_.Chance(0.5);
  waiting_[handle] = {"", drain};
  if (!drain) {
    const uint64_t role = rng_.Below(3);
    return cluster_->Operate(RoleOrder{handle, worker, {role != 0, role != 1}, false, seconds(5)});
  }
  cluster_->loop().After(milliseconds(rng_.Below(200)), [this, worker] { Undo(worker); });
  cluster_->Operate(DrainOrder{handle, worker, false, false, false, seconds(20)});
}

void Scenario::Undo(const std::string& worker) {
  const OperatorHandle handle{next_order_++};
  waiting_[handle] = {worker, false};
  cluster_->Operate(DrainOrder{handle, worker, false, /*undo=*/true, false, seconds(2)});
}

void Scenario::OnOrder(OperatorHandle handle, const OrderUpdate& update) {
  const auto it = waiting_.find(handle);
  if (it == waiting_.end()) return Violation("an update for an order that is over");
  if (!update.last) return;
  const Waiting was = it->second;
  waiting_.erase(it);
  if (!update.status.ok()) {
    ++counts_.orders_refused;
    if (was.undo.empty()) return;
    cluster_->loop().After(milliseconds(50), [this, worker = was.undo] { Undo(worker); });
  } else if (was.drain) {
    counts_.emptied += update.empty ? 1 : 0;
  } else if (was.undo.empty()) {
    counts_.role_changes += update.changed ? 1 : 0;
  }
}

bool Scenario::AllEnded() const {
  if (submitted_ < options_.num_requests || !waiting_.empty()) return false;
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& entry) { return entry.second.ended; });
}

std::string Scenario::Run() {
  const TimePoint start = cluster_->now() + milliseconds(20);  // workers have registered
  for (uint32_t i = 0; i < options_.num_requests; ++i) {
    const auto offset = Duration(static_cast<int64_t>(rng_.Below(options_.arrivals_over.count() + 1)));
    cluster_->loop().At(start + offset, [this] { Arrive(); });
  }
  cluster_->loop().At(start, [this] { PlanFaults(); });
  const TimePoint heal = start + options_.arrivals_over + options_.faults_over + milliseconds(400);
  cluster_->loop().At(heal, [this] { cluster_->StopFaults(); });
  const TimePoint limit = heal + seconds(90);
  bool healed = false;
  while (violation_.empty() && cluster_->now() < limit) {
    if (!cluster_->RunOne()) break;
    healed = healed || cluster_->now() >= heal;
    std::string why;
    if (healed && AllEnded() && cluster_->Quiet(&why)) break;
    if (options_.supervisor_stays_out && cluster_->supervisor_kills() > 0) {
      Violation("only a writer's death let go of its blocks");
    }
    if (cluster_->faults().stale_bytes > 0) Violation("bytes landed under a ticket that is over or READY");
    if (cluster_->poison_deaths() > kMostPoisonDeaths) Violation("one request killed more than two workers");
  }
  if (violation_.empty() && !AllEnded()) Violation("a request or an order never ended");
  if (std::string why; violation_.empty() && !cluster_->Quiet(&why))
    Violation("the cluster does not come to rest: " + why);
  CollectCounts();
  return violation_;
}

void Scenario::CollectCounts() {
  counts_.faults = cluster_->faults();
  for (size_t f = 0; f < cluster_->num_fronts(); ++f) {
    const FrontCounters& c = cluster_->front(f).counters();
    counts_.replay_faults += c.replay_faults;
    counts_.migrations += c.migrations;
    counts_.migrated += c.migrated;
    counts_.migrations_failed += c.migrations_failed;
  }
  for (size_t i = 0; i < cluster_->num_workers(); ++i) {
    const EngineCore* core = cluster_->core(i);
    if (core == nullptr) continue;
    const BlockCounts& blocks = core->pool().counts(0);
    counts_.leaked_blocks += blocks.total - blocks.free - blocks.cached;
    counts_.preemptions += core->counters().preemptions;
    counts_.cached_tokens += core->counters().cached_tokens;
    counts_.grants += core->connector().counters().grants;
    counts_.busy += core->connector().counters().busy;
    counts_.fences += core->connector().reader().counters().fences;
    counts_.chunks_waited += core->connector().counters().chunks_waited;
    counts_.extensions += core->connector().counters().extensions;
    counts_.converted += core->connector().counters().converted;
    counts_.converted_unused += core->connector().counters().converted_unused;
    counts_.repushes += core->connector().writer().counters().repushes;
    counts_.corrupt += core->connector().reader().counters().corrupt;
    counts_.missing += core->connector().reader().counters().missing;
    counts_.unwanted_grants += core->connector().writer().counters().unwanted_grants;
  }
}

ScenarioOptions MixedScenario(uint64_t seed) {
  Rng rng(Mix64(seed + 77));
  ScenarioOptions o;
  SimOptions& c = o.cluster;
  c.mode = rng.Chance(0.5) ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
  if (seed % 5 == 4) c.mode = TransferMode::kKeyedPut;
  c.num_unified = rng.Chance(0.2) ? 1 : 0;
  c.pool_blocks = rng.Chance(0.4) ? 26 : 64;
  c.prefix_cache = !rng.Chance(0.2);
  if (rng.Chance(0.6)) {
    c.message_drop = 0.02 * rng.Unit();
    c.message_duplicate = 0.1 * rng.Unit();
    c.message_late = 0.1 * rng.Unit();
    c.transfer.post_delay = 0.1 * rng.Unit();
    c.transfer.post_truncate = 0.02 * rng.Unit();
    c.transfer.post_fail = 0.02 * rng.Unit();
    c.transfer.post_never = 0.01 * rng.Unit();
    c.transfer.notice_delay = 0.1 * rng.Unit();
    c.transfer.notice_drop = 0.05 * rng.Unit();
    c.transfer.notice_duplicate = 0.1 * rng.Unit();
    c.transfer.max_delay = milliseconds(40);
  }
  if (rng.Chance(0.5)) o.kills = static_cast<uint32_t>(rng.Below(3));
  if (rng.Chance(0.3)) o.pauses = static_cast<uint32_t>(rng.Below(3));
  if (rng.Chance(0.3)) o.front_breaks = static_cast<uint32_t>(rng.Below(3));
  if (rng.Chance(0.3)) o.pair_breaks = static_cast<uint32_t>(rng.Below(4));
  if (rng.Chance(0.2)) o.step_failures = static_cast<uint32_t>(rng.Below(3));
  if (rng.Chance(0.1)) o.front_restarts = 1;
  // Room for one chunk, or for a few, on the way to a reader; else for all that there ever is.
  const uint64_t block = SimLayout(c.block_tokens, c.layers).BlockBytes(0);
  if (seed % 3 != 0) c.send = {seed % 3 == 1 ? 1 : 2 * block, 4 * block};
  return o;
}

ScenarioOptions WideScenario(uint64_t seed) {
  ScenarioOptions o = MixedScenario(seed);
  Rng rng(Mix64(seed ^ 0x71de));
  SimOptions& c = o.cluster;
  c.num_fronts = 1 + static_cast<uint32_t>(rng.Below(2));
  c.num_prefill = 1 + static_cast<uint32_t>(rng.Below(3));
  c.num_decode = 1 + static_cast<uint32_t>(rng.Below(3));
  c.clock_spread = std::chrono::hours(1000);
  c.clock_drift_ppm = static_cast<uint32_t>(rng.Below(500));
  if (rng.Chance(0.5)) o.cuts = 1 + static_cast<uint32_t>(rng.Below(3));
  if (rng.Chance(0.3)) o.drains = 1 + static_cast<uint32_t>(rng.Below(2));
  if (rng.Chance(0.3)) o.kills += 1;
  return o;
}

ScenarioOptions NightScenario(uint64_t seed) {
  ScenarioOptions o = WideScenario(seed);
  Rng rng(Mix64(seed ^ 0x4167));
  SimOptions& c = o.cluster;
  o.num_requests = 100;
  o.arrivals_over = milliseconds(600);
  o.faults_over = milliseconds(600);
  o.max_prompt = 60;
  o.max_answer = 12;
  o.cancel = 0.2 * rng.Unit();
  c.message_drop = 0.03 * rng.Unit();
  c.message_duplicate = 0.3 * rng.Unit();
  c.message_late = 0.3 * rng.Unit();
  c.transfer.post_delay = 0.3 * rng.Unit();
  c.transfer.post_truncate = 0.02 * rng.Unit();
  c.transfer.post_fail = 0.02 * rng.Unit();
  c.transfer.post_never = 0.005 * rng.Unit();
  c.transfer.notice_delay = 0.3 * rng.Unit();
  c.transfer.notice_drop = 0.05 * rng.Unit();
  c.transfer.notice_duplicate = 0.3 * rng.Unit();
  c.transfer.max_delay = milliseconds(rng.Chance(0.5) ? 20 : 80);
  o.pair_breaks += static_cast<uint32_t>(rng.Below(3));
  if (rng.Chance(0.8)) o.shape = [](uint32_t, ClientRequest* r) { r->placement = PlacementHint::kDisaggregated; };
  return o;
}

}  // namespace baton
