#include "transport/grpc/reader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMaxAnswers = 4096;  // waiting to be written on one link: its writer does not read

Status Malformed(const char* what) { return InvalidArgumentError(std::string("a malformed ") + what + " of a writer"); }

}  // namespace

GrpcReader::GrpcReader(GrpcStreams* streams, const GrpcOptions& options, uint64_t instance, AdmissionTable* admissions,
                       AtomicTransportCounters* counters)
    : streams_(streams),
      options_(options),
      instance_(instance),
      admissions_(admissions),
      counters_(counters),
      digests_(admissions, counters) {}

void GrpcReader::OnEvent(const StreamEvent& event, TimePoint now) {
  if (event.kind == StreamEvent::Kind::kUp) {
    Link& link = links_[event.stream];
    link.stream = event.stream;
    link.hello_deadline = now + options_.open_timeout;
    return;
  }
  const auto it = links_.find(event.stream);
  if (it == links_.end()) return;
  Link& link = it->second;
  if (event.kind == StreamEvent::Kind::kEnded) {
    links_.erase(it);
  } else if (event.kind == StreamEvent::Kind::kWritten) {
    link.writing = false;
    Pump(link);
  } else if (Status status = OnFrame(link, event); !status.ok()) {
    streams_->End(event.stream, status);
    links_.erase(event.stream);
  }
}

Status GrpcReader::OnFrame(Link& link, const StreamEvent& event) {
  auto frame = ReceivedFrame::Parse(event.parts);
  if (!frame) return Malformed("message");
  const bool greeted = !link.writer.name.empty();
  if (!greeted) {
    return frame->kind() == LinkMessage::kHello ? OnHello(link, frame->header()) : Malformed("first message");
  }
  switch (frame->kind()) {
    case LinkMessage::kData:
      return OnData(link, *frame);
    case LinkMessage::kNotice:
      return OnNotice(link, frame->header());
    default:
      return Malformed("message");
  }
}

Status GrpcReader::OnHello(Link& link, std::span<const std::byte> header) {
  const auto hello = LinkHello::Parse(header);
  if (!hello || hello->writer.name.empty() || hello->mode != TransferMode::kReceiverPosted) return Malformed("hello");
  BATON_ASSIGN_OR_RETURN(const auto proven, streams_->Proven(link.stream));
  // A worker of any role: prefill workers hand off, and whoever decodes may migrate what runs there.
  const bool writes = !proven || proven->may().prefill || proven->may().decode;
  if (proven && (proven->name != hello->writer.name || !writes)) {
    return Status(Code::kPermissionDenied, "writer " + hello->writer.name +
                                               " is expected, but the certificate is that of " +
                                               std::string(RoleName(proven->role)) + " " + proven->name);
  }
  if (hello->instance != instance_) {
    return FailedPreconditionError("the descriptor is of an earlier start of this worker; ask for the current one");
  }
  Close(hello->writer);  // a writer has one link: the newest
  link.number = hello->link;
  link.writer = hello->writer;
  link.hello_deadline = kNever;
  return Send(link, LinkMessage::kAnswer, LinkAnswer{link.number, OkStatus()}.Encode());
}

Status GrpcReader::OnData(Link& link, ReceivedFrame& frame) {
  const auto data = LinkData::Parse(frame.header());
  if (!data || data->link != link.number) return Malformed("data message");
  uint64_t bytes = 0;
  for (const TargetPiece& p : data->pieces) bytes += p.bytes;
  if (bytes != frame.payload_bytes()) return Malformed("data message");
  std::vector<std::span<std::byte>> places;
  Status status = admissions_->Begin(data->ticket, link.writer, data->pieces, &places);
  if (status.ok()) {
    for (const auto& place : places) frame.TakePayload(place);
    admissions_->End(data->ticket);
    Count(counters_->bytes_placed, bytes);
  } else {
    Count(counters_->placements_refused);
  }
  return Send(link, LinkMessage::kPlaced, LinkPlaced{link.number, data->op, data->part, std::move(status)}.Encode());
}

Status GrpcReader::OnNotice(Link& link, std::span<const std::byte> header) {
  const auto notice = LinkNotice::Parse(header);
  if (!notice || notice->link != link.number) return Malformed("notice");
  digests_.Add(link.writer, *notice);
  return OkStatus();
}

Status GrpcReader::Send(Link& link, LinkMessage kind, std::span<const std::byte> header) {
  if (link.out.size() >= kMaxAnswers) return ResourceExhaustedError("the writer does not read its answers");
  link.out.emplace_back(kind, header);
  Pump(link);
  return OkStatus();
}

void GrpcReader::Pump(Link& link) {
  if (link.writing || link.out.empty()) return;
  link.writing = true;
  streams_->Write(link.stream, std::move(link.out.front()));
  link.out.pop_front();
}

void GrpcReader::Close(const ProcessId& peer) {
  std::erase_if(links_, [&](const auto& entry) {
    if (entry.second.writer != peer) return false;
    streams_->End(entry.first, CancelledError("closed by the reader"));
    return true;
  });
}

void GrpcReader::CheckDeadlines(TimePoint now) {
  std::erase_if(links_, [&](const auto& entry) {
    if (now < entry.second.hello_deadline) return false;
    streams_->End(entry.first, DeadlineExceededError("no hello came"));
    return true;
  });
}

TimePoint GrpcReader::NextDeadline() const {
  TimePoint next = kNever;
  for (const auto& [stream, link] : links_) next = std::min(next, link.hello_deadline);
  return next;
}

}  // namespace baton
