// The workers' sessions as the front holds them: which link is which worker, who supersedes whom, who is silent.
//
// Always true: at most one session per worker name; its incarnation is the highest ever admitted under that name.
// A newer start under the name of a live session waits as its contender: it takes the name when that session ends,
// and is refused once the older process proves that it lives.
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
  RoleMask may;        // what its certificate allows
  std::string host;    // of its address: deaths on one host within seconds count once (L8)
  uint64_t steps = 0;  // launched so far, as last heard; so are the next two
  std::vector<ChildId> once_hit_in_step;
  bool draining = false;
  bool stuck = false;  // a reader waits for its death (L9)
  TimePoint heard{};
  TimePoint expires{};  // silent beyond: hung
};

// A newer start that waits for a name.
struct Contender {
  LinkId link{};
  WorkerHello hello;
  TimePoint since{};
};

class Sessions {
 public:
  static constexpr size_t kMaxWorkers = 4096;
  // A heartbeat that comes so long after a contender's Hello was sent by a living process: what a dead one had sent
  // has arrived by then.
  static constexpr Duration kAliveAfter = std::chrono::seconds(1);

  // Whether a Hello may open a session, before anything changes: the one place that judges one. Not ok: close the link
  // with it. FAILED_PRECONDITION, whatever the same process would only say again; else it may try again.
  Status Admit(const WorkerHello& hello, const FrontOptions& options) const;
  // The live session of the Hello's name: the same process dialing anew, or a lower incarnation.
  const WorkerSession* OfName(const std::string& name) const;
  // Admit said yes and no session of the name is live.
  void Add(LinkId link, WorkerId worker, const WorkerHello& hello, TimePoint now, Duration hung_after);
  void Remove(WorkerId worker);

  // Admit said yes and another process's session of the name is live. Gives the contender that must make way.
  std::optional<Contender> Contend(Contender contender);
  // Who gets the name of a session that has ended.
  std::optional<Contender> TakeContender(const std::string& name);
  // The contender of a session that was just heard, once that proves it alive.
  std::optional<Contender> RefutedBy(const WorkerSession& session, TimePoint now);
  void ForgetContender(LinkId link);

  WorkerSession* Find(LinkId link);
  void MarkStuck(const ProcessId& process);  // nothing when it has no session
  const WorkerSession* Find(WorkerId worker) const;
  void OnHeartbeat(WorkerSession* session, const Heartbeat& heartbeat, TimePoint now, Duration hung_after);
  // Sessions that are silent beyond their limit.
  std::vector<WorkerId> Expired(TimePoint now) const;
  // A time by which Expired may give something; never later than the true one.
  TimePoint NextCheck() const { return next_check_; }
  void Rescan();  // after Expired: NextCheck becomes exact
  size_t size() const { return by_worker_.size(); }
  std::vector<std::string> Names() const;  // sorted

  // Appends a command for a worker; nothing when its session is gone.
  void Send(WorkerId worker, FrontCommand command, FrontOutput* out) const;

 private:
  std::map<WorkerId, WorkerSession> by_worker_;
  std::map<LinkId, WorkerId> by_link_;
  std::map<std::string, WorkerId> by_name_;
  std::map<std::string, Contender> contenders_;  // by name, of live sessions
  struct Seen {
    Incarnation incarnation;
    std::string address;
  };
  std::map<std::string, Seen> highest_;  // ever admitted
  TimePoint next_check_ = kNever;
};

}  // namespace baton
