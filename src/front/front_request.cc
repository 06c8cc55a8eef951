#include "front/front_request.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "baton/check.h"

namespace baton {
namespace {

constexpr Duration kDeathsOnOneHost = std::chrono::seconds(5);  // count once (L8)
constexpr uint32_t kMaxWorkerRefusals = 8;
constexpr Duration kFirstBackOff = std::chrono::milliseconds(10);
constexpr Duration kLastBackOff = std::chrono::seconds(1);
constexpr Duration kMigrateAgain = std::chrono::milliseconds(50);  // doubles with every failure
constexpr uint32_t kWorthMoving = 4;                               // tokens to come, at least

Prepared WithoutRequest(Prepared p) {
  p.request = {};
  return p;
}
RequestPtr MakeRequest(ChildId child, Prepared& prepared, uint64_t largest) {
  Request r = std::move(prepared.request);
  r.id = child;
  // A default reaches as far as the context and the largest pool; what a client asked for stays as it is.
  if (!prepared.max_tokens_given && largest > r.prompt.size()) {
    r.stop.max_tokens = static_cast<uint32_t>(std::min<uint64_t>(r.stop.max_tokens, largest - r.prompt.size()));
    r.stop.min_tokens = std::min(r.stop.min_tokens, r.stop.max_tokens);
  }
  return std::make_shared<const Request>(std::move(r));
}

}  // namespace

FrontRequest::FrontRequest(ChildId child, ClientHandle client, std::string request_id, Prepared prepared,
                           const Tokenizer* tokenizer, const FrontContext& ctx)
    : child_(child),
      client_(client),
      request_id_(std::move(request_id)),
      arrival_(ctx.now),
      request_(MakeRequest(child, prepared, ctx.router.LargestRequest())),
      spec_(WithoutRequest(std::move(prepared))),
      tokenizer_(tokenizer),
      text_(tokenizer, spec_.skip_special_tokens, spec_.stop_strings, spec_.include_stop_text),
      deadline_(ctx.now + spec_.deadline) {}

// ---- placement ----------------------------------------------------------------------------------

const std::map<Hash128, std::vector<Hash128>>& FrontRequest::PageHashes(const FrontContext& ctx) {
  std::vector<TokenId> all = request_->prompt;
  for (const OutputToken& t : tokens_) all.push_back(t.id);
  const size_t pages = all.size() / kPageTokens;
  for (const Hash128& numeric : ctx.router.numerics()) {
    std::vector<Hash128>& chain = pages_[numeric];
    if (chain.size() >= pages) continue;
    Hash128 parent = chain.empty() ? ChainRoot(ctx.options.model.weights, numeric, request_->cache_salt) : chain.back();
    for (size_t p = chain.size(); p < pages; ++p) {
      parent = ChainHash(parent, std::span(all).subspan(p * kPageTokens, kPageTokens));
      chain.push_back(parent);
    }
  }
  return pages_;
}

std::optional<Placement> FrontRequest::DecodeWhereItIs(const FrontContext& ctx) {
  if (!std::exchange(decode_where_it_is_, false) || ctx.router.hello(where_it_is_) == nullptr) return std::nullopt;
  Placement p;
  p.mode = Placement::Mode::kLocal;
  p.decode = where_it_is_;
  return p;
}

PlaceQuery FrontRequest::QueryNow(const FrontContext& ctx) {
  PlaceQuery query;
  query.prompt_tokens = static_cast<uint32_t>(request_->prompt.size() + tokens_.size());
  query.answer_tokens = request_->stop.max_tokens - static_cast<uint32_t>(tokens_.size());
  query.pages = &PageHashes(ctx);
  return query;
}

bool FrontRequest::TryPlace(const FrontContext& ctx) {
  BATON_CHECK(phase_ == Phase::kQueued);
  PlaceQuery query = QueryNow(ctx);
  query.excluded = &excluded_;
  query.no_handoff_to = &no_handoff_to_;
  if (!is_retry()) {  // what lives on after a loss goes wherever it can
    query.hint = spec_.placement;
    query.prefill_worker = spec_.prefill_worker;
    query.decode_worker = spec_.decode_worker;
  }
  if (const auto here = DecodeWhereItIs(ctx)) {
    Dispatch(*here, query, ctx);
    return true;
  }
  auto answer = ctx.router.Place(query, ctx.now);
  const auto* refusal = std::get_if<Refusal>(&answer);
  if (refusal != nullptr && refusal->why != Refusal::Why::kNoCredit && !(excluded_.empty() && no_handoff_to_.empty())) {
    excluded_.clear();  // better a worker that failed this request once than none
    no_handoff_to_.clear();
    answer = ctx.router.Place(query, ctx.now);
  }
  if (const auto* placement = std::get_if<Placement>(&answer)) {
    Dispatch(*placement, query, ctx);
    return true;
  }
  return OnRefused(std::get<Refusal>(answer), ctx);
}

bool FrontRequest::OnRefused(const Refusal& refusal, const FrontContext& ctx) {
  if (refusal.why == Refusal::Why::kNoCredit) {
    const bool ordinary = excluded_.empty() && no_handoff_to_.empty() && spec_.placement == PlacementHint::kAuto &&
                          spec_.prefill_worker.empty() && spec_.decode_worker.empty();
    return !ordinary;
  }
  if (is_retry()) return true;  // a worker may come back; wait_until_ bounds it
  switch (refusal.why) {
    case Refusal::Why::kNeverFits:
      Fail(refusal.status, "NEVER_FITS", {}, ctx);
      break;
    case Refusal::Why::kNotAllowed:
      Fail(refusal.status, "PLACEMENT", refusal.retry_after, ctx);
      break;
    default:
      Fail(refusal.status, "NO_WORKER", refusal.retry_after, ctx);
  }
  return true;
}

void FrontRequest::Dispatch(const Placement& placement, const PlaceQuery& query, const FrontContext& ctx) {
  epoch_ = ++last_epoch_;
  if (++dispatched_ > 1) ++ctx.counters.replacements;
  placement_ = placement;
  prefill_ = placement.prefill;
  decode_ = placement.decode;
  disaggregated_ = placement.mode == Placement::Mode::kDisaggregated;
  handed_off_ = emitted_ = prefill_receipt_came_ = false;
  prefill_receipt_ = decode_receipt_ = {};
  wait_until_ = kNever;
  phase_ = disaggregated_ ? Phase::kPrefilling : Phase::kDecoding;
  if (first_dispatch_ == kNever) first_dispatch_ = ctx.now;

  const WorkerSession* d = ctx.sessions.Find(decode_);
  BATON_CHECK(d != nullptr, "placed on a worker without a session");
  decode_process_ = d->self.process;
  decode_steps_ = d->steps;
  // Every epoch starts from all tokens that the client has (S7); their log-probabilities were told already.
  Progress progress{tokens_, static_cast<uint32_t>(tokens_.size()), deadline_ - ctx.now};
  if (!ctx.options.rules.Holds(Rule::kS7)) progress = {{}, 0, deadline_ - ctx.now};
  progress.once_hit = !hits_.empty();
  if (disaggregated_) {
    const WorkerSession* p = ctx.sessions.Find(prefill_);
    BATON_CHECK(p != nullptr, "placed on a worker without a session");
    prefill_process_ = p->self.process;
    prefill_steps_ = p->steps;
    ctx.sessions.Send(prefill_, PrefillCommand{request_, std::move(progress), epoch_, d->self}, ctx.out);
  } else {
    prefill_process_ = {};
    ctx.sessions.Send(decode_, DecodeCommand{request_, std::move(progress), epoch_}, ctx.out);
  }
  ctx.router.Dispatched(child_, epoch_, placement, query, ctx.now);
  if (spec_.timings && !std::exchange(started_told_, true) && !silent_) {
    ctx.out->to_clients.emplace_back(
        client_,
        Started{request_id_, ctx.options.served_name.empty() ? ctx.options.model.name : ctx.options.served_name,
                static_cast<uint32_t>(request_->prompt.size()), placement.cached_tokens, prefill_process_.name,
                decode_process_.name});
  }
}

void FrontRequest::FlushCancels(const FrontContext& ctx) {
  for (const auto& [worker, epoch] : cancels_) ctx.sessions.Send(worker, CancelCommand{child_, epoch}, ctx.out);
  cancels_.clear();
}

// ---- events -------------------------------------------------------------------------------------

bool FrontRequest::Holds(WorkerId worker, Epoch epoch) const {
  if (migration_ && epoch == migration_->epoch) return worker == decode_ || worker == migration_->to;
  return epoch == epoch_ && phase_ != Phase::kQueued && phase_ != Phase::kEnded && DependsOn(worker);
}

void FrontRequest::OnEvent(WorkerId from, const ChildEvent& event, const FrontContext& ctx) {
  const Epoch epoch = std::visit([](const auto& e) { return e.epoch; }, event);
  if (migration_ && epoch == migration_->epoch) return OnMigrationEvent(from, event, ctx);
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    OnToken(from, *token, ctx);
  } else if (std::holds_alternative<HandedOff>(event)) {
    if (from != prefill_) return;
    handed_off_ = true;
    if (phase_ == Phase::kSettling) return EmitDone(ctx);
    DependOnDecodeOnly(ctx);
  } else if (const auto* failed = std::get_if<HandoffFailed>(&event)) {
    OnHandoffFailed(from, *failed, ctx);
  } else if (std::holds_alternative<Running>(event)) {
    if (from == decode_ && phase_ == Phase::kAdopting) DependOnDecodeOnly(ctx);
    if (from == decode_ && migration_ && migration_->step == Migration::Step::kAskSource) GoOnAtSource(ctx);
  } else if (std::holds_alternative<NotHeld>(event)) {
    const bool asked = migration_ && migration_->step == Migration::Step::kAskSource;
    if (from == decode_ && (phase_ == Phase::kAdopting || asked)) {
      EndEpoch(adopt_price_, adopt_lost_, "the hand-off was lost", ctx);
    }
  } else if (const auto* child_failed = std::get_if<ChildFailed>(&event)) {
    OnChildFailed(from, *child_failed, ctx);
  } else if (const auto* receipt = std::get_if<ReceiptEvent>(&event)) {
    if (from == decode_) decode_receipt_ = receipt->receipt;
    if (from == prefill_ || (!disaggregated_ && moved_ == 0)) {
      prefill_receipt_ = receipt->receipt;
      prefill_receipt_came_ = true;
      if (phase_ == Phase::kSettling) EmitDone(ctx);
    }
  }
}

void FrontRequest::DependOnDecodeOnly(const FrontContext& ctx) {
  if (phase_ != Phase::kPrefilling && phase_ != Phase::kAdopting) return;
  phase_ = Phase::kDecoding;
  wait_until_ = kNever;
  ctx.router.PrefillEnded(child_, epoch_);
}

// ---- migration ------------------------------------------------------------------------------------

bool FrontRequest::MayMigrate(TimePoint now) const {
  return phase_ == Phase::kDecoding && !migration_ && emitted_ && migrate_after_ <= now &&
         tokens_.size() + kWorthMoving <= request_->stop.max_tokens;
}

bool FrontRequest::TryMigrate(const FrontContext& ctx) {
  BATON_CHECK(MayMigrate(ctx.now));
  PlaceQuery query = QueryNow(ctx);
  query.excluded = &no_migration_to_;
  std::optional<WorkerId> to = ctx.router.PlaceMigration(query, decode_);
  if (!to && !no_migration_to_.empty()) {
    no_migration_to_.clear();
    to = ctx.router.PlaceMigration(query, decode_);
  }
  if (!to) {
    migrate_after_ = ctx.now + kMigrateAgain;
    return false;
  }
  const WorkerSession* session = ctx.sessions.Find(*to);
  BATON_CHECK(session != nullptr, "a migration to a worker without a session");
  migration_ = Migration{++last_epoch_, *to, session->self.process, Migration::Step::kMoving};
  ++ctx.counters.migrations;
  ctx.sessions.Send(
      decode_, MigrateCommand{child_, epoch_, migration_->epoch, static_cast<uint32_t>(tokens_.size()), session->self},
      ctx.out);
  ctx.router.Migrates(child_, migration_->epoch, *to, query);
  return true;
}

// Of the next epoch, while the present one still counts.
void FrontRequest::OnMigrationEvent(WorkerId from, const ChildEvent& event, const FrontContext& ctx) {
  using Step = Migration::Step;
  const Step step = migration_->step;
  if (const auto* failed = std::get_if<HandoffFailed>(&event)) {
    if (from != decode_ || step != Step::kMoving) return;
    if (failed->why == HandoffFailure::kUndecided) return AskTarget(Price::kLoss, migration_->process, ctx);
    if (failed->why != HandoffFailure::kBusyTooLong) no_migration_to_.insert(migration_->to);
    return GoOnAtSource(ctx);
  }
  if (std::holds_alternative<HandedOff>(event)) {
    // Where the source is asked already, its answer tells that it has nothing any more.
    if (from == decode_ && step != Step::kAskSource) GoOnAtTarget(/*source_knows=*/true, ctx);
    return;
  }
  if (from != migration_->to) return;
  const auto* token = std::get_if<TokenEvent>(&event);
  if (token != nullptr || std::holds_alternative<Running>(event)) {
    if (step == Step::kAskSource) return cancels_.emplace_back(from, migration_->epoch), void();
    GoOnAtTarget(/*source_knows=*/false, ctx);
    if (token != nullptr) OnToken(from, *token, ctx);
    return;
  }
  const bool not_there = std::holds_alternative<NotHeld>(event) && step == Step::kAskTarget;
  if (not_there || (std::holds_alternative<ChildFailed>(event) && step != Step::kAskSource)) {
    AskSource(Price::kLoss, migration_->process, ctx);
  }
}

// The first event of the next epoch: it is the present one (S11).
void FrontRequest::GoOnAtTarget(bool source_knows, const FrontContext& ctx) {
  if (!source_knows) cancels_.emplace_back(decode_, epoch_);
  ctx.router.Ended(child_, epoch_);
  epoch_ = migration_->epoch;
  prefill_ = WorkerId{};
  decode_ = migration_->to;
  decode_process_ = migration_->process;
  migration_.reset();
  const WorkerSession* d = ctx.sessions.Find(decode_);
  decode_steps_ = d == nullptr ? 0 : d->steps;
  handed_off_ = true;
  emitted_ = false;
  wait_until_ = kNever;
  ++moved_;
  ++ctx.counters.migrated;
  ctx.router.PrefillEnded(child_, epoch_);
}

void FrontRequest::GoOnAtSource(const FrontContext& ctx) {
  cancels_.emplace_back(migration_->to, migration_->epoch);
  EndMigration(ctx);
  wait_until_ = kNever;
  const uint32_t doublings = std::min(migrations_failed_++, 6u);
  migrate_after_ = ctx.now + kMigrateAgain * (1u << doublings);
  ++ctx.counters.migrations_failed;
}

void FrontRequest::EndMigration(const FrontContext& ctx) {
  ctx.router.Ended(child_, migration_->epoch);
  migration_.reset();
}

void FrontRequest::AskTarget(Price price, const ProcessId& lost, const FrontContext& ctx) {
  if (ctx.sessions.Find(migration_->to) == nullptr) return AskSource(price, lost, ctx);
  ++ctx.counters.adopts;
  adopt_price_ = price;
  adopt_lost_ = lost;
  migration_->step = Migration::Step::kAskTarget;
  wait_until_ = ctx.now + ctx.options.limits.adopt_deadline;
  ctx.sessions.Send(migration_->to, AdoptCommand{child_, migration_->epoch, !hits_.empty()}, ctx.out);
}

// It goes on there, and no event of the next epoch counts any more.
void FrontRequest::AskSource(Price price, const ProcessId& lost, const FrontContext& ctx) {
  const bool asked = migration_->step == Migration::Step::kAskTarget;  // for what was lost before
  adopt_price_ = asked ? adopt_price_ : price;
  adopt_lost_ = asked ? adopt_lost_ : lost;
  if (ctx.sessions.Find(decode_) == nullptr) {
    return EndEpoch(adopt_price_, adopt_lost_, "neither worker of a migration has it", ctx);
  }
  migration_->step = Migration::Step::kAskSource;
  wait_until_ = ctx.now + ctx.options.limits.adopt_deadline;
  ctx.sessions.Send(decode_, AdoptCommand{child_, epoch_, !hits_.empty()}, ctx.out);
}

void FrontRequest::OnToken(WorkerId from, const TokenEvent& event, const FrontContext& ctx) {
  if (phase_ == Phase::kSettling) return;
  if (from == decode_) DependOnDecodeOnly(ctx);
  emitted_ = true;
  const auto next = static_cast<uint32_t>(tokens_.size());
  if (event.index == next || !ctx.options.rules.Holds(Rule::kS6)) return Deliver(event, ctx);
  if (event.index > next) {
    ++ctx.counters.index_gaps;
    return EndEpoch(Price::kBudget, {}, fmt::format("token {} came where {} was next", event.index, next), ctx);
  }
  if (event.token.id == tokens_[event.index].id || !ctx.options.rules.Holds(Rule::kS7)) {
    ++ctx.counters.duplicates;
    if (event.finish == FinishReason::kNone) return;
    ++ctx.counters.finish_faults;  // the client has this token and the answer was not over: it ended there wrongly
    return EndEpoch(Price::kBudget, {}, "the worker ended an answer that the stop rules do not end", ctx);
  }
  ++ctx.counters.replay_faults;
  spdlog::error("request {} ({}): token {} of epoch {} is {} and was {} before", ToString(child_), request_id_,
                event.index, epoch_, event.token.id, tokens_[event.index].id);
  EndEpoch(Price::kBudget, {}, fmt::format("token {} was replayed differently", event.index), ctx);
}

void FrontRequest::Deliver(const TokenEvent& event, const FrontContext& ctx) {
  const TokenId id = event.token.id;
  if (id < 0 || static_cast<uint32_t>(id) >= tokenizer_->vocab_size()) {
    ++ctx.counters.finish_faults;
    return EndEpoch(Price::kBudget, {}, fmt::format("token {} is not in the vocabulary", id), ctx);
  }
  // An answer that is over ends here, so that no epoch ever starts from a finished one.
  const auto index = static_cast<uint32_t>(tokens_.size());
  const FinishReason by_rules = FinishAt(request_->stop, id, index);
  tokens_.push_back(OutputToken{id, 0, {}});
  ++ctx.counters.tokens;
  if (first_token_ == kNever) first_token_ = ctx.now;
  last_token_ = ctx.now;

  std::string text;
  bool by_string = false;
  if (by_rules != FinishReason::kStop || spec_.include_stop_text) by_string = text_.Push(id, &text);
  if (by_rules == FinishReason::kNone && !by_string) {
    EmitDelta(std::move(text), &event.token, ctx);
    if (event.finish == FinishReason::kNone) return;
    ++ctx.counters.finish_faults;
    return EndEpoch(Price::kBudget, {}, "the worker ended an answer that the stop rules do not end", ctx);
  }
  if (!by_string) by_string = text_.Finish(&text);
  const bool by_token = !by_string && by_rules == FinishReason::kStop;
  Finish(by_string ? FinishReason::kStop : by_rules, by_token ? id : -1, event.finish != FinishReason::kNone,
         std::move(text), &event.token, ctx);
}

void FrontRequest::EmitDelta(std::string text, const OutputToken* token, const FrontContext& ctx) {
  Delta d;
  if (spec_.want_text) d.text = std::move(text);
  if (spec_.want_token_ids) d.token_ids.push_back(token->id);
  if (request_->sampling.logprobs >= 0) d.logprobs.push_back(*token);
  if (d.text.empty() && d.token_ids.empty() && d.logprobs.empty()) return;
  if (!silent_) ctx.out->to_clients.emplace_back(client_, std::move(d));
}

void FrontRequest::Finish(FinishReason reason, int64_t matched_token, bool worker_knows, std::string text,
                          const OutputToken* last, const FrontContext& ctx) {
  EmitDelta(std::move(text), last, ctx);
  if (!silent_) ctx.out->to_clients.emplace_back(client_, Finished{0, reason, text_.matched(), matched_token});
  const WorkerId prefill = prefill_;
  ReleaseEpoch(/*tell_workers=*/!worker_knows, ctx);
  // P's receipt (what was moved, what was exposed) may be a moment behind D's last token of a short answer.
  if (!handed_off_ && !prefill_receipt_came_ && disaggregated_ && ctx.sessions.Find(prefill) != nullptr) {
    phase_ = Phase::kSettling;
    prefill_ = prefill;
    wait_until_ = ctx.now + ctx.options.limits.receipt_grace;
    return;
  }
  EmitDone(ctx);
}

void FrontRequest::EmitDone(const FrontContext& ctx) {
  Done done;
  done.usage.prompt_tokens = static_cast<uint32_t>(request_->prompt.size());
  done.usage.completion_tokens = static_cast<uint32_t>(tokens_.size());
  done.usage.cached_tokens = std::min(prefill_receipt_.cached_tokens, done.usage.prompt_tokens);
  Timings& t = done.timings;
  t.first_dispatch = first_dispatch_ - arrival_;
  t.first_token = first_token_ - arrival_;
  t.last_token = last_token_ - arrival_;
  t.done = ctx.now - arrival_;
  if (tokens_.size() > 1 && last_token_ > first_token_) {
    t.tokens_per_second = static_cast<double>(tokens_.size() - 1) / Seconds(last_token_ - first_token_);
  }
  t.placements = dispatched_ + moved_;
  t.retries = dispatched_ - 1;
  t.migrations = moved_;
  t.disaggregated = disaggregated_;
  t.placement_why = std::string(Name(placement_.why));
  t.prefill_worker = prefill_process_.name;
  t.decode_worker = decode_process_.name;
  t.prefill = prefill_receipt_;
  t.decode = decode_receipt_;
  if (!silent_) ctx.out->to_clients.emplace_back(client_, std::move(done));
  ++ctx.counters.finished;
  prefill_ = decode_ = WorkerId{};
  phase_ = Phase::kEnded;
}

void FrontRequest::OnHandoffFailed(WorkerId from, const HandoffFailed& event, const FrontContext& ctx) {
  if (from != prefill_ || phase_ != Phase::kPrefilling) return;
  ++ctx.counters.handoff_failures;
  const WorkerId d = decode_;
  switch (event.why) {
    case HandoffFailure::kBusyTooLong:
      if (ctx.options.rules.Holds(Rule::kL6)) {
        // Handed back once; the next time it is decoded where it is.
        decode_where_it_is_ = busy_++ > 0;
        where_it_is_ = prefill_;
        no_handoff_to_.insert(d);
      }
      return EndEpoch(Price::kFree, {}, "the decode worker stayed busy", ctx);
    case HandoffFailure::kRefused:
      no_handoff_to_.insert(d);
      return EndEpoch(Price::kBudget, {}, "the decode worker refused: " + event.detail, ctx);
    case HandoffFailure::kPeerLost:
      no_handoff_to_.insert(d);
      return EndEpoch(Price::kLoss, decode_process_, "the prefill worker lost the decode worker", ctx);
    case HandoffFailure::kTransfer:
      no_handoff_to_.insert(d);
      return EndEpoch(Price::kBudget, {}, "the transfer failed: " + event.detail, ctx);
    case HandoffFailure::kUndecided:
      return Adopt(Price::kLoss, decode_process_, ctx);
    case HandoffFailure::kNotAdmitted:
      no_handoff_to_.insert(d);
      return OnNotAdmitted(UnavailableError(event.detail), "NO_WORKER", ctx);
  }
}

void FrontRequest::OnChildFailed(WorkerId from, const ChildFailed& event, const FrontContext& ctx) {
  if (phase_ == Phase::kSettling) return;
  if (from != decode_ && phase_ != Phase::kPrefilling) return;  // P let go of it already
  const std::string where = from == decode_ ? decode_process_.name : prefill_process_.name;
  const Status why = event.why.Annotate(where);
  switch (why.code()) {
    case Code::kResourceExhausted:
      return OnNotAdmitted(why, "WORKER_FULL", ctx);
    case Code::kUnavailable:
      excluded_.insert(from);
      return OnNotAdmitted(why, "NO_WORKER", ctx);
    case Code::kOk:
    case Code::kCancelled:
    case Code::kAborted:
    case Code::kDataLoss:
      excluded_.insert(from);
      return EndEpoch(Price::kBudget, {}, why.message(), ctx);
    case Code::kDeadlineExceeded:
      return Fail(why, "DEADLINE", {}, ctx);
    default:
      return Fail(why, "WORKER_FAILED", {}, ctx);
  }
}

// Nothing is lost and nobody is to blame: the worker is full, drains, or has another role by now. The next try waits
// until what the router knows of it has caught up.
void FrontRequest::OnNotAdmitted(const Status& why, const char* reason, const FrontContext& ctx) {
  if (++refused_by_worker_ > kMaxWorkerRefusals) return Fail(why, reason, kLastBackOff, ctx);
  const Duration back_off = std::min(kFirstBackOff * (1u << refused_by_worker_), kLastBackOff);
  EndEpoch(Price::kFree, {}, why.message(), ctx);
  if (phase_ == Phase::kQueued) not_before_ = ctx.now + back_off;
}

void FrontRequest::Adopt(Price price, const ProcessId& lost, const FrontContext& ctx) {
  if (!ctx.options.rules.Holds(Rule::kL7)) return;
  ++ctx.counters.adopts;
  adopt_price_ = price;
  adopt_lost_ = lost;
  phase_ = Phase::kAdopting;
  wait_until_ = ctx.now + ctx.options.limits.adopt_deadline;
  ctx.sessions.Send(decode_, AdoptCommand{child_, epoch_, !hits_.empty()}, ctx.out);
}

void FrontRequest::OnWorkerLost(const WorkerSession& session, const FrontContext& ctx) {
  if (phase_ == Phase::kEnded || !DependsOn(session.worker)) return;
  if (phase_ == Phase::kSettling) return EmitDone(ctx);
  const ProcessId& process = session.self.process;
  if (migration_ && session.worker == migration_->to) {
    if (migration_->step != Migration::Step::kAskSource) AskSource(Price::kLoss, process, ctx);
    return;
  }
  if (session.worker == decode_) {
    if (phase_ == Phase::kDecoding && Poisoned(session, ctx)) return;
    if (migration_ && migration_->step != Migration::Step::kAskSource) return AskTarget(Price::kLoss, process, ctx);
    return EndEpoch(Price::kLoss, process, "worker " + process.name + " was lost", ctx);
  }
  if (phase_ == Phase::kPrefilling) {
    if (Poisoned(session, ctx)) return;
    prefill_ = WorkerId{};
    return Adopt(Price::kLoss, process, ctx);
  }
  prefill_ = WorkerId{};
}

bool FrontRequest::Poisoned(const WorkerSession& session, const FrontContext& ctx) {
  if (session.draining || session.stuck || !ctx.options.rules.Holds(Rule::kL8)) return false;
  // A first hit only makes it run apart, so having run there is enough. From then on its workers tell when it is in
  // a step, and the next hit is exact.
  const uint64_t before = session.worker == decode_ ? decode_steps_ : prefill_steps_;
  const std::vector<ChildId>& in_step = session.once_hit_in_step;
  const bool launched = hits_.empty() ? emitted_ || handed_off_ || session.steps > before
                                      : std::find(in_step.begin(), in_step.end(), child_) != in_step.end();
  if (!launched) return false;
  hits_.push_back({session.self.process, session.host, ctx.now});
  // A host that goes down takes several workers along: that counts once. A worker that was started again and died
  // again is no such case.
  size_t count = 0;
  for (size_t i = 0; i < hits_.size(); ++i) {
    const std::span<const Hit> before(hits_.data(), i);
    const bool again = std::any_of(before.begin(), before.end(),
                                   [&](const Hit& h) { return h.process.name == hits_[i].process.name; });
    const bool same_crash = std::any_of(before.begin(), before.end(), [&](const Hit& h) {
      return h.host == hits_[i].host && hits_[i].at - h.at < kDeathsOnOneHost;
    });
    if (again || !same_crash) ++count;
  }
  if (count < 2) return false;
  ++ctx.counters.poisoned;
  spdlog::error("request {} ({}): was in a running step at {} worker deaths; it is not tried again", ToString(child_),
                request_id_, count);
  Fail(InternalError("request " + request_id_ + " was running on two workers that died; it is not tried again"),
       "POISON", {}, ctx);
  return true;
}

void FrontRequest::TakeBackHit(const ProcessId& process) {
  std::erase_if(hits_, [&](const Hit& h) { return h.process == process; });
}

// ---- epochs and ends ----------------------------------------------------------------------------

void FrontRequest::ReleaseEpoch(bool tell_workers, const FrontContext& ctx) {
  if (decode_ == WorkerId{}) return;
  for (const WorkerId w : {prefill_, decode_}) {
    if (tell_workers && w != WorkerId{}) cancels_.emplace_back(w, epoch_);
  }
  if (migration_) {
    // The source ends its part of it with epoch_; what it has said to the reader by then ends there.
    cancels_.emplace_back(migration_->to, migration_->epoch);
    EndMigration(ctx);
  }
  ctx.router.Ended(child_, epoch_);
  prefill_ = decode_ = WorkerId{};
}

bool FrontRequest::Afford(Price price, const ProcessId& lost, const FrontContext& ctx) {
  if (price == Price::kFree || !ctx.options.rules.Holds(Rule::kL8)) return true;
  if (price == Price::kLoss && losses_.insert(lost).second) return true;
  if (budget_used_ >= ctx.options.limits.retry_budget || !ctx.budget.Take()) return false;
  ++budget_used_;
  return true;
}

void FrontRequest::EndEpoch(Price price, const ProcessId& lost, const std::string& why, const FrontContext& ctx) {
  spdlog::debug("request {} ({}): epoch {} ends after {} tokens: {}", ToString(child_), request_id_, epoch_,
                tokens_.size(), why);
  ReleaseEpoch(/*tell_workers=*/true, ctx);
  phase_ = Phase::kQueued;
  wait_until_ = ctx.now + ctx.options.limits.replace_wait;
  not_before_ = {};
  if (Afford(price, lost, ctx)) return;
  const std::string message = "no retries are left: " + why;
  const Duration hint = std::chrono::seconds(1);
  if (tokens_.empty()) return Fail(UnavailableError(message), "WORKER_LOST", hint, ctx);
  Fail(AbortedError(message), "GENERATION_LOST", hint, ctx);
}

void FrontRequest::Fail(Status status, std::string reason, Duration retry_after, const FrontContext& ctx) {
  if (phase_ == Phase::kEnded) return;
  if (phase_ == Phase::kSettling) return EmitDone(ctx);  // the answer is complete: nothing can fail it
  ReleaseEpoch(/*tell_workers=*/true, ctx);
  phase_ = Phase::kEnded;
  ++(status.code() == Code::kCancelled ? ctx.counters.cancelled : ctx.counters.failed);
  if (silent_) return;
  ctx.out->to_clients.emplace_back(client_, Failed{std::move(status), std::move(reason), request_id_, retry_after});
}

void FrontRequest::Cancel(bool tell_client, const FrontContext& ctx) {
  silent_ = silent_ || !tell_client;
  Fail(CancelledError("cancelled by the client"), "CANCELLED", {}, ctx);
}

void FrontRequest::OnTimer(const FrontContext& ctx) {
  if (not_before_ <= ctx.now) not_before_ = {};
  if (phase_ != Phase::kEnded && phase_ != Phase::kSettling && deadline_ <= ctx.now) {
    return Fail(
        DeadlineExceededError(fmt::format("after {} tokens in {:.3f} s", tokens_.size(), Seconds(ctx.now - arrival_))),
        "DEADLINE", {}, ctx);
  }
  if (wait_until_ > ctx.now) return;
  switch (phase_) {
    case Phase::kQueued: {
      const std::string message = "no fit worker came within the wait of a request that had started";
      if (tokens_.empty()) return Fail(UnavailableError(message), "NO_WORKER", std::chrono::seconds(1), ctx);
      return Fail(AbortedError(message), "GENERATION_LOST", std::chrono::seconds(1), ctx);
    }
    case Phase::kAdopting:
      return EndEpoch(adopt_price_, adopt_lost_, "the decode worker did not answer", ctx);
    case Phase::kSettling:
      return EmitDone(ctx);
    case Phase::kDecoding:
      if (migration_) EndEpoch(adopt_price_, adopt_lost_, "nobody said where a migration ended", ctx);
      return;
    case Phase::kPrefilling:
    case Phase::kEnded:
      return;
  }
}

TimePoint FrontRequest::NextTimer() const {
  if (phase_ == Phase::kEnded) return kNever;
  TimePoint t = phase_ == Phase::kSettling ? wait_until_ : std::min(deadline_, wait_until_);
  if (phase_ == Phase::kQueued && not_before_ != TimePoint{}) t = std::min(t, not_before_);
  return t;
}

}  // namespace baton
