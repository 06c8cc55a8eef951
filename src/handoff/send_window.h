// What one writer may have under way to one reader, in bytes, and whose chunk goes next: the flow control of a pair.
// Pure. Always true: chunks of one child go in the order in which they became final; while anything waits, something
// is under way; and a child that waits is passed by `max_passed` bytes of others and one chunk of each at most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "handoff/writer_tickets.h"

namespace baton {

struct SendWindowOptions {
  // Enough to keep the fastest path busy while the engine thread is told and answers, and no more: a chunk that becomes
  // urgent waits for what is under way.
  uint64_t window_bytes = uint64_t{16} << 20;
  uint64_t max_passed = uint64_t{32} << 20;
};

// When the reader could begin to decode, were the bytes there: the end of the prompt, or, before it, where that lies
// at the pace so far.
TimePoint DecodeDue(const WriterChild& child, TimePoint now);

class SendWindow {
 public:
  struct Entry {
    WriterPost post;
    Ticket ticket;
    uint64_t bytes = 0;
  };

  explicit SendWindow(SendWindowOptions options = {}) : options_(options) {}

  // `due` holds for everything of the child that still waits.
  void Add(Entry entry, TimePoint due);
  // The next chunk that may go, which is under way from then on. Of children whose decode could begin already, the one
  // with the least left to send goes first, so that a short prompt does not wait for a long one; then the earliest due.
  std::optional<Entry> Next(TimePoint now);
  void Done(uint64_t bytes);  // of an entry from Next, however it ended
  void Drop(const ChildEpoch& key);

  uint64_t in_flight() const { return in_flight_; }
  uint64_t queued() const { return queued_; }
  uint64_t credit() const { return options_.window_bytes - std::min(options_.window_bytes, in_flight_); }
  bool idle() const { return flows_.empty() && in_flight_ == 0; }

 private:
  struct Flow {
    std::deque<Entry> entries;  // never empty
    TimePoint due{};
    uint64_t bytes = 0;
    uint64_t passed = 0;  // of others, since it last sent
  };
  using Flows = std::map<ChildEpoch, Flow>;
  Flows::iterator Pick(TimePoint now);

  SendWindowOptions options_;
  Flows flows_;
  uint64_t in_flight_ = 0, queued_ = 0;
};

}  // namespace baton
