// The writer's half of a gRPC transport: links that this process opened, and the ops posted on them. Progress thread
// only. A source byte is read once, when its frame is made: digested and copied, so nothing reads it after Close. An
// op is complete when the reader has said for each of its frames that the bytes lie in place; then its notice is
// sent, ahead of every frame of bytes that waits, and Quiesced is reported.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "baton/clock.h"
#include "baton/kv_transport.h"
#include "transport/counters.h"
#include "transport/event_queue.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/grpc/streams.h"

namespace baton {

class GrpcWriter {
 public:
  GrpcWriter(GrpcStreams* streams, const GrpcOptions& options, EventQueue* events, AtomicTransportCounters* counters);
  ~GrpcWriter();

  // `pool` is this process's; it may be empty until the first Post.
  void Open(const ProcessId& reader, std::span<const std::byte> descriptor, TimePoint now);
  void Post(TransferPost post, std::span<const std::byte> pool, TimePoint now);
  void Close(const ProcessId& peer);  // its ops are reported
  void CloseAll();

  void OnEvent(const StreamEvent& event, std::span<const std::byte> pool, TimePoint now);  // of a dialed stream
  void CheckDeadlines(TimePoint now);
  TimePoint NextDeadline() const;

 private:
  struct Op;
  struct Link;

  PeerOpened Opened(const ProcessId& reader, Status status) const;
  Link* Find(const ProcessId& peer);
  Link* Find(StreamId stream);
  void OnFrame(Link& link, const StreamEvent& event, TimePoint now);
  Status OnAnswer(Link& link, std::span<const std::byte> header);
  Status OnPlaced(Link& link, std::span<const std::byte> header, TimePoint now);
  void Pump(Link& link, std::span<const std::byte> pool, TimePoint now);
  Op* Current(Link& link);
  Frame NextFrame(Link& link, Op& op, std::span<const std::byte> pool);
  void FinishIfDone(Link& link, Op& op);
  void Report(Op& op, Status status);
  void Lose(Link& link, Status why);
  void Drop(Link& link, const Status& why);

  GrpcStreams* const streams_;
  const GrpcOptions& options_;
  EventQueue* const events_;
  AtomicTransportCounters* const counters_;
  std::vector<std::unique_ptr<Link>> links_;
  size_t pending_ops_ = 0;
};

}  // namespace baton
