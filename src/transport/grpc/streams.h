// Streams of frames over gRPC: a port that accepts them, and dialing. The only file of the transport that sees gRPC;
// no gRPC header here. Everything runs on one completion queue, so one thread (the progress thread) calls all of it
// but Wake and StopServer, and does the work of gRPC, encryption included, inside Next.
//
// Always true: a dialed stream gives kUp or kEnded, an accepted one kUp, first; kMessage and kWritten only between
// kUp and kEnded; after End no event of the stream comes. At most one Write is under way on a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/clock.h"
#include "baton/status.h"
#include "credentials/certificate.h"
#include "transport/grpc/frame.h"

namespace baton {

enum class StreamId : uint64_t {};

struct StreamEvent {
  // kWoken: Wake was called, since the last one.
  enum class Kind : uint8_t { kWoken, kUp, kMessage, kWritten, kEnded };
  Kind kind{};
  StreamId stream{};
  bool accepted = false;                                   // else dialed
  std::span<const std::span<const std::byte>> parts = {};  // kMessage: its bytes, until the next call of Next
  Status why;                                              // kEnded
};

struct StreamOptions {
  std::string listen = "127.0.0.1:0";
  TlsPems tls;  // mutual, or none: plain text
  size_t max_frame_bytes = kMaxFrame;
  uint32_t max_accepted = 1024;  // further ones are refused
  Duration connect_timeout = std::chrono::seconds(5);
};

class GrpcStreams {
 public:
  // Binds. Errors: a bad or used address, credentials that cannot serve.
  static StatusOr<std::unique_ptr<GrpcStreams>> Listen(const StreamOptions& options);
  // The progress thread has ended, or makes this call.
  virtual ~GrpcStreams() = default;

  virtual int port() const = 0;
  virtual void Wake() = 0;  // any thread; not after the destructor began

  // One event, or false when the deadline has passed.
  virtual bool Next(TimePoint deadline, StreamEvent* event) = 0;
  // `peer` is what the certificate of the other end must name.
  virtual StreamId Dial(const std::string& address, const std::string& peer) = 0;
  virtual void Write(StreamId stream, Frame frame) = 0;
  // By force, at once; the other end of an accepted stream that has nothing being written is told `why`.
  virtual void End(StreamId stream, const Status& why) = 0;
  // The process that the certificate of the other end names; nothing without TLS. Since kUp (accepted) or the first
  // message (dialed).
  virtual StatusOr<std::optional<CertifiedProcess>> Proven(StreamId stream) const = 0;

  // Nothing is accepted any more, what was is cut. Any thread but the progress thread, which must be in Next until
  // this returns.
  virtual void StopServer() = 0;
  // Ends every stream and waits until gRPC has let go of them. After StopServer; nothing may be called after it.
  virtual void Drain() = 0;
};

}  // namespace baton
