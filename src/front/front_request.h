// One client request from arrival to its end, across epochs and workers. The Front owns it, hands it the events of
// its current epoch and gives it placements; it says what to tell the client and the workers.
//
//   kQueued -placed-> kPrefilling (pair) | kDecoding (one worker)
//   kPrefilling -HandedOff, or D's first event-> kDecoding          it depends on D alone from here (S6)
//   kPrefilling -P lost, or HandoffFailed(undecided)-> kAdopting -Running, D's first event-> kDecoding (L7)
//   kPrefilling, kAdopting, kDecoding -the epoch ends-> kQueued      the next placement has the next epoch
//   kDecoding -Migrate-> kDecoding, in two epochs: the present one runs on until the first event of the next one (S11)
//   any -last token, stop string-> kSettling (only while P's receipt is near) -> kEnded
//   any -failure, cancel, deadline-> kEnded
//
// Always true: the client got tokens 0 .. n-1 once each, in order, and exactly one Done or Failed at the end; an
// epoch that ended, by whatever cause, is cancelled at every worker that held it; every phase but kEnded has a
// deadline (L1).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "front/answer_text.h"
#include "front/front.h"
#include "front/prepare.h"
#include "front/sessions.h"

namespace baton {

// L8: retries beyond the free ones, as a share of the requests of this front.
class ClusterRetryBudget {
 public:
  ClusterRetryBudget(double fraction, uint32_t burst) : fraction_(fraction), burst_(burst), left_(burst) {}
  void OnRequest() { left_ = left_ + fraction_ < kMost + burst_ ? left_ + fraction_ : kMost + burst_; }
  bool Take() {
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

 private:
  static constexpr double kMost = 1000;
  double fraction_;
  double burst_;
  double left_;
};

// What a FrontRequest reaches while it handles one input.
struct FrontContext {
  const FrontOptions& options;
  Router& router;
  Sessions& sessions;
  FrontCounters& counters;
  ClusterRetryBudget& budget;
  TimePoint now;
  FrontOutput* out;
};

class FrontRequest {
 public:
  enum class Phase : uint8_t { kQueued, kPrefilling, kAdopting, kDecoding, kSettling, kEnded };

  FrontRequest(ChildId child, ClientHandle client, std::string request_id, Prepared prepared,
               const Tokenizer* tokenizer, const FrontContext& ctx);

  // ---- placement: phase kQueued ----
  // One try. Stays kQueued, gets dispatched, or ends. True: another request may still be placed (this one was, or
  // its trouble is its own); false: no worker has a credit.
  bool TryPlace(const FrontContext& ctx);
  // Cancels of ended epochs, after the command of the next one where it could be placed at once: a worker that holds
  // both takes over the old blocks (HANDOFF: epoch).
  void FlushCancels(const FrontContext& ctx);
  bool may_try(TimePoint now) const { return phase_ == Phase::kQueued && not_before_ <= now; }

  // ---- migration: phase kDecoding ----
  bool RunsOn(WorkerId worker) const { return phase_ == Phase::kDecoding && decode_ == worker; }
  bool migrating() const { return migration_.has_value(); }
  // It decodes, and was not refused a moment ago.
  bool MayMigrate(TimePoint now) const;
  // False: no worker is fit for it now.
  bool TryMigrate(const FrontContext& ctx);

  // ---- events ----
  // True when `worker` is P or D of the current `epoch`.
  bool Holds(WorkerId worker, Epoch epoch) const;
  void OnEvent(WorkerId from, const ChildEvent& event, const FrontContext& ctx);
  // The session of a worker ended. `session` is what it was.
  void OnWorkerLost(const WorkerSession& session, const FrontContext& ctx);
  // L8: the same incarnation came back (its session was lost, it had not died), or its end is of another cause.
  void TakeBackHit(const ProcessId& process);
  void OnTimer(const FrontContext& ctx);
  TimePoint NextTimer() const;

  void Cancel(bool tell_client, const FrontContext& ctx);
  void Fail(Status status, std::string reason, Duration retry_after, const FrontContext& ctx);

  Phase phase() const { return phase_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  ChildId child() const { return child_; }
  ClientHandle client() const { return client_; }
  const std::string& request_id() const { return request_id_; }
  Epoch epoch() const { return epoch_; }
  int32_t priority() const { return request_->priority; }
  bool is_retry() const { return epoch_ > 0; }
  // P or D of the current epoch is `worker`.
  bool DependsOn(WorkerId worker) const {
    return prefill_ == worker || decode_ == worker || (migration_ && migration_->to == worker);
  }

 private:
  // What an ended epoch costs.
  enum class Price : uint8_t { kFree, kLoss, kBudget };

  // The answer on its way from decode_ to another worker. epoch_ is what counts until the first event of `epoch`.
  struct Migration {
    Epoch epoch = 0;
    WorkerId to{};
    ProcessId process;
    enum class Step : uint8_t {
      kMoving,
      kAskTarget,  // Adopt(epoch) was sent there: the source is lost, or does not know
      kAskSource,  // Adopt(epoch_) was sent there: the target has it not, or is lost
    } step{};
  };
  void OnMigrationEvent(WorkerId from, const ChildEvent& event, const FrontContext& ctx);
  void GoOnAtTarget(bool source_knows, const FrontContext& ctx);
  void GoOnAtSource(const FrontContext& ctx);
  void AskTarget(Price price, const ProcessId& lost, const FrontContext& ctx);
  void AskSource(Price price, const ProcessId& lost, const FrontContext& ctx);
  void EndMigration(const FrontContext& ctx);
  PlaceQuery QueryNow(const FrontContext& ctx);

  // tokens
  void OnToken(WorkerId from, const TokenEvent& event, const FrontContext& ctx);
  void Deliver(const TokenEvent& event, const FrontContext& ctx);
  void Finish(FinishReason reason, int64_t matched_token, bool worker_knows, std::string text, const OutputToken* last,
              const FrontContext& ctx);
  void EmitDelta(std::string text, const OutputToken* token, const FrontContext& ctx);
  void EmitDone(const FrontContext& ctx);
  // epochs
  void OnHandoffFailed(WorkerId from, const HandoffFailed& event, const FrontContext& ctx);
  void OnChildFailed(WorkerId from, const ChildFailed& event, const FrontContext& ctx);
  void OnNotAdmitted(const Status& why, const char* reason, const FrontContext& ctx);
  void DependOnDecodeOnly(const FrontContext& ctx);
  void Adopt(Price price, const ProcessId& lost, const FrontContext& ctx);
  void EndEpoch(Price price, const ProcessId& lost, const std::string& why, const FrontContext& ctx);
  bool Afford(Price price, const ProcessId& lost, const FrontContext& ctx);
  bool Poisoned(const WorkerSession& session, const FrontContext& ctx);
  void ReleaseEpoch(bool tell_workers, const FrontContext& ctx);
  void Dispatch(const Placement& placement, const PlaceQuery& query, const FrontContext& ctx);
  std::optional<Placement> DecodeWhereItIs(const FrontContext& ctx);
  bool OnRefused(const Refusal& refusal, const FrontContext& ctx);
  const std::map<Hash128, std::vector<Hash128>>& PageHashes(const FrontContext& ctx);
  void End() { phase_ = Phase::kEnded; }

  const ChildId child_;
  const ClientHandle client_;
  const std::string request_id_;
  const TimePoint arrival_;
  RequestPtr request_;
  Prepared spec_;  // its request is moved out
  const Tokenizer* tokenizer_;
  AnswerText text_;

  Phase phase_ = Phase::kQueued;
  bool silent_ = false;  // the client is gone
  bool started_told_ = false;
  std::vector<OutputToken> tokens_;  // what the client has; ids only

  // The current epoch. 0: none yet.
  Epoch epoch_ = 0;
  Epoch last_epoch_ = 0;                 // the highest that was ever named to a worker
  uint32_t dispatched_ = 0, moved_ = 0;  // placements, and migrations that ended well
  std::optional<Migration> migration_;
  WorkerId prefill_{};  // P of a pair, while the epoch may still hear of it
  WorkerId decode_{};   // D, or the worker that does everything
  ProcessId prefill_process_, decode_process_;
  bool disaggregated_ = false;
  bool handed_off_ = false;
  bool emitted_ = false;                           // some token came in this epoch
  uint64_t prefill_steps_ = 0, decode_steps_ = 0;  // of the workers, at dispatch
  Placement placement_;
  Receipt prefill_receipt_, decode_receipt_;
  bool prefill_receipt_came_ = false;

  // Across epochs.
  std::vector<std::pair<WorkerId, Epoch>> cancels_;  // not told yet
  std::set<ProcessId> losses_;                       // free losses already used
  struct Hit {
    ProcessId process;
    std::string host;
    TimePoint at;
  };
  std::vector<Hit> hits_;  // deaths while it was in a launched step
  uint32_t budget_used_ = 0;
  uint32_t busy_ = 0;  // hand-backs for BUSY
  uint32_t refused_by_worker_ = 0;
  bool decode_where_it_is_ = false;
  WorkerId where_it_is_{};
  Price adopt_price_ = Price::kFree;
  ProcessId adopt_lost_;
  std::set<WorkerId> excluded_, no_handoff_to_;
  std::map<Hash128, std::vector<Hash128>> pages_;  // numeric -> chain over prompt and tokens

  TimePoint deadline_;
  TimePoint wait_until_ = kNever;  // kQueued again, kAdopting, kSettling: until then
  TimePoint not_before_{};         // kQueued: not earlier
  TimePoint migrate_after_{};      // not earlier
  uint32_t migrations_failed_ = 0;
  std::set<WorkerId> no_migration_to_;
  TimePoint first_dispatch_ = kNever, first_token_ = kNever, last_token_ = kNever;
};

}  // namespace baton
