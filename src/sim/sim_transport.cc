#include "sim/sim_transport.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace baton {
namespace {
constexpr Duration kOpenTimeout = std::chrono::milliseconds(500);
}  // namespace

SimTransport::SimTransport(SimFabric* fabric, ProcessId self, std::function<void()> wake)
    : fabric_(fabric), self_(std::move(self)), wake_(std::move(wake)) {
  fabric_->processes[self_] = this;
}

SimTransport::~SimTransport() {
  *alive_ = false;
  fabric_->processes.erase(self_);
}

StatusOr<std::span<std::byte>> SimTransport::AllocatePool(size_t bytes) {
  pool_.assign(bytes, std::byte{0});
  return std::span<std::byte>(pool_);
}

void SimTransport::Report(TransportEvent event) {
  events_.push_back(std::move(event));
  wake_();
}

void SimTransport::Poll(std::vector<TransportEvent>* events) {
  for (TransportEvent& e : events_) events->push_back(std::move(e));
  events_.clear();
}

void SimTransport::Open(const ProcessId& reader, std::span<const std::byte>) {
  const bool held = fabric_->Held(self_, reader) || fabric_->Held(reader, self_);
  fabric_->loop->After(held ? kOpenTimeout : fabric_->latency, [this, reader, held, alive = alive_] {
    if (!*alive) return;
    const bool there = !held && fabric_->processes.count(reader) > 0;
    if (there) open_peers_[reader] = fabric_->loop->Now();
    Report(PeerOpened{reader, there ? OkStatus() : UnavailableError("no such process"), fabric_->mode});
  });
}

void SimTransport::Close(const ProcessId& peer) {
  open_peers_.erase(peer);
  fabric_->loop->After(fabric_->latency, [this, peer, alive = alive_] {
    if (!*alive) return;
    std::vector<OpId> ops;
    for (const auto& [op, reader] : open_ops_) {
      if (reader == peer) ops.push_back(op);
    }
    for (const OpId op : ops) Complete(op, CancelledError("closed"), 0);
    Report(Severed{peer});
  });
}

void SimTransport::Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                         std::vector<uint64_t> block_bytes) {
  Admission& admission = admitted_[ticket];
  admission.writer = writer;
  admission.base.insert(admission.base.end(), block_base.begin(), block_base.end());
  admission.bytes.insert(admission.bytes.end(), block_bytes.begin(), block_bytes.end());
}

void SimTransport::Retire(const Ticket& ticket) {
  admitted_.erase(ticket);
  fabric_->loop->After(fabric_->latency, [this, ticket, alive = alive_] {
    if (*alive) Report(Quiet{ticket});
  });
}

// At the reader: the key is withdrawn and the link closed; the writer hears of it when it can.
void SimTransport::Fence(const ProcessId& writer) {
  fabric_->loop->After(fabric_->latency, [this, writer, alive = alive_] {
    if (!*alive) return;
    const TimePoint now = cut_[writer] = fabric_->loop->Now();
    Report(Fenced{writer});
    const TimePoint heard = (fabric_->held_until ? std::max(now, fabric_->held_until(self_, writer)) : now);
    fabric_->loop->At(heard + fabric_->latency, [fabric = fabric_, writer, reader = self_, now] {
      const auto it = fabric->processes.find(writer);
      if (it != fabric->processes.end()) it->second->PathCut(reader, now);
    });
  });
}

void SimTransport::PathCut(const ProcessId& reader, TimePoint at) {
  const auto it = open_peers_.find(reader);
  if (it == open_peers_.end() || it->second > at) return;
  open_peers_.erase(it);
  Report(PeerLost{reader, UnavailableError("the reader cut the path")});
}

void SimTransport::Complete(OpId op, Status status, uint64_t digest) {
  if (open_ops_.erase(op) == 0) return;
  Report(Quiesced{op, std::move(status), digest});
}

void SimTransport::Post(TransferPost post) {
  open_ops_[post.op] = post.reader;
  const Fault fault = Decide(FaultPoint::kPost, post.ticket);
  uint64_t bytes = 0;
  for (const CopyPiece& p : post.pieces) bytes += p.bytes;
  Duration wire = fabric_->latency + FromSeconds(bytes / fabric_->bytes_per_second);
  if (fault.kind == FaultKind::kDelay) wire += fault.delay;
  if (fault.kind == FaultKind::kNeverComplete) return;
  const auto link = open_peers_.find(post.reader);
  const TimePoint opened = link == open_peers_.end() ? TimePoint{} : link->second;
  fabric_->loop->After(wire, [this, post = std::move(post), fault, opened, alive = alive_] {
    if (*alive) Land(post, fault, opened);
  });
}

Fault SimTransport::Decide(FaultPoint point, const Ticket& ticket) {
  const Fault fault = fabric_->faults->Decide(point);
  if (fault.kind != FaultKind::kDeliver && fabric_->on_fault) fabric_->on_fault(point, fault.kind, ticket);
  return fault;
}

void SimTransport::Land(const TransferPost& post, Fault fault, TimePoint opened) {
  const auto reader = fabric_->processes.find(post.reader);
  // A severed op's source is no longer read.
  if (open_ops_.count(post.op) == 0) return;
  if (fabric_->Held(self_, post.reader)) {
    return fabric_->loop->At(fabric_->held_until(self_, post.reader) + fabric_->latency,
                             [this, post, fault, opened, alive = alive_] {
                               if (*alive) Land(post, fault, opened);
                             });
  }
  if (reader == fabric_->processes.end() || fault.kind == FaultKind::kFail) {
    if (open_peers_.erase(post.reader) > 0 && reader == fabric_->processes.end()) {
      Report(PeerLost{post.reader, UnavailableError("the peer is gone")});
    }
    return Complete(post.op, UnavailableError("the transfer failed"), 0);
  }
  SimTransport& target = *reader->second;
  const auto cut = target.cut_.find(self_);
  if (cut != target.cut_.end() && opened <= cut->second) {
    return Complete(post.op, UnavailableError("the reader cut the path"), 0);
  }
  StreamHash64 digest;
  const auto admission = target.admitted_.find(post.ticket);
  const bool one_sided = fabric_->mode != TransferMode::kReceiverPosted;
  uint64_t placed = 0;
  for (size_t i = 0; i < post.pieces.size(); ++i) {
    const CopyPiece& p = post.pieces[i];
    digest.Add({pool_.data() + p.source, p.bytes});
    if (!one_sided && admission == target.admitted_.end()) continue;  // the receiver drops it
    if (fault.kind == FaultKind::kTruncate && i + 1 == post.pieces.size()) continue;
    const uint64_t base = one_sided ? post.target_base[p.target_block] : admission->second.base[p.target_block];
    std::memcpy(target.pool_.data() + base + p.target_offset, pool_.data() + p.source, p.bytes);
    placed += p.bytes;
  }
  if (placed > 0 && fabric_->on_landed) fabric_->on_landed(post.reader, post.ticket, placed);
  if (fabric_->Held(post.reader, self_)) {
    // The bytes are there, and the notice may be; that they are comes back when the cut heals.
    fabric_->loop->At(fabric_->held_until(post.reader, self_) + fabric_->latency,
                      [this, op = post.op, sum = digest.Digest(), alive = alive_] {
                        if (*alive) Complete(op, OkStatus(), sum);
                      });
  } else {
    Complete(post.op, OkStatus(), digest.Digest());
  }
  const Fault notice = Decide(FaultPoint::kNotice, post.ticket);
  if (notice.kind != FaultKind::kDrop) SendNotice(post, notice.kind == FaultKind::kDelay ? notice.delay : Duration(0));
  if (notice.kind == FaultKind::kDuplicate) SendNotice(post, notice.delay);
}

void SimTransport::SendNotice(const TransferPost& post, Duration delay) {
  const TimePoint sent = fabric_->held_until ? std::max(fabric_->loop->Now(), fabric_->held_until(self_, post.reader))
                                             : fabric_->loop->Now();
  fabric_->loop->At(sent + fabric_->latency + delay, [fabric = fabric_, post] {
    const auto it = fabric->processes.find(post.reader);
    if (it != fabric->processes.end()) it->second->Notice(post);
  });
}

void SimTransport::Notice(const TransferPost& post) {
  const auto admission = admitted_.find(post.ticket);
  if (admission == admitted_.end()) return;
  StreamHash64 digest;
  for (const CopyPiece& p : post.pieces) {
    digest.Add({pool_.data() + admission->second.base[p.target_block] + p.target_offset, p.bytes});
  }
  Report(ChunkArrived{admission->second.writer, post.ticket, post.chunk, post.attempt, digest.Digest()});
}

}  // namespace baton
