#include "transport/ucx/writer.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "transport/digest_copy.h"
#include "transport/pieces.h"
#include "transport/ucx/lanes.h"

namespace baton {
namespace {

constexpr uint64_t kSliceBytes = 1 << 20;  // posted per link between two calls of progress
constexpr uint64_t kBatchBytes = 4 << 20;  // of one data message
constexpr size_t kBatchPieces = 32;        // and its scatter list
constexpr uint64_t kEagerBytes = 8 << 10;  // up to here a data message needs no rendezvous

uint64_t RandomNumber() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct UcxWriter::Batch {
  Link* link = nullptr;
  Op* op = nullptr;
  std::vector<std::byte> header;  // UCX 1.13 reads it until the request completes
  std::vector<ucp_dt_iov_t> iov;
  uint64_t bytes = 0;
  bool sent = false;    // UCX no longer reads the source
  bool placed = false;  // the reader answered
};

struct UcxWriter::Put {
  UcxWriter* writer = nullptr;
  Link* link = nullptr;
  Op* op = nullptr;
  uint64_t bytes = 0;
};

struct UcxWriter::Op {
  TransferPost post;
  Link* link = nullptr;
  std::vector<CopyPiece> pieces;
  size_t next = 0;  // first piece not yet posted
  StreamHash64 hash;
  uint32_t waiting = 0;  // batches not yet complete
  bool posted = false;   // nothing more will be posted
  bool flushed = false;  // kKeyedPut: the flush was posted
  Status status;
  TimePoint deadline = kNever;  // moves with every progress
  std::vector<std::unique_ptr<Batch>> batches;
};

struct UcxWriter::Link {
  uint64_t number = 0;
  ProcessId peer;
  UcxDescriptor remote;
  TransferMode mode{};
  std::unique_ptr<UcxEndpoint> endpoint;
  ucp_rkey_h rkey = nullptr;    // of the pool, or of this link
  std::byte* mapped = nullptr;  // one-sided: the reader's pool in this process
  bool open = false;
  bool closing = false;
  Status why;  // it closes
  TimePoint open_deadline = kNever;
  std::deque<std::unique_ptr<Op>> waiting;
  std::map<OpId, std::unique_ptr<Op>> active;
  Op* current = nullptr;  // of active: being posted
  uint64_t in_flight = 0;
};

UcxWriter::UcxWriter(UcxContext* context, const UcxOptions& options, EventQueue* events,
                     AtomicTransportCounters* counters)
    : context_(context), options_(options), events_(events), counters_(counters), host_(ThisHost()) {}
UcxWriter::~UcxWriter() = default;

// ---- links --------------------------------------------------------------------------------------

UcxWriter::Link* UcxWriter::FindOpen(const ProcessId& peer) {
  for (auto& link : links_) {
    if (link->peer == peer && link->open && !link->closing) return link.get();
  }
  return nullptr;
}

UcxWriter::Link* UcxWriter::FindLink(uint64_t number) {
  for (auto& link : links_) {
    if (link->number == number && !link->closing) return link.get();
  }
  return nullptr;
}

StatusOr<TransferMode> UcxWriter::ChooseMode(const UcxDescriptor& remote) const {
  const bool same_host = remote.host == host_;
  const bool shared = same_host && !remote.rkey.empty();
  const bool puts = !CommonTransport(context_->put_transports(), remote.put_lanes).empty();
  if (options_.tls == "rdma" || remote.tls == "rdma") {
    if (puts) return TransferMode::kKeyedPut;
    return FailedPreconditionError("this worker uses tls=" + options_.tls + ", the reader tls=" + remote.tls +
                                   "; they have no RDMA transport in common");
  }
  if (options_.tls == "shm" || remote.tls == "shm") {
    if (!same_host) return FailedPreconditionError("tls=shm, but the reader is on another host; set tls=auto or tcp");
    if (!shared || options_.tls == "tcp") {
      return FailedPreconditionError("this worker uses tls=" + options_.tls + ", the reader tls=" + remote.tls +
                                     "; they have no transport in common");
    }
    return TransferMode::kOneSided;
  }
  if (options_.tls == "auto" && remote.tls == "auto" && shared) return TransferMode::kOneSided;
  if (puts) return TransferMode::kKeyedPut;
  return TransferMode::kReceiverPosted;
}

void UcxWriter::Open(const ProcessId& reader, std::span<const std::byte> descriptor, TimePoint now) {
  if (Link* link = FindOpen(reader)) {
    events_->Push(PeerOpened{reader, OkStatus(), link->mode, LaneOf(*link)});
    return;
  }
  auto link = std::make_unique<Link>();
  link->peer = reader;
  link->number = RandomNumber();
  link->open_deadline = now + options_.open_timeout;
  auto parsed = UcxDescriptor::Parse(descriptor);
  Status status = parsed.status();
  if (parsed.ok()) {
    link->remote = *std::move(parsed);
    status = Connect(*link);
  }
  if (link->endpoint != nullptr) {
    links_.push_back(std::move(link));
    if (!status.ok()) Lose(*links_.back(), status);
  } else {
    events_->Push(PeerOpened{reader, status.Annotate("open " + reader.name), {}, {}});
  }
}

// With an endpoint made, an error still leaves the endpoint to be closed.
Status UcxWriter::Connect(Link& link) {
  BATON_ASSIGN_OR_RETURN(link.mode, ChooseMode(link.remote));
  BATON_ASSIGN_OR_RETURN(link.endpoint, UcxEndpoint::Connect(context_->worker(), link.remote.address));
  if (link.mode == TransferMode::kOneSided) {
    if (ucs_status_t s = ucp_ep_rkey_unpack(link.endpoint->ep(), link.remote.rkey.data(), &link.rkey); s != UCS_OK) {
      link.rkey = nullptr;
      return FromUcx(s, "the reader's pool cannot be mapped");
    }
    void* mapped = nullptr;
    if (ucs_status_t s = ucp_rkey_ptr(link.rkey, link.remote.pool_base, &mapped); s != UCS_OK) {
      return FromUcx(s, "the reader's pool is not mapped here; set tls=tcp");
    }
    link.mapped = static_cast<std::byte*>(mapped);
  }
  const LinkHello hello{link.number, link.remote.instance, options_.self, link.mode, context_->address()};
  link.endpoint->Send(LinkMessage::kHello, hello.Encode());
  return OkStatus();
}

std::string UcxWriter::LaneOf(const Link& link) const {
  if (link.mode == TransferMode::kOneSided) return "posix";
  if (link.mode == TransferMode::kReceiverPosted) return "tcp";
  return CommonTransport(context_->put_transports(), link.remote.put_lanes);
}

void UcxWriter::OnAnswer(std::span<const std::byte> message) {
  const auto answer = LinkAnswer::Parse(message);
  if (!answer) return;
  Link* link = FindLink(answer->link);
  if (link == nullptr || link->open) return;
  if (!answer->status.ok()) {
    link->endpoint->Break(answer->status);  // Advance reports it
    return;
  }
  if (link->mode == TransferMode::kKeyedPut) {
    if (answer->key.empty()) return link->endpoint->Break(InvalidArgumentError("the reader gave no key"));
    if (ucs_status_t s = ucp_ep_rkey_unpack(link->endpoint->ep(), answer->key.data(), &link->rkey); s != UCS_OK) {
      link->rkey = nullptr;
      return link->endpoint->Break(FromUcx(s, "the reader's key cannot be used"));
    }
  }
  link->open = true;
  link->open_deadline = kNever;
  events_->Push(PeerOpened{link->peer, OkStatus(), link->mode, LaneOf(*link)});
}

void UcxWriter::Lose(Link& link, Status why) {
  if (link.open) {
    Count(counters_->peers_lost);
    events_->Push(PeerLost{link.peer, why.Annotate("path to " + link.peer.name)});
  } else {
    events_->Push(PeerOpened{link.peer, why.Annotate("open " + link.peer.name), link.mode, {}});
  }
  BeginClose(link, std::move(why));
}

void UcxWriter::BeginClose(Link& link, Status why) {
  link.closing = true;
  link.why = std::move(why);
  if (link.rkey != nullptr && link.mode == TransferMode::kOneSided) {  // unmaps the reader's pool
    ucp_rkey_destroy(link.rkey);
    link.rkey = nullptr;
  }
  link.endpoint->Close(UcxEndpoint::CloseMode::kForce);
}

void UcxWriter::Close(const ProcessId& peer) {
  for (auto& link : links_) {
    if (link->peer != peer || link->closing) continue;
    const Status why = CancelledError("closed by this side");
    if (!link->open) events_->Push(PeerOpened{peer, why, link->mode, {}});
    BeginClose(*link, why);
  }
}

void UcxWriter::CloseAll() {
  for (auto& link : links_) {
    if (!link->closing) BeginClose(*link, CancelledError("the transport shuts down"));
  }
}

bool UcxWriter::Closing(const ProcessId& peer) const {
  return std::any_of(links_.begin(), links_.end(), [&](auto& l) { return l->closing && l->peer == peer; });
}
bool UcxWriter::closing_any() const {
  return std::any_of(links_.begin(), links_.end(), [](auto& l) { return l->closing; });
}

// The endpoint is closed and no callback is outstanding: the sources are free.
void UcxWriter::FinishLink(Link& link) {
  for (auto& [id, op] : link.active) Report(*op, link.why);
  for (auto& op : link.waiting) Report(*op, link.why);
  link.active.clear();
  link.waiting.clear();
  if (link.rkey != nullptr) ucp_rkey_destroy(std::exchange(link.rkey, nullptr));  // no put uses it any more
}

// ---- ops ----------------------------------------------------------------------------------------

Status UcxWriter::CheckTargets(const Op& op, const Link& link) const {
  if (link.mode == TransferMode::kReceiverPosted) return OkStatus();
  const uint64_t pool = link.remote.pool_bytes;
  for (const CopyPiece& p : op.pieces) {
    const bool known = p.target_block < op.post.target_base.size();
    const uint64_t base = known ? op.post.target_base[p.target_block] : 0;
    if (!known || base > pool || p.target_offset > pool - base || p.bytes > pool - base - p.target_offset) {
      return InvalidArgumentError("post: block " + std::to_string(p.target_block) + " [" +
                                  std::to_string(p.target_offset) + ", +" + std::to_string(p.bytes) +
                                  ") lies outside the reader's pool of " + std::to_string(pool) + " bytes");
    }
  }
  return OkStatus();
}

void UcxWriter::Post(TransferPost post) {
  auto op = std::make_unique<Op>();
  op->post = std::move(post);
  ++pending_ops_;
  Link* link = FindOpen(op->post.reader);
  if (link == nullptr) {
    return Report(*op, FailedPreconditionError("post to " + op->post.reader.name + ": not open"));
  }
  if (pending_ops_ > options_.max_pending_ops) {
    return Report(*op, ResourceExhaustedError("post: " + std::to_string(options_.max_pending_ops) + " are pending"));
  }
  auto pieces = NormalizePieces(op->post.pieces, context_->pool().size());
  if (!pieces.ok()) return Report(*op, pieces.status());
  op->pieces = *std::move(pieces);
  op->link = link;
  if (Status s = CheckTargets(*op, *link); !s.ok()) return Report(*op, s);
  link->waiting.push_back(std::move(op));
}

void UcxWriter::Report(Op& op, Status status) {
  --pending_ops_;
  Count(status.ok() ? counters_->ops_ok : counters_->ops_failed);
  if (status.ok()) Count(counters_->bytes_quiesced, TotalBytes(op.pieces));
  events_->Push(Quiesced{op.post.op, std::move(status), op.hash.Digest()});
}

bool UcxWriter::Advance(TimePoint now) {
  now_ = now;
  bool did = false;
  for (auto& link : links_) did |= AdvanceLink(*link, now);
  std::erase_if(links_, [this](auto& link) {
    if (!link->closing || !link->endpoint->Closed()) return false;
    FinishLink(*link);
    return true;
  });
  return did;
}

bool UcxWriter::AdvanceLink(Link& link, TimePoint now) {
  if (link.closing) return false;
  if (link.endpoint->broken()) {
    Lose(link, link.endpoint->error());
    return true;
  }
  if (now >= link.open_deadline) {
    Lose(link, DeadlineExceededError("the reader did not answer"));
    return true;
  }
  bool did = PostSlice(link, now);
  did |= ReapOps(link);
  for (auto& [id, op] : link.active) {
    if (now < op->deadline) continue;
    Lose(link, DeadlineExceededError("op " + std::to_string(Raw(id)) + " made no progress for " +
                                     std::to_string(Seconds(options_.op_timeout)) + " s"));
    return true;
  }
  return did;
}

bool UcxWriter::PostSlice(Link& link, TimePoint now) {
  if (link.current == nullptr) {
    if (link.waiting.empty()) return false;
    std::unique_ptr<Op> op = std::move(link.waiting.front());
    link.waiting.pop_front();
    op->deadline = now + options_.op_timeout;
    const auto [it, fresh] = link.active.try_emplace(op->post.op, std::move(op));
    BATON_CHECK(fresh, "an op id was posted twice");
    link.current = it->second.get();
  }
  Op& op = *link.current;
  bool did = true;
  switch (link.mode) {
    case TransferMode::kOneSided:
      StoreSlice(link, op);
      break;
    case TransferMode::kKeyedPut:
      did = PutSlice(link, op);
      break;
    case TransferMode::kReceiverPosted:
      did = SendBatch(link, op);
      break;
  }
  if (op.posted) link.current = nullptr;
  return did;
}

// Stores straight into the reader's pool, which is mapped here: complete at the target once fenced.
void UcxWriter::StoreSlice(Link& link, Op& op) {
  const std::span<std::byte> pool = context_->pool();
  for (uint64_t bytes = 0; op.next < op.pieces.size() && bytes < kSliceBytes; ++op.next) {
    const CopyPiece& piece = op.pieces[op.next];
    std::span<const std::byte> ahead;
    if (op.next + 1 < op.pieces.size())
      ahead = pool.subspan(op.pieces[op.next + 1].source, op.pieces[op.next + 1].bytes);
    DigestAndCopy(link.mapped + op.post.target_base[piece.target_block] + piece.target_offset,
                  pool.subspan(piece.source, piece.bytes), &op.hash, ahead);
    bytes += piece.bytes;
    Count(counters_->pieces);
  }
  FenceCopies();
  op.posted = op.next == op.pieces.size();
  op.deadline = now_ + options_.op_timeout;
}

// Puts, and after the op's last one a flush: when that is over, every byte is complete at the target.
bool UcxWriter::PutSlice(Link& link, Op& op) {
  bool did = false;
  for (uint64_t bytes = 0; op.next < op.pieces.size() && bytes < kSliceBytes && !link.endpoint->broken();) {
    const CopyPiece& piece = op.pieces[op.next];
    if (link.in_flight > 0 && link.in_flight + piece.bytes > options_.max_in_flight_bytes) return did;
    const std::span<const std::byte> source = context_->pool().subspan(piece.source, piece.bytes);
    op.hash.Add(source);
    auto put = std::make_unique<Put>(Put{this, &link, &op, piece.bytes});
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
    param.memh = context_->source();
    param.cb.send = &UcxWriter::OnPut;
    param.user_data = put.get();
    const uint64_t target = link.remote.pool_base + op.post.target_base[piece.target_block] + piece.target_offset;
    void* request = ucp_put_nbx(link.endpoint->ep(), source.data(), source.size(), target, link.rkey, &param);
    Count(counters_->pieces);
    ++op.next;
    bytes += piece.bytes;
    did = true;
    if (!Issue(link, op, request, std::move(put))) return did;
  }
  if (op.next < op.pieces.size() || op.flushed || link.endpoint->broken()) return did;
  auto flush = std::make_unique<Put>(Put{this, &link, &op, 0});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxWriter::OnPut;
  param.user_data = flush.get();
  op.flushed = op.posted = true;
  Issue(link, op, ucp_ep_flush_nbx(link.endpoint->ep(), &param), std::move(flush));
  return true;
}

// False: the link broke.
bool UcxWriter::Issue(Link& link, Op& op, void* request, std::unique_ptr<Put> put) {
  op.deadline = now_ + options_.op_timeout;
  if (UCS_PTR_IS_ERR(request)) {
    link.endpoint->Break(FromUcx(UCS_PTR_STATUS(request), "put"));
    return false;
  }
  if (!UCS_PTR_IS_PTR(request)) return true;  // over already
  link.endpoint->Hold();
  link.in_flight += put->bytes;
  ++op.waiting;
  put.release();  // OnPut deletes it
  return true;
}

void UcxWriter::OnPut(void* request, ucs_status_t status, void* user) {
  const std::unique_ptr<Put> put(static_cast<Put*>(user));
  put->link->endpoint->Release();
  put->link->in_flight -= put->bytes;
  --put->op->waiting;
  put->op->deadline = put->writer->now_ + put->writer->options_.op_timeout;
  if (status != UCS_OK) put->link->endpoint->Break(FromUcx(status, "put"));
  ucp_request_free(request);
}

bool UcxWriter::SendBatch(Link& link, Op& op) {
  if (op.next == op.pieces.size() || !op.status.ok()) {
    op.posted = true;
    return true;
  }
  auto batch = std::make_unique<Batch>();
  LinkData header{link.number, op.post.ticket, op.post.op, static_cast<uint32_t>(op.batches.size()), {}};
  size_t last = op.next;
  while (last < op.pieces.size() && batch->iov.size() < kBatchPieces && batch->bytes < kBatchBytes) {
    const CopyPiece& piece = op.pieces[last++];
    batch->iov.push_back({context_->pool().data() + piece.source, piece.bytes});
    batch->bytes += piece.bytes;
    header.pieces.push_back(TargetOf(piece));
  }
  if (link.in_flight > 0 && link.in_flight + batch->bytes > options_.max_in_flight_bytes) return false;
  for (const ucp_dt_iov_t& v : batch->iov) op.hash.Add({static_cast<const std::byte*>(v.buffer), v.length});
  op.next = last;
  batch->link = &link;
  batch->op = &op;
  batch->header = header.Encode();
  link.in_flight += batch->bytes;
  ++op.waiting;
  op.deadline = now_ + options_.op_timeout;
  Count(counters_->pieces, batch->iov.size());

  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.send = &UcxWriter::OnBatchSent;
  param.user_data = batch.get();
  param.datatype = UCP_DATATYPE_IOV;
  param.flags = batch->bytes > kEagerBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  void* request = ucp_am_send_nbx(link.endpoint->ep(), static_cast<unsigned>(LinkMessage::kData), batch->header.data(),
                                  batch->header.size(), batch->iov.data(), batch->iov.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    link.endpoint->Hold();
  } else if (UCS_PTR_IS_ERR(request)) {
    link.endpoint->Break(FromUcx(UCS_PTR_STATUS(request), "send"));
  } else {
    batch->sent = true;
  }
  op.batches.push_back(std::move(batch));
  return true;
}

void UcxWriter::OnBatchSent(void* request, ucs_status_t status, void* user) {
  auto* batch = static_cast<Batch*>(user);
  batch->link->endpoint->Release();
  if (status == UCS_OK) {
    batch->sent = true;
    if (batch->placed) --batch->op->waiting;
  } else {
    batch->link->endpoint->Break(FromUcx(status, "send"));
  }
  ucp_request_free(request);
}

void UcxWriter::OnPlaced(std::span<const std::byte> message) {
  const auto placed = LinkPlaced::Parse(message);
  if (!placed) return;
  Link* link = FindLink(placed->link);
  if (link == nullptr) return;
  const auto it = link->active.find(placed->op);
  if (it == link->active.end()) return;
  Op& op = *it->second;
  if (placed->part >= op.batches.size() || op.batches[placed->part]->placed) return;
  Batch& batch = *op.batches[placed->part];
  batch.placed = true;
  link->in_flight -= batch.bytes;
  if (batch.sent) --op.waiting;
  if (op.status.ok()) op.status = placed->status;
  op.deadline = now_ + options_.op_timeout;
}

bool UcxWriter::ReapOps(Link& link) {
  bool did = false;
  for (auto it = link.active.begin(); it != link.active.end();) {
    Op& op = *it->second;
    if (!op.posted || op.waiting > 0 || link.endpoint->broken()) {
      ++it;
      continue;
    }
    if (op.status.ok()) {
      LinkNotice notice{link.number, op.post.ticket, op.post.chunk, op.post.attempt, {}};
      notice.pieces.reserve(op.pieces.size());
      for (const CopyPiece& p : op.pieces) notice.pieces.push_back(TargetOf(p));
      link.endpoint->Send(LinkMessage::kNotice, notice.Encode());
      if (link.endpoint->broken()) break;  // it ends with the link
    }
    Report(op, op.status);
    it = link.active.erase(it);
    did = true;
  }
  return did;
}

bool UcxWriter::Pending() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](auto& l) { return l->closing || !l->open || !l->active.empty() || !l->waiting.empty(); });
}

TimePoint UcxWriter::NextDeadline() const {
  TimePoint next = kNever;
  for (const auto& link : links_) {
    next = std::min(next, link->open_deadline);
    for (const auto& [id, op] : link->active) next = std::min(next, op->deadline);
  }
  return next;
}

}  // namespace baton
