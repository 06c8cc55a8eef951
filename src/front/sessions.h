// The workers' sessions as the front holds them: which link is which worker, who supersedes whom, who is silent.
//
// Always true: at most one session per worker name; its incarnation is the highest ever seen under that name.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "baton/clock.h"
#include "baton/front_link.h"
#include "front/front.h"
#include "route/router.h"

namespace baton {

struct WorkerSession {
  LinkId link{};
  WorkerId worker{};
  PeerAddress self;
  std::string host;    // of its address: deaths on one host within seconds count once (L8)
  uint64_t steps = 0;  // launched so far, as last heard
  TimePoint heard{};
  TimePoint expires{};  // silent beyond: hung
};

class Sessions {
 public:
  static constexpr size_t kMaxWorkers = 4096;

  // Whether a Hello may open a session, before anything changes. Not ok: close the link with it.
  Status Admit(const WorkerHello& hello, const FrontOptions& options) const;
  // The live session that the Hello ends: the same process dialing anew, or a lower incarnation of its name.
  const WorkerSession* EndedBy(const WorkerHello& hello) const;
  // Admit said yes and the ended session was removed.
  void Add(LinkId link, WorkerId worker, const WorkerHello& hello, TimePoint now, Duration hung_after);
  void Remove(WorkerId worker);

  WorkerSession* Find(LinkId link);
  const WorkerSession* Find(WorkerId worker) const;
  void OnHeartbeat(WorkerSession* session, const Heartbeat& heartbeat, TimePoint now, Duration hung_after);
  // Sessions that are silent beyond their limit.
  std::vector<WorkerId> Expired(TimePoint now) const;
  // A time by which Expired may give something; never later than the true one.
  TimePoint NextCheck() const { return next_check_; }
  void Rescan();  // after Expired: NextCheck becomes exact
  size_t size() const { return by_worker_.size(); }

  // Appends a command for a worker; nothing when its session is gone.
  void Send(WorkerId worker, FrontCommand command, FrontOutput* out) const;

 private:
  std::map<WorkerId, WorkerSession> by_worker_;
  std::map<LinkId, WorkerId> by_link_;
  std::map<std::string, WorkerId> by_name_;
  std::map<std::string, Incarnation> highest_;  // ever seen
  TimePoint next_check_ = kNever;
};

}  // namespace baton
