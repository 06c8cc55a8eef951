// The reader's half of a gRPC transport: streams that writers opened to this process. Progress thread only. Bytes are
// copied from the stream into the blocks of an admitted ticket while their frame is handled, and answered; those of
// another ticket are dropped. So nothing is ever half placed between two events: Retire is Quiet at once.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "baton/clock.h"
#include "baton/kv_transport.h"
#include "transport/admission_table.h"
#include "transport/counters.h"
#include "transport/digest_queue.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/grpc/streams.h"

namespace baton {

class GrpcReader {
 public:
  GrpcReader(GrpcStreams* streams, const GrpcOptions& options, uint64_t instance, AdmissionTable* admissions,
             AtomicTransportCounters* counters);

  void OnEvent(const StreamEvent& event, TimePoint now);  // of an accepted stream
  void Close(const ProcessId& peer);
  void CheckDeadlines(TimePoint now);  // streams that never say who they are
  TimePoint NextDeadline() const;
  DigestQueue& digests() { return digests_; }

 private:
  struct Link {
    StreamId stream{};
    uint64_t number = 0;
    ProcessId writer;  // since Hello
    TimePoint hello_deadline = kNever;
    bool writing = false;
    std::deque<Frame> out;
  };

  Status OnFrame(Link& link, const StreamEvent& event);
  Status OnHello(Link& link, std::span<const std::byte> header);
  Status OnData(Link& link, ReceivedFrame& frame);
  Status OnNotice(Link& link, std::span<const std::byte> header);
  Status Send(Link& link, LinkMessage kind, std::span<const std::byte> header);
  void Pump(Link& link);

  GrpcStreams* const streams_;
  const GrpcOptions& options_;
  const uint64_t instance_;
  AdmissionTable* const admissions_;
  AtomicTransportCounters* const counters_;
  DigestQueue digests_;
  std::map<StreamId, Link> links_;
};

}  // namespace baton
