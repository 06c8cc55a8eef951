#include "transport/grpc/writer.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "transport/grpc/descriptor.h"
#include "transport/pieces.h"

namespace baton {
namespace {

constexpr size_t kCopyBytes = 32 << 10;  // digested, then copied while they are in the cache

uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct GrpcWriter::Op {
  TransferPost post;
  std::vector<CopyPiece> pieces;
  size_t next = 0;      // first piece not yet sent in full
  uint64_t offset = 0;  // of it, sent
  StreamHash64 hash;
  std::vector<uint32_t> parts;  // bytes of each frame; 0: placed
  size_t unplaced = 0;          // frames
  bool sent = false;            // nothing more will be sent
  Status status;
};

struct GrpcWriter::Link {
  uint64_t number = 0;
  ProcessId peer;
  uint64_t instance = 0;
  StreamId stream{};
  uint32_t openers = 1;  // calls of Open that wait for the answer
  bool open = false;
  bool writing = false;
  TimePoint deadline = kNever;  // of the answer; then of the next progress, while anything is under way
  std::deque<Frame> control;
  std::deque<std::unique_ptr<Op>> waiting;
  std::map<OpId, std::unique_ptr<Op>> active;
  Op* current = nullptr;  // of active: being sent
  uint64_t in_flight = 0;
};

GrpcWriter::GrpcWriter(GrpcStreams* streams, const GrpcOptions& options, EventQueue* events,
                       AtomicTransportCounters* counters)
    : streams_(streams), options_(options), events_(events), counters_(counters) {}
GrpcWriter::~GrpcWriter() = default;

// ---- links --------------------------------------------------------------------------------------

GrpcWriter::Link* GrpcWriter::Find(const ProcessId& peer) {
  const auto it = std::find_if(links_.begin(), links_.end(), [&](auto& l) { return l->peer == peer; });
  return it == links_.end() ? nullptr : it->get();
}
GrpcWriter::Link* GrpcWriter::Find(StreamId stream) {
  const auto it = std::find_if(links_.begin(), links_.end(), [&](auto& l) { return l->stream == stream; });
  return it == links_.end() ? nullptr : it->get();
}

PeerOpened GrpcWriter::Opened(const ProcessId& reader, Status status) const {
  return {reader, std::move(status), TransferMode::kReceiverPosted, options_.tls.mutual() ? "tls" : "tcp"};
}

void GrpcWriter::Open(const ProcessId& reader, std::span<const std::byte> descriptor, TimePoint now) {
  if (Link* link = Find(reader)) {
    if (link->open) events_->Push(Opened(reader, OkStatus()));
    if (!link->open) ++link->openers;
    return;
  }
  auto remote = GrpcDescriptor::Parse(descriptor);
  Status status = remote.status();
  if (status.ok() && remote->encrypted != options_.tls.mutual()) {
    status = FailedPreconditionError(remote->encrypted
                                         ? "the reader takes KV over TLS alone, and this worker has no certificate"
                                         : "this worker sends KV over TLS alone, and the reader has no certificate");
  }
  if (!status.ok()) {
    events_->Push(Opened(reader, status.Annotate("open " + reader.name)));
    return;
  }
  auto link = std::make_unique<Link>();
  link->number = RandomNumber();
  link->peer = reader;
  link->instance = remote->instance;
  link->deadline = now + options_.open_timeout;
  link->stream = streams_->Dial(remote->address, reader.name);
  links_.push_back(std::move(link));
}

void GrpcWriter::OnEvent(const StreamEvent& event, std::span<const std::byte> pool, TimePoint now) {
  Link* link = Find(event.stream);
  if (link == nullptr) return;
  switch (event.kind) {
    case StreamEvent::Kind::kUp: {
      LinkHello hello{link->number, link->instance, options_.self, TransferMode::kReceiverPosted, {}};
      link->control.emplace_back(LinkMessage::kHello, hello.Encode());
      break;
    }
    case StreamEvent::Kind::kMessage:
      OnFrame(*link, event, now);
      link = Find(event.stream);  // it may be gone
      break;
    case StreamEvent::Kind::kWritten:
      link->writing = false;
      if (link->open) link->deadline = link->in_flight > 0 ? now + options_.op_timeout : kNever;
      break;
    case StreamEvent::Kind::kEnded:
      return Lose(*link, event.why);
    case StreamEvent::Kind::kWoken:
      break;
  }
  if (link != nullptr) Pump(*link, pool, now);
}

void GrpcWriter::OnFrame(Link& link, const StreamEvent& event, TimePoint now) {
  const auto frame = ReceivedFrame::Parse(event.parts);
  Status status = InvalidArgumentError("the reader sent a message that this release does not know");
  if (frame && frame->kind() == LinkMessage::kAnswer && !link.open) status = OnAnswer(link, frame->header());
  if (frame && frame->kind() == LinkMessage::kPlaced && link.open) status = OnPlaced(link, frame->header(), now);
  if (!status.ok()) Lose(link, status);
}

// S10: before a byte of KV is sent, the certificate must be that of the reader, and of a worker that decodes.
Status GrpcWriter::OnAnswer(Link& link, std::span<const std::byte> header) {
  const auto answer = LinkAnswer::Parse(header);
  if (!answer || answer->link != link.number) return InvalidArgumentError("the reader's answer is malformed");
  BATON_RETURN_IF_ERROR(answer->status);
  BATON_ASSIGN_OR_RETURN(const auto proven, streams_->Proven(link.stream));
  if (proven && (proven->name != link.peer.name || !proven->may().decode)) {
    return Status(Code::kPermissionDenied, "decode worker " + link.peer.name +
                                               " is expected, but the certificate is that of " +
                                               std::string(RoleName(proven->role)) + " " + proven->name);
  }
  link.open = true;
  link.deadline = kNever;
  for (; link.openers > 0; --link.openers) {
    events_->Push(Opened(link.peer, OkStatus()));
  }
  return OkStatus();
}

void GrpcWriter::Lose(Link& link, Status why) {
  if (link.open) Count(counters_->peers_lost);
  if (link.open) events_->Push(PeerLost{link.peer, why.Annotate("path to " + link.peer.name)});
  Drop(link, why);
}

void GrpcWriter::Drop(Link& link, const Status& why) {
  if (!link.open) {
    for (; link.openers > 0; --link.openers) {
      events_->Push(Opened(link.peer, why.Annotate("open " + link.peer.name)));
    }
  }
  streams_->End(link.stream, why);
  for (auto& [id, op] : link.active) Report(*op, why);
  for (auto& op : link.waiting) Report(*op, why);
  std::erase_if(links_, [&](auto& l) { return l.get() == &link; });
}

void GrpcWriter::Close(const ProcessId& peer) {
  if (Link* link = Find(peer)) Drop(*link, CancelledError("closed by this side"));
}

void GrpcWriter::CloseAll() {
  while (!links_.empty()) Drop(*links_.back(), CancelledError("the transport shuts down"));
}

void GrpcWriter::CheckDeadlines(TimePoint now) {
  for (size_t i = links_.size(); i-- > 0;) {
    Link& link = *links_[i];
    if (now < link.deadline) continue;
    Lose(link, DeadlineExceededError(!link.open ? "the reader did not answer"
                                                : "no progress for " + std::to_string(Seconds(options_.op_timeout)) +
                                                      " s with bytes under way"));
  }
}

TimePoint GrpcWriter::NextDeadline() const {
  TimePoint next = kNever;
  for (const auto& link : links_) next = std::min(next, link->deadline);
  return next;
}

// ---- ops ----------------------------------------------------------------------------------------

void GrpcWriter::Post(TransferPost post, std::span<const std::byte> pool, TimePoint now) {
  auto op = std::make_unique<Op>();
  op->post = std::move(post);
  ++pending_ops_;
  Link* link = Find(op->post.reader);
  if (link == nullptr || !link->open) {
    return Report(*op, FailedPreconditionError("post to " + op->post.reader.name + ": not open"));
  }
  if (pending_ops_ > options_.max_pending_ops) {
    return Report(*op, ResourceExhaustedError("post: " + std::to_string(options_.max_pending_ops) + " are pending"));
  }
  auto pieces = NormalizePieces(op->post.pieces, pool.size());
  if (!pieces.ok()) return Report(*op, pieces.status());
  op->pieces = *std::move(pieces);
  link->waiting.push_back(std::move(op));
  Pump(*link, pool, now);
}

void GrpcWriter::Report(Op& op, Status status) {
  --pending_ops_;
  Count(status.ok() ? counters_->ops_ok : counters_->ops_failed);
  if (status.ok()) Count(counters_->bytes_quiesced, TotalBytes(op.pieces));
  events_->Push(Quiesced{op.post.op, std::move(status), op.hash.Digest()});
}

// The op whose bytes go next, or nullptr. Ops keep their order.
GrpcWriter::Op* GrpcWriter::Current(Link& link) {
  while (link.open) {
    if (link.current == nullptr) {
      if (link.waiting.empty()) break;
      std::unique_ptr<Op> op = std::move(link.waiting.front());
      link.waiting.pop_front();
      const auto [it, fresh] = link.active.try_emplace(op->post.op, std::move(op));
      BATON_CHECK(fresh, "an op id was posted twice");
      link.current = it->second.get();
    }
    Op& op = *link.current;
    if (op.next < op.pieces.size() && op.status.ok()) return &op;
    op.sent = true;
    link.current = nullptr;
    FinishIfDone(link, op);
  }
  return nullptr;
}

// Writes what comes next, if nothing is being written: control first, then bytes within the window.
void GrpcWriter::Pump(Link& link, std::span<const std::byte> pool, TimePoint now) {
  if (link.writing) return;
  Op* const op = Current(link);  // first, for it may leave a notice
  Frame frame;
  if (!link.control.empty()) {
    frame = std::move(link.control.front());
    link.control.pop_front();
  } else if (op != nullptr && link.in_flight < options_.max_in_flight_bytes) {
    frame = NextFrame(link, *op, pool);
  } else {
    return;
  }
  link.writing = true;
  if (link.open && link.deadline == kNever) link.deadline = now + options_.op_timeout;
  streams_->Write(link.stream, std::move(frame));
}

Frame GrpcWriter::NextFrame(Link& link, Op& op, std::span<const std::byte> pool) {
  LinkData header{link.number, op.post.ticket, op.post.op, static_cast<uint32_t>(op.parts.size()), {}};
  std::vector<std::span<const std::byte>> sources;
  size_t bytes = 0;
  while (op.next < op.pieces.size() && header.pieces.size() < kMaxDataPieces && bytes < kFrameBytes) {
    const CopyPiece& piece = op.pieces[op.next];
    const uint64_t n = std::min<uint64_t>(piece.bytes - op.offset, kFrameBytes - bytes);
    sources.push_back(pool.subspan(piece.source + op.offset, n));
    header.pieces.push_back({piece.target_block, static_cast<uint32_t>(n), piece.target_offset + op.offset});
    bytes += n;
    op.offset += n;
    if (op.offset == piece.bytes) {
      ++op.next;
      op.offset = 0;
    }
  }
  Frame frame(LinkMessage::kData, header.Encode(), bytes);
  std::byte* to = frame.payload().data();
  for (std::span<const std::byte> from : sources) {
    for (; !from.empty(); from = from.subspan(std::min(from.size(), kCopyBytes))) {
      const auto block = from.first(std::min(from.size(), kCopyBytes));
      op.hash.Add(block);
      std::memcpy(to, block.data(), block.size());
      to += block.size();
    }
  }
  Count(counters_->pieces, sources.size());
  op.parts.push_back(static_cast<uint32_t>(bytes));
  ++op.unplaced;
  link.in_flight += bytes;
  return frame;
}

Status GrpcWriter::OnPlaced(Link& link, std::span<const std::byte> header, TimePoint now) {
  const auto placed = LinkPlaced::Parse(header);
  const auto it = placed ? link.active.find(placed->op) : link.active.end();
  if (it == link.active.end() || placed->link != link.number || placed->part >= it->second->parts.size() ||
      it->second->parts[placed->part] == 0) {
    return InvalidArgumentError("the reader answered for bytes that were not sent");
  }
  Op& op = *it->second;
  link.in_flight -= std::exchange(op.parts[placed->part], 0);
  --op.unplaced;
  if (op.status.ok()) op.status = placed->status;
  link.deadline = link.in_flight > 0 || link.writing ? now + options_.op_timeout : kNever;
  FinishIfDone(link, op);
  return OkStatus();
}

void GrpcWriter::FinishIfDone(Link& link, Op& op) {
  if (!op.sent || op.unplaced > 0) return;
  if (op.status.ok()) {
    LinkNotice notice{link.number, op.post.ticket, op.post.chunk, op.post.attempt, {}};
    notice.pieces.reserve(op.pieces.size());
    for (const CopyPiece& p : op.pieces) notice.pieces.push_back(TargetOf(p));
    link.control.emplace_back(LinkMessage::kNotice, notice.Encode());
  }
  Report(op, op.status);
  link.active.erase(op.post.op);
}

}  // namespace baton
