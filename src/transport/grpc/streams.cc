#include "transport/grpc/streams.h"

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "base/acceptor.h"
#include "base/clock.h"
#include "baton/check.h"

namespace baton {
namespace {

constexpr const char* kMethod = "/baton.internal.v1.KvLink/Stream";
// What a stream holds in this process before it is read: bounds a peer that sends faster than bytes are placed.
constexpr int kStreamWindow = 4 << 20;
// Larger than gRPC's 16 KiB and 8 KiB: fewer system calls and slices for the same bytes.
constexpr int kHttpFrame = 256 << 10;
constexpr int kReadChunk = 256 << 10;
constexpr int kPingAfterMs = 5000, kPingTimeoutMs = 5000;

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return UnavailableError("the peer closed the stream");
  const int code = status.error_code();
  return Status(code > 0 && code <= 16 ? static_cast<Code>(code) : Code::kUnknown, status.error_message());
}
grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

template <typename Settable>  // ChannelArguments, ServerBuilder
void SetShared(Settable set, size_t max_frame) {
  set(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, static_cast<int>(max_frame));
  set(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);  // the receiver's limit is the one that counts
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindow);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttpFrame);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunk);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound
}

class Streams final : public GrpcStreams {
 public:
  explicit Streams(const StreamOptions& options) : options_(options) {}
  ~Streams() override {
    if (cq_ == nullptr) return;
    BATON_CHECK(calls_.empty() && !accept_armed_, "streams are left: StopServer and Drain come first");
    cq_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (cq_->Next(&tag, &ok)) {
    }
  }

  Status Bind() {
    if (options_.tls.serves() && !options_.tls.mutual()) {
      return InvalidArgumentError("a certificate without a CA cannot tell who writes KV here");
    }
    BATON_ASSIGN_OR_RETURN(acceptor_, Acceptor::Bind(options_.listen));
    grpc::ServerBuilder builder;
    SetShared([&](const char* name, int value) { builder.AddChannelArgument(name, value); }, options_.max_frame_bytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);  // of one connection: a writer has one
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingAfterMs / 2);
    builder.RegisterAsyncGenericService(&service_);
    cq_ = builder.AddCompletionQueue();
    using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> inlet =
        builder.experimental().AddExternalConnectionAcceptor(External::FROM_FD, ServerCredentials());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      cq_.reset();
      return InternalError("cannot serve on " + options_.listen + ": gRPC did not start");
    }
    Accept();
    acceptor_->Start([inlet](int listener, int connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
      accepted.listener_fd = listener;
      accepted.fd = connection;
      inlet->HandleNewConnection(&accepted);
    });
    return OkStatus();
  }

  int port() const override { return acceptor_->port(); }
  void Wake() override {
    // In the past, for gRPC rounds a time up to the next millisecond.
    if (!woken_.exchange(true)) alarm_.Set(cq_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &wake_tag_);
  }

  bool Next(TimePoint deadline, StreamEvent* event) override {
    if (Call* call = Find(std::exchange(read_on_, StreamId{}))) Read(*call);
    while (true) {
      void* tag = nullptr;
      bool ok = false;
      if (cq_->AsyncNext(&tag, &ok, Convert(deadline)) != grpc::CompletionQueue::GOT_EVENT) return false;
      if (Handle(*static_cast<Tag*>(tag), ok, event)) return true;
    }
  }

  StreamId Dial(const std::string& address, const std::string& peer) override {
    Call& call = *NewCall();
    grpc::ChannelArguments args;
    SetShared([&](const char* name, int value) { args.SetInt(name, value); }, options_.max_frame_bytes);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own, with its own fate
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    // gRPC takes the least back-off as the time that one connection attempt may last.
    const auto connect = std::chrono::ceil<std::chrono::milliseconds>(options_.connect_timeout);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(connect.count()));
    if (options_.tls.mutual()) args.SetSslTargetNameOverride(peer);
    call.dialed = std::make_unique<DialedHalf>();
    call.dialed->channel = grpc::CreateCustomChannel(address, ChannelCredentials(), args);
    call.dialed->stream =
        grpc::GenericStub(call.dialed->channel).PrepareCall(&call.dialed->context, kMethod, cq_.get());
    call.reader = call.dialed->stream.get();
    call.writer = call.dialed->stream.get();
    ++call.outstanding;
    call.dialed->stream->StartCall(&call.start);
    return call.id;
  }

  void Write(StreamId stream, Frame frame) override {
    Call* call = Find(stream);
    BATON_CHECK(call != nullptr && !call->ended && !call->writing, "one Write at a time, on a stream that is up");
    const size_t size = frame.size();
    std::byte* bytes = frame.Release().release();
    grpc::Slice slice(
        bytes, size, [](void* p) { delete[] static_cast<std::byte*>(p); }, bytes);
    call->out = grpc::ByteBuffer(&slice, 1);
    call->writing = true;
    ++call->outstanding;
    call->writer->Write(call->out, &call->write);
  }

  void End(StreamId stream, const Status& why) override {
    Call* call = Find(stream);
    if (call == nullptr || call->ended) return;
    call->ended = true;
    if (call->dialed != nullptr) {
      call->dialed->context.TryCancel();
    } else if (call->writing) {
      call->why = why;
      call->accepted->context.TryCancel();  // the write comes back
    } else {
      Finish(*call, why);
    }
  }

  StatusOr<std::optional<CertifiedProcess>> Proven(StreamId stream) const override {
    if (!options_.tls.mutual()) return std::optional<CertifiedProcess>();
    const Call& call = *calls_.at(stream);
    const auto context =
        call.dialed != nullptr ? call.dialed->context.auth_context() : call.accepted->context.auth_context();
    if (!context->IsPeerAuthenticated()) {
      return Status(Code::kUnauthenticated, "a certificate of the cluster's CA is needed here, and none was shown");
    }
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : context->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      uris.emplace_back(uri.data(), uri.size());
    }
    BATON_ASSIGN_OR_RETURN(CertifiedProcess process, IdentityOf(uris));
    return std::optional<CertifiedProcess>(std::move(process));
  }

  void StopServer() override {
    acceptor_->Stop();
    server_->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));
  }

  void Drain() override {
    for (auto& [id, call] : calls_) End(id, CancelledError("the transport shuts down"));
    if (Call* call = Find(std::exchange(read_on_, StreamId{}))) Read(*call);
    StreamEvent ignored;
    void* tag = nullptr;
    bool ok = false;
    while ((!calls_.empty() || accept_armed_) && cq_->Next(&tag, &ok)) Handle(*static_cast<Tag*>(tag), ok, &ignored);
  }

 private:
  struct Call;
  struct Tag {
    enum class What : uint8_t { kWake, kAccept, kStart, kRead, kWrite, kFinish };
    What what{};
    Call* call = nullptr;
  };
  struct DialedHalf {
    std::shared_ptr<grpc::Channel> channel;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status status;  // set by Finish
  };
  struct AcceptedHalf {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
  };
  struct Call {
    StreamId id{};
    // One of them.
    std::unique_ptr<DialedHalf> dialed;
    std::unique_ptr<AcceptedHalf> accepted;
    grpc::internal::AsyncReaderInterface<grpc::ByteBuffer>* reader = nullptr;
    grpc::internal::AsyncWriterInterface<grpc::ByteBuffer>* writer = nullptr;
    grpc::ByteBuffer in, out;
    std::vector<grpc::Slice> slices;  // of `in`
    std::vector<std::span<const std::byte>> parts;
    uint32_t outstanding = 0;  // operations whose tags have not come back
    bool writing = false;
    bool finishing = false;  // Finish was called; it is the last operation of the call
    bool finished = false;
    bool ended = false;  // no event of it is wanted any more
    Status why;          // an accepted one ends
    Tag start{Tag::What::kStart, this}, read{Tag::What::kRead, this}, write{Tag::What::kWrite, this},
        finish{Tag::What::kFinish, this};
  };

  static gpr_timespec Convert(TimePoint deadline) {
    if (deadline == kNever) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    const Duration left = std::max(deadline - SteadyClock().Now(), Duration{});
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
  }

  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials() const {
    const TlsPems& tls = options_.tls;
    if (!tls.mutual()) return grpc::InsecureChannelCredentials();
    return grpc::SslCredentials({tls.ca, tls.key, tls.certificate});
  }
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials() const {
    const TlsPems& tls = options_.tls;
    if (!tls.mutual()) return grpc::InsecureServerCredentials();
    grpc::SslServerCredentialsOptions out(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    out.pem_root_certs = tls.ca;
    out.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
    return grpc::SslServerCredentials(out);
  }

  Call* NewCall() {
    const StreamId id{++last_id_};
    auto& call = calls_[id] = std::make_unique<Call>();
    call->id = id;
    return call.get();
  }
  Call* Find(StreamId id) {
    const auto it = calls_.find(id);
    return it == calls_.end() ? nullptr : it->second.get();
  }

  void Accept() {
    next_accepted_ = std::make_unique<AcceptedHalf>();
    accept_armed_ = true;
    service_.RequestCall(&next_accepted_->context, &next_accepted_->stream, cq_.get(), cq_.get(), &accept_tag_);
  }
  void Read(Call& call) {
    call.slices.clear();
    call.in.Clear();
    ++call.outstanding;
    call.reader->Read(&call.in, &call.read);
  }
  void Finish(Call& call, const Status& why) {
    if (call.finishing) return;
    call.finishing = true;
    ++call.outstanding;
    if (call.dialed != nullptr) {
      call.dialed->stream->Finish(&call.dialed->status, &call.finish);
    } else {
      call.accepted->stream.Finish(ToGrpc(why), &call.finish);
    }
  }

  // True: `event` is one for the owner.
  bool Handle(const Tag& tag, bool ok, StreamEvent* event) {
    *event = {};
    if (tag.what == Tag::What::kWake) {
      woken_ = false;
      return true;
    }
    if (tag.what == Tag::What::kAccept) return OnAccept(ok, event);
    Call& call = *tag.call;
    --call.outstanding;
    const bool wanted = Handle(call, tag.what, ok, event);
    if (call.finished && call.outstanding == 0) calls_.erase(call.id);
    return wanted;
  }
  bool Handle(Call& call, Tag::What what, bool ok, StreamEvent* event) {
    event->stream = call.id;
    event->accepted = call.accepted != nullptr;
    switch (what) {
      case Tag::What::kStart:
        if (ok) Read(call);
        Finish(call, OkStatus());  // of a dialed call: its status, when there is one
        event->kind = StreamEvent::Kind::kUp;
        return ok && !call.ended;
      case Tag::What::kRead:
        return ok ? OnMessage(call, event) : OnReadEnd(call, event);
      case Tag::What::kWrite:
        call.writing = false;
        call.out.Clear();
        event->kind = StreamEvent::Kind::kWritten;
        if (call.ended && call.accepted != nullptr) Finish(call, call.why);
        return ok && !call.ended;
      case Tag::What::kFinish:
        call.finished = true;
        if (call.dialed == nullptr || call.ended) return false;
        call.ended = true;
        event->kind = StreamEvent::Kind::kEnded;
        event->why = FromGrpc(call.dialed->status);
        return true;
      default:
        return false;
    }
  }

  bool OnAccept(bool ok, StreamEvent* event) {
    accept_armed_ = false;
    if (!ok) return false;  // the server stops
    Call& call = *NewCall();
    call.accepted = std::move(next_accepted_);
    call.reader = &call.accepted->stream;
    call.writer = &call.accepted->stream;
    Accept();
    Status refused;
    if (call.accepted->context.method() != kMethod) {
      refused = Status(Code::kUnimplemented, "this port carries KV between workers alone");
    } else if (NumAccepted() > options_.max_accepted) {
      refused = ResourceExhaustedError("too many KV streams into this worker");
    }
    if (!refused.ok()) {
      call.ended = true;
      Finish(call, refused);
      return false;
    }
    Read(call);
    event->kind = StreamEvent::Kind::kUp;
    event->stream = call.id;
    event->accepted = true;
    return true;
  }

  size_t NumAccepted() const {
    return static_cast<size_t>(
        std::count_if(calls_.begin(), calls_.end(), [](const auto& c) { return c.second->accepted != nullptr; }));
  }

  bool OnMessage(Call& call, StreamEvent* event) {
    if (call.ended) {
      if (call.dialed != nullptr) Read(call);  // until the cancellation is read
      return false;
    }
    call.slices.clear();
    call.parts.clear();
    if (!call.in.Dump(&call.slices).ok()) call.slices.clear();
    for (const grpc::Slice& s : call.slices) {
      call.parts.emplace_back(reinterpret_cast<const std::byte*>(s.begin()), s.size());
    }
    read_on_ = call.id;
    event->kind = StreamEvent::Kind::kMessage;
    event->parts = call.parts;
    return true;
  }

  // Nothing more comes. A dialed call tells why by its status.
  bool OnReadEnd(Call& call, StreamEvent* event) {
    if (call.dialed != nullptr) return false;
    const bool wanted = !call.ended;
    call.ended = true;
    if (!call.writing) Finish(call, OkStatus());
    event->kind = StreamEvent::Kind::kEnded;
    event->why = UnavailableError("the peer is gone or closed the stream");
    return wanted;
  }

  const StreamOptions options_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> cq_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;

  std::atomic<bool> woken_{false};
  Tag wake_tag_{Tag::What::kWake, nullptr}, accept_tag_{Tag::What::kAccept, nullptr};

  // Progress thread.
  std::unique_ptr<AcceptedHalf> next_accepted_;
  bool accept_armed_ = false;
  uint64_t last_id_ = 0;
  std::map<StreamId, std::unique_ptr<Call>> calls_;
  StreamId read_on_{};  // its message was handed out; read on with the next call of Next

  grpc::Alarm alarm_;
};

}  // namespace

StatusOr<std::unique_ptr<GrpcStreams>> GrpcStreams::Listen(const StreamOptions& options) {
  auto streams = std::make_unique<Streams>(options);
  BATON_RETURN_IF_ERROR(streams->Bind());
  return std::unique_ptr<GrpcStreams>(std::move(streams));
}

}  // namespace baton
