// How Baton opens channels and servers: every limit that matters is set here, none is left to a default. Private
// to rpc.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "baton/status.h"
#include "credentials/certificate.h"
#include "base/acceptor.h"
#include "rpc/endpoint.h"

namespace baton {

// A server of this process. Open gives nullptr once the server is gone.
class InProcessTarget {
 public:
  explicit InProcessTarget(grpc::Server* server) : server_(server) {}
  std::shared_ptr<grpc::Channel> Open(const grpc::ChannelArguments& args) {
    std::lock_guard lock(mutex_);
    return server_ == nullptr ? nullptr : server_->InProcessChannel(args);
  }
  void Forget() {
    std::lock_guard lock(mutex_);
    server_ = nullptr;
  }

 private:
  std::mutex mutex_;
  grpc::Server* server_;
};

// gRPC 1.51 ends its callback threads with the last channel or server that uses them. Where that one is let go on a
// callback thread, the thread would join itself and go on with a freed queue ("assertion failed: prior > 0"). So one
// channel holds them until the process ends. Idempotent; call before the first callback channel or server.
void KeepCallbackThreads();

struct ChannelSettings {
  size_t max_message_bytes = size_t{16} << 20;
  std::chrono::milliseconds keepalive_time{0};  // 0: no pings
  std::chrono::milliseconds keepalive_timeout{0};
  std::chrono::milliseconds connect_timeout{2000};
  size_t stream_window_bytes = 0;  // 0: gRPC's, growing with the path's bandwidth
  TlsPems tls;                     // without a CA: plain text
  std::string peer_name;           // what the server's certificate must name; empty: the host that was dialed
};
// A fresh connection that shares nothing with other channels, so that each has its own fate. nullptr only for an
// in-process server that is gone.
std::shared_ptr<grpc::Channel> OpenChannel(const Endpoint& endpoint, const ChannelSettings& settings);

// A connection that could not be made, in words where certificates or TLS are the reason; else as gRPC says it.
Status ExplainConnection(const Status& status, const TlsPems& tls);

struct ServerSettings {
  size_t max_receive_bytes = size_t{16} << 20;
  std::chrono::milliseconds keepalive_time{10000};  // the server's own pings: notices clients that vanished
  std::chrono::milliseconds keepalive_timeout{10000};
  std::chrono::milliseconds least_ping_interval{500};  // clients may ping that often
  uint32_t max_concurrent_streams = 8192;              // per connection
};
void Configure(const ServerSettings& settings, grpc::ServerBuilder* builder);

// Stop the acceptor first: a server that is gone takes no connection.
struct BoundServer {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;  // its port and address are the server's
};
// Whose certificates a server with a CA wants. One that is shown must be of that CA in either case.
enum class ClientCertificates : uint8_t { kWelcome, kDemanded };
// Listens and starts. The port is never shared with another process. Without a certificate in `tls`:
// plain text; without a CA: clients are asked for none.
StatusOr<BoundServer> BuildServer(const std::string& listen, const TlsPems& tls, ClientCertificates clients,
                                  grpc::ServerBuilder* builder);

// A message that came as bytes. INVALID_ARGUMENT with the field that is not UTF-8, or the number of bytes that are no
// such message.
Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* out);
grpc::ByteBuffer ToBytes(const google::protobuf::Message& message);

// The own log lines of gRPC and protobuf go to ours, as debug. Idempotent.
void RouteGrpcLogs();

}  // namespace baton
