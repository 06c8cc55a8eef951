#include "transport/digest_queue.h"

#include <utility>

namespace baton {
namespace {

constexpr uint64_t kSliceBytes = 1 << 20;

}  // namespace

void DigestQueue::Add(const ProcessId& writer, const LinkNotice& notice) {
  auto digest = std::make_unique<Digest>();
  if (digests_.size() >= kMaxDigests || notice.pieces.size() > kMaxPieces - pieces_ ||
      !admissions_->Begin(notice.ticket, writer, notice.pieces, &digest->places).ok()) {
    Count(counters_->notices_dropped);
    return;
  }
  pieces_ += digest->places.size();
  digest->arrival = {writer, notice.ticket, notice.chunk, notice.attempt, 0};
  digests_.push_back(std::move(digest));
}

bool DigestQueue::Slice() {
  if (digests_.empty()) return false;
  Digest& digest = *digests_.front();
  for (uint64_t bytes = 0; digest.next < digest.places.size() && bytes < kSliceBytes; ++digest.next) {
    digest.hash.Add(digest.places[digest.next]);
    bytes += digest.places[digest.next].size();
  }
  if (digest.next < digest.places.size()) return true;
  digest.arrival.digest = digest.hash.Digest();
  pieces_ -= digest.places.size();
  admissions_->EndWithArrival(digest.arrival);
  digests_.pop_front();
  return true;
}

}  // namespace baton
