// Orders of operators to workers: drain, admit again, change the role. An order is placed by at once, told to the
// worker, and over when the worker has confirmed it (a drain: when nothing lives there any more).
//
// Always true: every order ends with exactly one update that is the last, at its deadline at the latest; an order that
// was sent stands, whoever waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "front/front.h"
#include "front/sessions.h"

namespace baton {

// What Operations reaches while it handles one input.
struct OperationContext {
  Router& router;
  Sessions& sessions;
  TimePoint now;
  FrontOutput* out;
  // Requests of this front: that depend on a worker, or all.
  std::function<uint32_t(WorkerId)> requests_on;
  uint32_t all_requests = 0;
};

class Operations {
 public:
  static constexpr size_t kMaxPending = 256;
  static constexpr Duration kLookEvery = std::chrono::milliseconds(200);  // progress is told at most so often
  static constexpr Duration kLongestWait = std::chrono::hours(1);

  // Orders to a worker. An order for the whole router begins with drain_router.
  void Begin(const DrainOrder& order, const OperationContext& ctx);
  void Begin(const RoleOrder& order, const OperationContext& ctx);
  void Forget(OperatorHandle handle) { pending_.erase(handle); }

  void OnHeartbeat(WorkerId worker, const OperationContext& ctx);
  void OnWorkerLost(const WorkerSession& session, const OperationContext& ctx);
  // A request ended, or time passed.
  void Look(const OperationContext& ctx);
  TimePoint NextTimer() const { return next_look_; }

  bool router_drains() const { return router_drains_; }
  bool idle() const { return pending_.empty(); }

 private:
  enum class Kind : uint8_t { kDrain, kUndo, kRole };
  struct Pending {
    Kind kind{};
    WorkerId worker{};  // 0: the whole router
    std::string name;
    RoleMask roles;
    uint64_t order = 0;
    TimePoint begun{}, deadline{}, next_progress{};
    OrderUpdate told;  // as last told
  };
  bool IsFull(OperatorHandle handle, const OperationContext& ctx) const;
  // The worker of that name, or the order's end in words.
  const WorkerSession* Find(OperatorHandle handle, const std::string& name, const OperationContext& ctx) const;
  bool MayGo(OperatorHandle handle, WorkerId worker, const std::string& name, const char* order,
             const OperationContext& ctx) const;
  void Add(OperatorHandle handle, Pending pending, Duration wait, const OperationContext& ctx);
  OrderUpdate Describe(const Pending& p, const OperationContext& ctx) const;
  // True: it has ended.
  bool Judge(OperatorHandle handle, Pending* p, const OperationContext& ctx);
  static void End(OperatorHandle handle, Status status, const OperationContext& ctx);

  std::map<OperatorHandle, Pending> pending_;
  uint64_t next_order_ = 1;
  bool router_drains_ = false;
  TimePoint next_look_ = kNever;
};

}  // namespace baton
