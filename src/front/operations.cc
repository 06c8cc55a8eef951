#include "front/operations.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "baton/check.h"

namespace baton {
namespace {

constexpr size_t kMostNames = 20;  // in a message

const char* RoleName(const RoleMask& roles) {
  return roles.prefill && roles.decode ? "unified" : roles.decode ? "decode" : "prefill";
}

}  // namespace

void Operations::End(OperatorHandle handle, Status status, const OperationContext& ctx) {
  OrderUpdate update;
  update.last = true;
  update.changed = false;
  update.status = std::move(status);
  ctx.out->to_operators.emplace_back(handle, std::move(update));
}

bool Operations::IsFull(OperatorHandle handle, const OperationContext& ctx) const {
  if (pending_.size() < kMaxPending) return false;
  End(handle, ResourceExhaustedError(fmt::format("{} orders wait already, at most {}", pending_.size(), kMaxPending)),
      ctx);
  return true;
}

const WorkerSession* Operations::Find(OperatorHandle handle, const std::string& name,
                                      const OperationContext& ctx) const {
  if (IsFull(handle, ctx)) return nullptr;
  if (const WorkerSession* session = ctx.sessions.OfName(name)) return session;
  const std::vector<std::string> names = ctx.sessions.Names();
  std::string known;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) known += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostNames) known += fmt::format(" and {} more", names.size() - kMostNames);
  End(handle,
      NotFoundError(
          fmt::format("no worker \"{}\" is connected; {}", name, names.empty() ? "none is" : "connected: " + known)),
      ctx);
  return nullptr;
}

// Without this worker, could anything still be served?
bool Operations::MayGo(OperatorHandle handle, WorkerId worker, const std::string& name, const char* order,
                       const OperationContext& ctx) const {
  const Admission now = ctx.router.admission(worker);
  if (!now.roles.decode || now.draining || ctx.router.SomeDecoder(worker)) return true;
  End(handle,
      FailedPreconditionError(
          fmt::format("{} is the last worker that can decode: with it {}, every request would fail; "
                      "let another one decode first, or insist with force",
                      name, order)),
      ctx);
  return false;
}

void Operations::Add(OperatorHandle handle, Pending pending, Duration wait, const OperationContext& ctx) {
  pending.begun = ctx.now;
  pending.deadline = ctx.now + std::clamp<Duration>(wait, Duration(0), kLongestWait);
  const auto [it, added] = pending_.emplace(handle, std::move(pending));
  BATON_CHECK(added, "an operator's handle is used twice");
  if (Judge(handle, &it->second, ctx)) {
    pending_.erase(it);
    return;
  }
  next_look_ = std::min({next_look_, it->second.deadline, ctx.now + kLookEvery});
}

void Operations::Begin(const DrainOrder& order, const OperationContext& ctx) {
  Pending p;
  p.kind = order.undo ? Kind::kUndo : Kind::kDrain;
  if (order.router) {
    if (IsFull(order.handle, ctx)) return;
    p.told.changed = router_drains_ == order.undo;
    router_drains_ = !order.undo;
    return Add(order.handle, std::move(p), order.wait, ctx);
  }
  const WorkerSession* session = Find(order.handle, order.worker, ctx);
  if (session == nullptr) return;
  const WorkerId worker = session->worker;
  if (!order.undo && !order.force && !MayGo(order.handle, worker, order.worker, "draining", ctx)) return;
  Admission admission = ctx.router.admission(worker);
  p.told.changed = admission.draining == order.undo;
  admission.draining = !order.undo;
  p.worker = worker;
  p.name = order.worker;
  p.order = next_order_++;
  ctx.router.OnOrder(worker, p.order, admission);
  ctx.sessions.Send(worker, DrainCommand{p.order, order.undo}, ctx.out);
  Add(order.handle, std::move(p), order.wait, ctx);
}

void Operations::Begin(const RoleOrder& order, const OperationContext& ctx) {
  const WorkerSession* session = Find(order.handle, order.worker, ctx);
  if (session == nullptr) return;
  const WorkerId worker = session->worker;
  if (!order.roles.prefill && !order.roles.decode) {
    return End(order.handle, InvalidArgumentError("role: one of prefill, decode and unified is needed"), ctx);
  }
  if ((order.roles.prefill && !session->may.prefill) || (order.roles.decode && !session->may.decode)) {
    return End(order.handle,
               FailedPreconditionError(fmt::format("{} may not become a {} worker: its certificate is that of a {} worker",
                                                   order.worker, RoleName(order.roles), RoleName(session->may))),
               ctx);
  }
  if (session->self.address.empty() && !(order.roles.prefill && order.roles.decode)) {
    return End(order.handle,
               FailedPreconditionError(order.worker + " serves no other workers (it has no address that they could "
                                                      "dial), so it must do everything itself"),
               ctx);
  }
  if (!order.roles.decode && !order.force && !MayGo(order.handle, worker, order.worker, "a prefill worker", ctx)) {
    return;
  }
  Pending p;
  p.kind = Kind::kRole;
  Admission admission = ctx.router.admission(worker);
  p.told.changed = admission.roles != order.roles;
  admission.roles = order.roles;
  p.worker = worker;
  p.name = order.worker;
  p.roles = order.roles;
  p.order = next_order_++;
  ctx.router.OnOrder(worker, p.order, admission);
  ctx.sessions.Send(worker, SetRoleCommand{p.order, order.roles}, ctx.out);
  Add(order.handle, std::move(p), order.wait, ctx);
}

OrderUpdate Operations::Describe(const Pending& p, const OperationContext& ctx) const {
  OrderUpdate u;
  u.changed = p.told.changed;
  u.elapsed = ctx.now - p.begun;
  if (p.worker == WorkerId{}) {
    u.draining = router_drains_;
    u.requests = ctx.all_requests;
    u.empty = ctx.all_requests == 0;
    return u;
  }
  u.requests = ctx.requests_on(p.worker);
  if (const Heartbeat* h = ctx.router.heartbeat(p.worker)) {
    u.roles = h->roles;
    u.draining = h->draining;
    u.waiting = h->waiting;
    u.running = h->running;
    u.empty = h->idle && u.requests == 0;
  }
  return u;
}

bool Operations::Judge(OperatorHandle handle, Pending* p, const OperationContext& ctx) {
  OrderUpdate u = Describe(*p, ctx);
  const Heartbeat* h = ctx.router.heartbeat(p->worker);
  const bool router = p->worker == WorkerId{};
  const bool confirmed = router || (h != nullptr && h->order >= p->order);
  if (confirmed) {
    switch (p->kind) {
      case Kind::kDrain:
        u.last = u.empty || !u.draining;
        if (!u.draining) u.status = AbortedError("the drain was undone meanwhile");
        break;
      case Kind::kUndo:
        u.last = true;
        if (u.draining && !router) u.status = FailedPreconditionError(p->name + " is stopping: it drains for good");
        break;
      case Kind::kRole:
        u.last = true;
        if (u.roles != p->roles) {
          u.status = AbortedError(fmt::format("{} was made a {} worker meanwhile", p->name, RoleName(u.roles)));
        }
        break;
    }
  }
  // A drain that lasts is no failure: the counts say what is left.
  if (!u.last && p->deadline <= ctx.now) {
    u.last = true;
    if (!confirmed) {
      u.status = DeadlineExceededError(
          fmt::format("{} did not confirm the order in {:.3f} s; the order stands", p->name, Seconds(u.elapsed)));
    }
  }
  const bool news = u.last || p->next_progress == TimePoint{} || u.waiting != p->told.waiting ||
                    u.running != p->told.running || u.requests != p->told.requests;
  if (!u.last && (!news || ctx.now < p->next_progress || p->kind != Kind::kDrain)) return false;
  p->next_progress = ctx.now + kLookEvery;
  p->told = u;
  ctx.out->to_operators.emplace_back(handle, u);
  return u.last;
}

void Operations::OnHeartbeat(WorkerId worker, const OperationContext& ctx) {
  const Heartbeat* h = ctx.router.heartbeat(worker);
  for (auto it = pending_.begin(); it != pending_.end() && h != nullptr;) {
    Pending& p = it->second;
    // While it is busy, progress alone could be told: that has its own pace.
    const bool worth = p.worker == worker && h->order >= p.order && (p.kind != Kind::kDrain || h->idle || !h->draining);
    it = worth && Judge(it->first, &p, ctx) ? pending_.erase(it) : std::next(it);
  }
}

void Operations::OnWorkerLost(const WorkerSession& session, const OperationContext& ctx) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    Pending& p = it->second;
    if (p.worker != session.worker) {
      ++it;
      continue;
    }
    OrderUpdate u = Describe(p, ctx);
    u.last = u.left = true;
    // Gone is as empty as it gets.
    if (p.kind != Kind::kDrain) u.status = UnavailableError(p.name + " left before it confirmed the order");
    ctx.out->to_operators.emplace_back(it->first, std::move(u));
    it = pending_.erase(it);
  }
}

void Operations::Look(const OperationContext& ctx) {
  if (next_look_ > ctx.now) return;
  next_look_ = kNever;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (Judge(it->first, &it->second, ctx)) {
      it = pending_.erase(it);
      continue;
    }
    next_look_ = std::min({next_look_, it->second.deadline, ctx.now + kLookEvery});
    ++it;
  }
}

}  // namespace baton
