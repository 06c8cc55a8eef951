#include "transport/fake/fake_transport.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "transport/pieces.h"

namespace baton {
namespace {

// The pieces without the last quarter of their bytes (at least one byte less).
std::vector<CopyPiece> WithoutTail(const std::vector<CopyPiece>& pieces) {
  const uint64_t total = TotalBytes(pieces);
  uint64_t keep = total - std::max<uint64_t>(1, total / 4);
  std::vector<CopyPiece> out;
  for (CopyPiece piece : pieces) {
    if (keep == 0) break;
    piece.bytes = std::min(piece.bytes, keep);
    keep -= piece.bytes;
    out.push_back(piece);
  }
  return out;
}

}  // namespace

// Everything but the alarm is touched by the engine thread alone.
class FakeTransport::Faults {
 public:
  Faults(FaultPolicy policy, Waker* waker) : policy_(policy), waker_(waker), alarm_([this] { RunAlarm(); }) {}
  ~Faults() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    alarm_.join();
  }

  // What the inner transport shall be asked for, if anything.
  std::optional<TransferPost> OnPost(TransferPost post);
  void OnClose(const ProcessId& peer);
  // `raw` came from the inner transport; what is due goes to `out`.
  void Filter(std::vector<TransportEvent> raw, std::vector<TransportEvent>* out);
  void SetPool(std::span<const std::byte> pool) { pool_ = pool; }

 private:
  struct Held {
    TransportEvent event;
    TimePoint due;
  };
  struct Delayed {
    ProcessId reader;
    Duration delay;
  };
  void OnQuiesced(Quiesced event, std::vector<TransportEvent>* out);
  void OnArrival(const ChunkArrived& event, std::vector<TransportEvent>* out);
  void Hold(TransportEvent event, Duration delay);
  void ReleaseDue(std::vector<TransportEvent>* out);
  template <typename Match>
  void TakeHeld(Match match, std::vector<TransportEvent>* out);
  uint64_t DigestOf(const TransferPost& post) const;
  void RunAlarm();

  FaultPolicy policy_;
  Waker* const waker_;
  SteadyClock clock_;
  std::span<const std::byte> pool_;
  std::vector<TransportEvent> ready_;      // made here, not by the inner transport
  std::vector<Held> held_;                 // in the order of their arrival
  std::map<OpId, Delayed> delayed_;        // ops whose Quiesced will be held
  std::map<OpId, uint64_t> truncated_;     // op -> digest of all its bytes
  std::multimap<ProcessId, OpId> never_;   // swallowed until Close
  std::map<OpId, ProcessId> held_reader_;  // held Quiesced -> its peer

  std::mutex mutex_;  // of the alarm
  std::condition_variable changed_;
  std::vector<TimePoint> alarms_;
  bool stop_ = false;
  std::thread alarm_;
};

void FakeTransport::Faults::RunAlarm() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (alarms_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto next = std::min_element(alarms_.begin(), alarms_.end());
    const Duration wait = *next - clock_.Now();
    if (wait > Duration{}) {
      changed_.wait_for(lock, wait);
      continue;
    }
    alarms_.erase(next);
    waker_->Wake();
  }
}

uint64_t FakeTransport::Faults::DigestOf(const TransferPost& post) const {
  StreamHash64 hash;
  for (const CopyPiece& p : post.pieces) {
    if (p.source <= pool_.size() && p.bytes <= pool_.size() - p.source) hash.Add(pool_.subspan(p.source, p.bytes));
  }
  return hash.Digest();
}

std::optional<TransferPost> FakeTransport::Faults::OnPost(TransferPost post) {
  const Fault fault = policy_.Decide(FaultPoint::kPost);
  switch (fault.kind) {
    case FaultKind::kDelay:
      delayed_.emplace(post.op, Delayed{post.reader, fault.delay});
      return post;
    case FaultKind::kTruncate:
      if (TotalBytes(post.pieces) == 0) return post;
      truncated_.emplace(post.op, DigestOf(post));
      post.pieces = WithoutTail(post.pieces);
      return post;
    case FaultKind::kFail:
      ready_.push_back(Quiesced{post.op, UnavailableError("post: failed by the fault policy"), 0});
      waker_->Wake();
      return std::nullopt;
    case FaultKind::kNeverComplete:
      never_.emplace(post.reader, post.op);
      return std::nullopt;
    case FaultKind::kDeliver:
    case FaultKind::kDrop:
    case FaultKind::kDuplicate:
      return post;
  }
  return post;
}

void FakeTransport::Faults::OnClose(const ProcessId& peer) {
  const auto [first, last] = never_.equal_range(peer);
  for (auto it = first; it != last; ++it) {
    ready_.push_back(Quiesced{it->second, CancelledError("closed by this side"), 0});
  }
  never_.erase(first, last);
  if (!ready_.empty()) waker_->Wake();
}

void FakeTransport::Faults::Hold(TransportEvent event, Duration delay) {
  const TimePoint due = clock_.Now() + delay;
  held_.push_back({std::move(event), due});
  {
    std::lock_guard lock(mutex_);
    alarms_.push_back(due);
  }
  changed_.notify_one();
}

void FakeTransport::Faults::OnQuiesced(Quiesced event, std::vector<TransportEvent>* out) {
  if (const auto it = truncated_.find(event.op); it != truncated_.end()) {
    if (event.status.ok()) event.digest = it->second;
    truncated_.erase(it);
  }
  const auto it = delayed_.find(event.op);
  if (it == delayed_.end()) {
    out->push_back(std::move(event));
    return;
  }
  held_reader_.emplace(event.op, it->second.reader);
  const Duration delay = it->second.delay;
  delayed_.erase(it);
  Hold(std::move(event), delay);
}

void FakeTransport::Faults::OnArrival(const ChunkArrived& event, std::vector<TransportEvent>* out) {
  const Fault fault = policy_.Decide(FaultPoint::kNotice);
  if (fault.kind == FaultKind::kDrop) return;
  if (fault.kind == FaultKind::kDelay) {
    Hold(event, fault.delay);
    return;
  }
  out->push_back(event);
  if (fault.kind == FaultKind::kDuplicate) Hold(event, fault.delay);
}

// Moves the held events that match to `out`, in order.
template <typename Match>
void FakeTransport::Faults::TakeHeld(Match match, std::vector<TransportEvent>* out) {
  std::vector<Held> keep;
  for (Held& held : held_) {
    if (!match(held)) {
      keep.push_back(std::move(held));
      continue;
    }
    if (const auto* quiesced = std::get_if<Quiesced>(&held.event)) held_reader_.erase(quiesced->op);
    out->push_back(std::move(held.event));
  }
  held_.swap(keep);
}

void FakeTransport::Faults::ReleaseDue(std::vector<TransportEvent>* out) {
  const TimePoint now = clock_.Now();
  TakeHeld([now](const Held& held) { return held.due <= now; }, out);
}

void FakeTransport::Faults::Filter(std::vector<TransportEvent> raw, std::vector<TransportEvent>* out) {
  for (TransportEvent& event : ready_) out->push_back(std::move(event));
  ready_.clear();
  ReleaseDue(out);
  for (TransportEvent& event : raw) {
    if (auto* quiesced = std::get_if<Quiesced>(&event)) {
      OnQuiesced(std::move(*quiesced), out);
    } else if (const auto* arrival = std::get_if<ChunkArrived>(&event)) {
      OnArrival(*arrival, out);
    } else if (const auto* quiet = std::get_if<Quiet>(&event)) {
      std::vector<TransportEvent> late;  // never delivered after Quiet
      TakeHeld(
          [quiet](const Held& held) {
            const auto* a = std::get_if<ChunkArrived>(&held.event);
            return a != nullptr && a->ticket == quiet->ticket;
          },
          &late);
      out->push_back(event);
    } else if (const auto* severed = std::get_if<Severed>(&event)) {
      TakeHeld(  // every Quiesced of the peer comes before Severed
          [this, severed](const Held& held) {
            const auto* q = std::get_if<Quiesced>(&held.event);
            return q != nullptr && held_reader_.at(q->op) == severed->peer;
          },
          out);
      out->push_back(event);
    } else {
      out->push_back(std::move(event));
    }
  }
}

FakeTransport::FakeTransport(std::unique_ptr<KvTransport> inner, FaultPolicy policy, Waker* waker)
    : inner_(std::move(inner)), faults_(std::make_unique<Faults>(policy, waker)) {}
FakeTransport::~FakeTransport() = default;

StatusOr<std::span<std::byte>> FakeTransport::AllocatePool(size_t bytes) {
  auto pool = inner_->AllocatePool(bytes);
  if (pool.ok()) faults_->SetPool(*pool);
  return pool;
}
std::vector<std::byte> FakeTransport::LocalDescriptor() const { return inner_->LocalDescriptor(); }
void FakeTransport::Open(const ProcessId& reader, std::span<const std::byte> descriptor) {
  inner_->Open(reader, descriptor);
}
void FakeTransport::Close(const ProcessId& peer) {
  faults_->OnClose(peer);
  inner_->Close(peer);
}
void FakeTransport::Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                          std::vector<uint64_t> block_bytes) {
  inner_->Admit(ticket, writer, std::move(block_base), std::move(block_bytes));
}
void FakeTransport::Retire(const Ticket& ticket) { inner_->Retire(ticket); }
void FakeTransport::Fence(const ProcessId& writer) { inner_->Fence(writer); }
void FakeTransport::Post(TransferPost post) {
  if (auto forward = faults_->OnPost(std::move(post))) inner_->Post(*std::move(forward));
}
void FakeTransport::Poll(std::vector<TransportEvent>* events) {
  std::vector<TransportEvent> raw;
  inner_->Poll(&raw);
  faults_->Filter(std::move(raw), events);
}

}  // namespace baton
