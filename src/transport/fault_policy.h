// What goes wrong on a data path, decided from a seed: a pure value with no clock and no thread. FakeTransport
// drives it with threads, the simulator's transport with virtual time; the same seed gives the same decisions
// for the same sequence of questions.
#pragma once

#include <cstdint>

#include "base/rng.h"
#include "baton/clock.h"

namespace baton {

// Where a decision is asked for: one posted transfer on the writer, one chunk notice on the reader.
enum class FaultPoint : uint8_t { kPost, kNotice };

// kPost:   kDeliver, kDelay (its Quiesced is late), kTruncate (the notice comes although the tail of the bytes was
//          not written, so the digests differ), kFail (Quiesced with an error, nothing written), kNeverComplete
//          (no Quiesced until Close, nothing written).
// kNotice: kDeliver, kDelay, kDrop, kDuplicate (the second one after `delay`).
enum class FaultKind : uint8_t { kDeliver, kDelay, kDrop, kDuplicate, kTruncate, kFail, kNeverComplete };

struct Fault {
  FaultKind kind = FaultKind::kDeliver;
  Duration delay{};  // kDelay, kDuplicate
  friend bool operator==(const Fault&, const Fault&) = default;
};

// Probabilities in [0, 1]; those of one point sum to at most 1, the rest is kDeliver.
struct FaultRates {
  double post_delay = 0, post_truncate = 0, post_fail = 0, post_never = 0;
  double notice_delay = 0, notice_drop = 0, notice_duplicate = 0;
  Duration min_delay{}, max_delay{};  // of kDelay and kDuplicate, uniform
  // Beside the probabilities: exactly this post, counted from 1, meets nth_post_fault. 0: none.
  uint64_t nth_post = 0;
  FaultKind nth_post_fault = FaultKind::kFail;
  uint64_t nth_notice = 0;
  FaultKind nth_notice_fault = FaultKind::kDrop;
};

class FaultPolicy {
 public:
  // Aborts on rates that are no probabilities: a test's bug.
  FaultPolicy(uint64_t seed, FaultRates rates);
  Fault Decide(FaultPoint point);
  uint64_t asked(FaultPoint point) const { return point == FaultPoint::kPost ? posts_ : notices_; }

 private:
  Duration DrawDelay();
  FaultRates rates_;
  Rng rng_;
  uint64_t posts_ = 0;
  uint64_t notices_ = 0;
};

}  // namespace baton
