#include "transport/ucx/reader.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMaxPlacements = 4096;  // under way, per link

}  // namespace

struct UcxReader::Placement {
  UcxReader* reader = nullptr;
  Link* link = nullptr;
  std::list<std::unique_ptr<Placement>>::iterator self;  // in link->placements
  Ticket ticket;
  OpId op{};
  uint32_t part = 0;
  uint64_t bytes = 0;
  std::vector<ucp_dt_iov_t> iov;
};

struct UcxReader::Link {
  uint64_t number = 0;
  ProcessId writer;
  TransferMode mode{};
  std::unique_ptr<UcxEndpoint> endpoint;
  ucp_mem_h key = nullptr;        // kKeyedPut: until it is withdrawn
  std::vector<std::byte> packed;  // as the writer got it
  std::list<std::unique_ptr<Placement>> placements;
};

UcxReader::UcxReader(UcxContext* context, const UcxOptions& options, uint64_t instance, AdmissionTable* admissions,
                     AtomicTransportCounters* counters)
    : context_(context),
      options_(options),
      instance_(instance),
      admissions_(admissions),
      counters_(counters),
      digests_(admissions, counters) {}
UcxReader::~UcxReader() = default;

// ---- links --------------------------------------------------------------------------------------

UcxReader::Link* UcxReader::FindLink(uint64_t number) {
  const auto it = links_.find(number);
  return it == links_.end() || it->second->endpoint->closing() ? nullptr : it->second.get();
}

void UcxReader::OnHello(std::span<const std::byte> message) {
  auto hello = LinkHello::Parse(message);
  if (hello && !hello->address.empty() && hellos_.size() < options_.max_inbound_links)
    hellos_.push_back(*std::move(hello));
}

Status UcxReader::CheckHello(const LinkHello& hello) const {
  if (hello.instance != instance_) {
    return FailedPreconditionError("the descriptor is of an earlier start of this worker; ask for the current one");
  }
  if (hello.mode == TransferMode::kOneSided && context_->rkey().empty()) {
    return FailedPreconditionError("the reader offers no shared memory (tls=tcp)");
  }
  if (hello.mode == TransferMode::kKeyedPut && context_->put_transports().empty()) {
    return FailedPreconditionError("the reader has no transport for one-sided puts");
  }
  return OkStatus();
}

// A key that another link has too would live on when this one is withdrawn. UCX's emulation over TCP has no keys: there
// the end of the connection is the fence.
Status UcxReader::GiveKey(Link& link, std::vector<std::byte>* packed) {
  BATON_ASSIGN_OR_RETURN(UcxContext::PoolKey key, context_->MakeKey());
  link.key = key.memory;
  link.packed = *packed = std::move(key.packed);
  if (options_.puts_over_tcp) return OkStatus();
  for (const auto& [number, other] : links_) {
    if (other->key != nullptr && other->packed == link.packed) {
      return FailedPreconditionError("UCX gives two writers one key, which could not be withdrawn from one of them");
    }
  }
  return OkStatus();
}

void UcxReader::Cut(Link& link) {
  link.endpoint->Close(UcxEndpoint::CloseMode::kForce);
  if (link.key != nullptr) context_->WithdrawKey(std::exchange(link.key, nullptr));
}

void UcxReader::Fence(const ProcessId& writer) {
  for (auto& [number, link] : links_) {
    if (link->writer == writer && link->mode == TransferMode::kKeyedPut) Cut(*link);
  }
}

void UcxReader::AcceptHello(const LinkHello& hello) {
  if (links_.size() >= options_.max_inbound_links || links_.contains(hello.link)) return;
  auto endpoint = UcxEndpoint::Connect(context_->worker(), hello.address);
  if (!endpoint.ok()) return;  // the writer's deadline tells it
  Status status = CheckHello(hello);
  if (status.ok()) {
    for (auto& [number, link] : links_) {  // a writer has one link: the newest
      if (link->writer == hello.writer) Cut(*link);
    }
  }
  auto link = std::make_unique<Link>();
  link->number = hello.link;
  link->writer = hello.writer;
  link->mode = hello.mode;
  link->endpoint = *std::move(endpoint);
  LinkAnswer answer{hello.link, {}, {}};
  if (status.ok() && link->mode == TransferMode::kKeyedPut) status = GiveKey(*link, &answer.key);
  answer.status = status;
  if (!status.ok()) answer.key.clear();
  link->endpoint->Send(LinkMessage::kAnswer, answer.Encode());
  if (!status.ok()) {
    link->endpoint->Close(UcxEndpoint::CloseMode::kFlush);
    if (link->key != nullptr) context_->WithdrawKey(std::exchange(link->key, nullptr));
  }
  links_.emplace(hello.link, std::move(link));
}

void UcxReader::Close(const ProcessId& peer) {
  for (auto& [number, link] : links_) {
    if (link->writer == peer) Cut(*link);
  }
}

void UcxReader::CloseAll() {
  hellos_.clear();
  for (auto& [number, link] : links_) Cut(*link);
}

bool UcxReader::Closing(const ProcessId& peer) const {
  return std::any_of(links_.begin(), links_.end(),
                     [&](auto& l) { return l.second->writer == peer && l.second->endpoint->closing(); });
}
bool UcxReader::closing_any() const {
  return std::any_of(links_.begin(), links_.end(), [](auto& l) { return l.second->endpoint->closing(); });
}

// ---- data ---------------------------------------------------------------------------------------

void UcxReader::Answer(Link& link, OpId op, uint32_t part, Status status) {
  link.endpoint->Send(LinkMessage::kPlaced, LinkPlaced{link.number, op, part, std::move(status)}.Encode());
}

ucs_status_t UcxReader::OnData(std::span<const std::byte> header, void* data, size_t bytes, bool rendezvous) {
  const auto message = LinkData::Parse(header);
  Link* link = message ? FindLink(message->link) : nullptr;
  if (link == nullptr) {
    Count(counters_->placements_refused);
    return UCS_OK;  // dropped: no receive is posted
  }
  uint64_t expected = 0;
  for (const TargetPiece& p : message->pieces) expected += p.bytes;
  std::vector<std::span<std::byte>> places;
  Status status;
  if (expected != bytes) {
    status = InvalidArgumentError("data message of " + std::to_string(bytes) + " bytes announces " +
                                  std::to_string(expected));
  } else if (link->placements.size() >= kMaxPlacements) {
    status = ResourceExhaustedError("too many data messages under way");
  } else {
    status = admissions_->Begin(message->ticket, link->writer, message->pieces, &places);
  }
  if (!status.ok()) {
    Count(counters_->placements_refused);
    Answer(*link, message->op, message->part, std::move(status));
    return UCS_OK;
  }
  if (rendezvous) {
    Place(*link, *message, places, data);
    return UCS_OK;
  }
  const auto* from = static_cast<const std::byte*>(data);
  for (const auto& place : places) {
    std::memcpy(place.data(), from, place.size());
    from += place.size();
  }
  admissions_->End(message->ticket);
  Count(counters_->bytes_placed, bytes);
  Answer(*link, message->op, message->part, OkStatus());
  return UCS_OK;
}

void UcxReader::Place(Link& link, const LinkData& data, std::span<const std::span<std::byte>> places,
                      void* descriptor) {
  link.placements.push_front(std::make_unique<Placement>());
  Placement& placement = *link.placements.front();
  placement.reader = this;
  placement.link = &link;
  placement.self = link.placements.begin();
  placement.ticket = data.ticket;
  placement.op = data.op;
  placement.part = data.part;
  for (const auto& place : places) {
    placement.iov.push_back({place.data(), place.size()});
    placement.bytes += place.size();
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.recv_am = &UcxReader::OnPlacedData;
  param.user_data = &placement;
  param.datatype = UCP_DATATYPE_IOV;
  link.endpoint->Hold();
  void* request =
      ucp_am_recv_data_nbx(context_->worker(), descriptor, placement.iov.data(), placement.iov.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  FinishPlacement(placement, UCS_PTR_IS_ERR(request) ? FromUcx(UCS_PTR_STATUS(request), "receive") : OkStatus());
}

void UcxReader::OnPlacedData(void* request, ucs_status_t status, size_t bytes, void* user) {
  auto* placement = static_cast<Placement*>(user);
  Status result;
  if (status != UCS_OK) {
    result = FromUcx(status, "receive");
  } else if (bytes != placement->bytes) {
    result = DataLossError("receive: " + std::to_string(bytes) + " of " + std::to_string(placement->bytes) + " bytes");
  }
  placement->reader->FinishPlacement(*placement, result);
  ucp_request_free(request);
}

void UcxReader::FinishPlacement(Placement& placement, const Status& status) {
  Link& link = *placement.link;
  admissions_->End(placement.ticket);
  if (status.ok()) Count(counters_->bytes_placed, placement.bytes);
  Answer(link, placement.op, placement.part, status);
  link.endpoint->Release();
  link.placements.erase(placement.self);
}

void UcxReader::WatchRetired(const Ticket& ticket, TimePoint deadline) { retired_.emplace_back(ticket, deadline); }

void UcxReader::CutOverdue(TimePoint now) {
  std::erase_if(retired_, [&](const auto& entry) {
    if (now < entry.second) return false;
    for (auto& [number, link] : links_) {
      const bool places = std::any_of(link->placements.begin(), link->placements.end(),
                                      [&](auto& p) { return p->ticket == entry.first; });
      if (places) Cut(*link);
    }
    return true;
  });
}

// ---- notices ------------------------------------------------------------------------------------

void UcxReader::OnNotice(std::span<const std::byte> message) {
  const auto notice = LinkNotice::Parse(message);
  Link* link = notice ? FindLink(notice->link) : nullptr;
  if (link == nullptr) return Count(counters_->notices_dropped);
  digests_.Add(link->writer, *notice);
}

bool UcxReader::Advance(TimePoint now) {
  bool did = !hellos_.empty();
  for (const LinkHello& hello : std::exchange(hellos_, {})) AcceptHello(hello);
  for (auto& [number, link] : links_) {
    if (link->endpoint->broken()) Cut(*link);
  }
  CutOverdue(now);
  std::erase_if(links_, [](auto& entry) { return entry.second->endpoint->Closed(); });
  return digests_.Slice() || did;
}

bool UcxReader::Pending() const {
  return std::any_of(links_.begin(), links_.end(), [](auto& l) { return !l.second->placements.empty(); });
}

TimePoint UcxReader::NextDeadline() const {
  TimePoint next = kNever;
  for (const auto& [ticket, deadline] : retired_) next = std::min(next, deadline);
  return next;
}

}  // namespace baton
