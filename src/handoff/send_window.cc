#include "handoff/send_window.h"

#include <algorithm>

namespace baton {
namespace {

constexpr Duration kNominalPerToken = std::chrono::microseconds(200);  // before anything was measured

}  // namespace

TimePoint DecodeDue(const WriterChild& child, TimePoint now) {
  if (child.finished != kNever) return child.finished;
  const uint32_t done = std::min(child.tokens_done, child.reserve.num_tokens);
  const Duration per_token = done > 0 && child.begun != kNever ? (now - child.begun) / done : kNominalPerToken;
  return now + per_token * (child.reserve.num_tokens - done);
}

void SendWindow::Add(Entry entry, TimePoint due) {
  Flow& flow = flows_[entry.post.key];
  flow.due = due;
  flow.bytes += entry.bytes;
  queued_ += entry.bytes;
  flow.entries.push_back(std::move(entry));
}

SendWindow::Flows::iterator SendWindow::Pick(TimePoint now) {
  const auto before = [&](const Flow& a, const Flow& b) {
    const bool a_starves = a.passed >= options_.max_passed, b_starves = b.passed >= options_.max_passed;
    if (a_starves || b_starves) return a_starves && (!b_starves || a.passed > b.passed);
    const bool a_late = a.due <= now, b_late = b.due <= now;
    if (a_late != b_late) return a_late;
    if (a_late && a.bytes != b.bytes) return a.bytes < b.bytes;
    return a.due != b.due ? a.due < b.due : a.bytes < b.bytes;
  };
  auto best = flows_.begin();
  for (auto it = flows_.begin(); it != flows_.end(); ++it) {
    if (before(it->second, best->second)) best = it;
  }
  return best;
}

std::optional<SendWindow::Entry> SendWindow::Next(TimePoint now) {
  const auto it = Pick(now);
  if (it == flows_.end()) return std::nullopt;
  Flow& flow = it->second;
  const uint64_t bytes = flow.entries.front().bytes;
  // What does not fit waits for room rather than being passed by what does: large chunks would never go.
  if (in_flight_ > 0 && in_flight_ + bytes > options_.window_bytes) return std::nullopt;
  Entry entry = std::move(flow.entries.front());
  flow.entries.pop_front();
  flow.bytes -= bytes;
  queued_ -= bytes;
  in_flight_ += bytes;
  for (auto& [key, other] : flows_) other.passed += bytes;
  flow.passed = 0;
  if (flow.entries.empty()) flows_.erase(it);
  return entry;
}

void SendWindow::Done(uint64_t bytes) {
  BATON_CHECK(bytes <= in_flight_, "more bytes came back than were sent");
  in_flight_ -= bytes;
}

void SendWindow::Drop(const ChildEpoch& key) {
  const auto it = flows_.find(key);
  if (it == flows_.end()) return;
  queued_ -= it->second.bytes;
  flows_.erase(it);
}

}  // namespace baton
