// The writer's half of a UCX transport: links that this process opened, and the ops posted on them. Progress
// thread only. An op is posted in slices; it is complete once every byte is complete at the target (one-sided: stored
// in the mapped pool and fenced; receiver-posted: the reader's word for each data message), and only then is its
// notice sent and Quiesced reported. An op of a link that broke or was closed is reported after UCX let go of its
// source.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "baton/clock.h"
#include "baton/kv_transport.h"
#include "transport/counters.h"
#include "transport/event_queue.h"
#include "transport/ucx/context.h"
#include "transport/ucx/descriptor.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {

class UcxWriter {
 public:
  UcxWriter(UcxContext* context, const UcxOptions& options, EventQueue* events, AtomicTransportCounters* counters);
  ~UcxWriter();

  void Open(const ProcessId& reader, std::span<const std::byte> descriptor, TimePoint now);
  void Close(const ProcessId& peer);
  void Post(TransferPost post);
  void OnAnswer(std::span<const std::byte> message);
  void OnPlaced(std::span<const std::byte> message);

  bool Advance(TimePoint now);  // one slice of every link; true if anything was done
  bool Pending() const;         // something will happen soon: worth a short spin
  bool Closing(const ProcessId& peer) const;
  bool closing_any() const;
  TimePoint NextDeadline() const;
  void CloseAll();
  bool idle() const { return links_.empty(); }

 private:
  struct Batch;  // one data message
  struct Put;    // one put under a key, or the flush after an op's
  struct Op;
  struct Link;

  StatusOr<TransferMode> ChooseMode(const UcxDescriptor& remote) const;
  Status Connect(Link& link);
  std::string LaneOf(const Link& link) const;
  Link* FindOpen(const ProcessId& peer);
  Link* FindLink(uint64_t number);
  Status CheckTargets(const Op& op, const Link& link) const;
  bool AdvanceLink(Link& link, TimePoint now);
  bool PostSlice(Link& link, TimePoint now);
  void StoreSlice(Link& link, Op& op);
  bool PutSlice(Link& link, Op& op);
  bool Issue(Link& link, Op& op, void* request, std::unique_ptr<Put> put);
  bool SendBatch(Link& link, Op& op);
  bool ReapOps(Link& link);
  void Report(Op& op, Status status);
  void Lose(Link& link, Status why);
  void BeginClose(Link& link, Status why);
  void FinishLink(Link& link);
  static void OnPut(void* request, ucs_status_t status, void* user);
  static void OnBatchSent(void* request, ucs_status_t status, void* user);

  UcxContext* const context_;
  const UcxOptions& options_;
  EventQueue* const events_;
  AtomicTransportCounters* const counters_;
  const std::string host_;
  std::vector<std::unique_ptr<Link>> links_;
  size_t pending_ops_ = 0;
  TimePoint now_{};  // of the pass under way
};

}  // namespace baton
