// Notices whose chunks are being digested as they lie in this pool: the last step of every reader that is posted to.
// In slices, so that a large chunk delays nobody's bytes by more than one. Progress thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/hash.h"
#include "transport/admission_table.h"
#include "transport/counters.h"
#include "transport/link_messages.h"

namespace baton {

class DigestQueue {
 public:
  static constexpr size_t kMaxDigests = 1 << 16;
  static constexpr size_t kMaxPieces = 1 << 22;  // of all digests that wait

  // Both must outlive the queue.
  DigestQueue(AdmissionTable* admissions, AtomicTransportCounters* counters)
      : admissions_(admissions), counters_(counters) {}

  // Dropped and counted, if `writer` may not write the ticket now or too much waits.
  void Add(const ProcessId& writer, const LinkNotice& notice);
  // Digests one slice; false: nothing waits.
  bool Slice();
  bool empty() const { return digests_.empty(); }

 private:
  struct Digest {
    ChunkArrived arrival;
    std::vector<std::span<std::byte>> places;
    size_t next = 0;
    StreamHash64 hash;
  };

  AdmissionTable* const admissions_;
  AtomicTransportCounters* const counters_;
  std::deque<std::unique_ptr<Digest>> digests_;
  size_t pieces_ = 0;
};

}  // namespace baton
