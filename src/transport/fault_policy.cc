#include "transport/fault_policy.h"

#include "baton/check.h"

namespace baton {
namespace {
bool IsProbability(double p) { return p >= 0 && p <= 1; }
}  // namespace

FaultPolicy::FaultPolicy(uint64_t seed, FaultRates rates) : rates_(rates), rng_(seed) {
  const FaultRates& r = rates_;
  for (double p : {r.post_delay, r.post_truncate, r.post_fail, r.post_never, r.notice_delay, r.notice_drop,
                   r.notice_duplicate, r.post_delay + r.post_truncate + r.post_fail + r.post_never,
                   r.notice_delay + r.notice_drop + r.notice_duplicate}) {
    BATON_CHECK(IsProbability(p), "fault rates must be probabilities that sum to at most 1");
  }
  BATON_CHECK(r.min_delay >= Duration{} && r.min_delay <= r.max_delay, "min_delay <= max_delay");
}

Duration FaultPolicy::DrawDelay() {
  const auto span = static_cast<uint64_t>((rates_.max_delay - rates_.min_delay).count()) + 1;
  return rates_.min_delay + Duration(static_cast<int64_t>(rng_.Below(span)));
}

Fault FaultPolicy::Decide(FaultPoint point) {
  // Both draws are always made, so that changing one rate does not shift the later decisions of a seed.
  double u = rng_.Unit();
  const Duration delay = DrawDelay();
  const auto hits = [&u](double p) {
    if (u < p) return true;
    u -= p;
    return false;
  };
  const auto fault = [delay](FaultKind kind) {
    const bool timed = kind == FaultKind::kDelay || kind == FaultKind::kDuplicate;
    return Fault{kind, timed ? delay : Duration{}};
  };
  if (point == FaultPoint::kPost) {
    if (++posts_ == rates_.nth_post) return fault(rates_.nth_post_fault);
    if (hits(rates_.post_delay)) return fault(FaultKind::kDelay);
    if (hits(rates_.post_truncate)) return fault(FaultKind::kTruncate);
    if (hits(rates_.post_fail)) return fault(FaultKind::kFail);
    if (hits(rates_.post_never)) return fault(FaultKind::kNeverComplete);
    return {};
  }
  if (++notices_ == rates_.nth_notice) return fault(rates_.nth_notice_fault);
  if (hits(rates_.notice_delay)) return fault(FaultKind::kDelay);
  if (hits(rates_.notice_drop)) return fault(FaultKind::kDrop);
  if (hits(rates_.notice_duplicate)) return fault(FaultKind::kDuplicate);
  return {};
}

}  // namespace baton
