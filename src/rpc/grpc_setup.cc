#include "rpc/grpc_setup.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <cstring>

#include "base/log.h"
#include "baton/check.h"

namespace baton {

namespace {

void LogFromGrpc(gpr_log_func_args* args) {
  // Whatever concerns an operator comes back as a status, and is said in our words; but the last words before an
  // abort are never hidden.
  if (std::strstr(args->message, "assertion failed") != nullptr) {
    spdlog::critical("grpc {}:{}: {}", args->file, args->line, args->message);
    return spdlog::default_logger_raw()->flush();
  }
  spdlog::debug("grpc {}:{}: {}", args->file, args->line, args->message);
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const TlsPems& tls) {
  if (tls.ca.empty()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({tls.ca, tls.key, tls.certificate});
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const TlsPems& tls, ClientCertificates clients) {
  if (!tls.serves()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(!tls.mutual() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                            : clients == ClientCertificates::kWelcome
                                                ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.ca;
  options.pem_key_cert_pairs.push_back({tls.key, tls.certificate});
  return grpc::SslServerCredentials(options);
}

// Where Parse listens: only protobuf's log says which field is not UTF-8.
thread_local std::string* complaint = nullptr;

// Clients can make protobuf complain about their bytes; that is their error, not a line for the operator.
void LogFromProtobuf(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  if (complaint != nullptr) *complaint = message;
  if (level == google::protobuf::LOGLEVEL_FATAL) spdlog::critical("protobuf {}:{}: {}", file, line, message);
  spdlog::debug("protobuf {}:{}: {}", file, line, message);
}

}  // namespace

Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* out) {
  grpc::ByteBuffer shared(bytes);  // the reader wants one that it may change
  grpc::ProtoBufferReader reader(&shared);
  std::string words;
  complaint = &words;
  const bool parsed = reader.status().ok() && out->ParseFromZeroCopyStream(&reader);
  complaint = nullptr;
  if (parsed) return OkStatus();
  // "String field 'baton.v1.GenerateRequest.text' contains invalid UTF-8 data ..."
  const size_t begin = words.find('\''), end = words.find('\'', begin + 1);
  if (begin != std::string::npos && end != std::string::npos && words.find("UTF-8") != std::string::npos) {
    return InvalidArgumentError("request: " + words.substr(begin + 1, end - begin - 1) + " is not valid UTF-8");
  }
  return InvalidArgumentError("request: these " + std::to_string(bytes.Length()) + " bytes are no " +
                              out->GetTypeName() + "; is the client's .proto file this server's?");
}

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message) {
  grpc::ByteBuffer out;
  bool own = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &out, &own);
  BATON_CHECK(status.ok(), status.error_message());
  return out;
}

void RouteGrpcLogs() {
  static const bool once = [] {
    gpr_set_log_function(LogFromGrpc);
    google::protobuf::SetLogHandler(LogFromProtobuf);
    return true;
  }();
  (void)once;
}

void KeepCallbackThreads() {
  struct Held {
    std::shared_ptr<grpc::Channel> channel =
        grpc::CreateChannel("unix:baton-callback-threads", grpc::InsecureChannelCredentials());
    grpc::GenericStub stub{channel};
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1}, response;  // a buffer without a slice is no message
  };
  static Held* const held = [] {
    auto* h = new Held;  // for the life of the process
    h->context.set_deadline(std::chrono::system_clock::now());
    // A channel takes its reference with its first callback call, which here ends at once by its deadline.
    h->stub.UnaryCall(&h->context, "/none", grpc::StubOptions(), &h->request, &h->response, [](grpc::Status) {});
    return h;
  }();
  (void)held;
}

std::shared_ptr<grpc::Channel> OpenChannel(const Endpoint& endpoint, const ChannelSettings& settings) {
  RouteGrpcLogs();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(static_cast<int>(settings.max_message_bytes));
  args.SetMaxSendMessageSize(-1);  // the receiver's limit is the one that counts
  if (endpoint.in_process != nullptr) return endpoint.in_process->Open(args);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // gRPC takes the least back-off as the time that one connection attempt may last.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(settings.connect_timeout.count()));
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  if (settings.keepalive_time.count() > 0) {
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(settings.keepalive_time.count()));
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(settings.keepalive_timeout.count()));
    args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound
  }
  if (settings.stream_window_bytes > 0) {
    args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, static_cast<int>(settings.stream_window_bytes));
  }
  if (!settings.peer_name.empty()) args.SetSslTargetNameOverride(settings.peer_name);
  return grpc::CreateCustomChannel(endpoint.address, CredentialsOf(settings.tls), args);
}

Status ExplainConnection(const Status& status, const TlsPems& tls) {
  const std::string& words = status.message();
  if (status.code() != Code::kUnavailable || words.find("failed to connect") == std::string::npos) return status;
  const auto says = [&](std::string_view part) { return words.find(part) != std::string::npos; };
  if (says("wrong version number")) return UnavailableError("the server does not speak TLS");
  if (says("certificate verify failed")) {
    return UnavailableError("the server's certificate is not of the CA that is trusted here, or is out of date");
  }
  constexpr std::string_view kName = "Peer name ";
  if (const size_t at = words.find(kName), end = words.find(" is not in peer certificate"); end != std::string::npos) {
    const std::string name = words.substr(at + kName.size(), end - at - kName.size());
    return UnavailableError("the server's certificate does not name " + name);
  }
  if (!says("Socket closed") && !says("Connection reset")) return status;
  if (tls.ca.empty()) {
    return UnavailableError("the server closed the connection before it answered: does it speak TLS?");
  }
  if (!tls.mutual()) return status;
  return UnavailableError(
      "the server closed the connection in the TLS handshake: the certificate shown to it may not be of its CA, or out "
      "of date");
}

void Configure(const ServerSettings& settings, grpc::ServerBuilder* builder) {
  RouteGrpcLogs();
  builder->SetMaxReceiveMessageSize(static_cast<int>(settings.max_receive_bytes));
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(settings.max_concurrent_streams));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(settings.keepalive_time.count()));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(settings.keepalive_timeout.count()));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              static_cast<int>(settings.least_ping_interval.count()));
  // Windows start at 256 KiB a stream and follow the measured bandwidth-delay product.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 << 10);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
}

StatusOr<BoundServer> BuildServer(const std::string& listen, const TlsPems& tls, ClientCertificates clients,
                                  grpc::ServerBuilder* builder) {
  BoundServer bound;
  BATON_ASSIGN_OR_RETURN(bound.acceptor, Acceptor::Bind(listen));
  using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> inlet =
      builder->experimental().AddExternalConnectionAcceptor(External::FROM_FD, CredentialsOf(tls, clients));
  bound.server = builder->BuildAndStart();
  if (bound.server == nullptr) return InternalError("cannot serve on " + listen + ": gRPC did not start");
  bound.acceptor->Start([inlet](int listener, int connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
    accepted.listener_fd = listener;
    accepted.fd = connection;
    inlet->HandleNewConnection(&accepted);
  });
  return bound;
}

}  // namespace baton
