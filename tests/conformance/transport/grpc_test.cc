// What only the stream transport does: certificates, frames, limits on what a peer sends, bytes under way.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "rig.h"
#include "transport/grpc/descriptor.h"
#include "transport/grpc/streams.h"

namespace baton {
namespace {

constexpr uint64_t kPool = 8 << 20;

void Start(Side& side, const std::string& name, TlsPems tls, const UcxOptions& base = {}) {
  side.id = {name, {1, 78}};
  side.transport = MakeGrpc(side.id, &side.waker, std::move(tls), base);
  auto pool = side.transport->AllocatePool(kPool);
  ASSERT_TRUE(pool.ok()) << pool.status().ToString();
  side.pool = *pool;
}

// ---- certificates -------------------------------------------------------------------------------

Status OpenStatus(TlsPems writer_tls, TlsPems reader_tls) {
  UcxOptions options;
  options.open_timeout = std::chrono::seconds(10);
  Side writer, reader;
  Start(writer, "p", std::move(writer_tls), options);
  Start(reader, "d", std::move(reader_tls), options);
  writer.transport->Open(reader.id, reader.transport->LocalDescriptor());
  EXPECT_TRUE(writer.WaitFor<PeerOpened>(1));
  const Status status = writer.All<PeerOpened>()[0].status;
  if (status.ok()) return status;
  // Refused, it moves nothing.
  reader.transport->Admit(TicketNumber(reader.id, 1), writer.id, {0}, {kPool});
  std::memset(writer.pool.data(), 0x77, kPool);
  writer.transport->Post({OpId{1}, reader.id, TicketNumber(reader.id, 1), 0, 1, {{0, 0, 0, kPool}}, {0}});
  EXPECT_TRUE(writer.WaitFor<Quiesced>(1));
  EXPECT_FALSE(writer.All<Quiesced>()[0].status.ok());
  EXPECT_TRUE(AllAre(reader.pool, std::byte{0}));
  return status;
}

TEST(GrpcCertificateTest, OnlyAWorkerMayWriteAndOnlyToTheReaderThatItMeans) {
  using Role = CertifiedRole;
  for (const Role writes : {Role::kPrefill, Role::kDecode, Role::kUnified}) {  // a decode worker migrates
    EXPECT_TRUE(OpenStatus(CredentialsOf("p", writes), CredentialsOf("d", Role::kDecode)).ok()) << RoleName(writes);
  }
  struct Case {
    TlsPems writer, reader;
    std::string words;  // of the refusal
  };
  const test::TestAuthority other;
  const TlsPems p = CredentialsOf("p", Role::kPrefill), d = CredentialsOf("d", Role::kDecode);
  const Case cases[] = {
      {CredentialsOf("p2", Role::kPrefill), d, "writer p is expected, but the certificate is that of prefill p2"},
      {CredentialsOf("p", Role::kRouter), d, "writer p is expected, but the certificate is that of router p"},
      {p, CredentialsOf("d", Role::kPrefill), "decode worker d is expected, but the certificate is that of prefill d"},
      {p, CredentialsOf("d2", Role::kDecode), ""},
      {p, other.Issue(Role::kDecode, "d"), ""},
      {other.Issue(Role::kPrefill, "p"), d, ""},
      {{}, d, "the reader takes KV over TLS alone, and this worker has no certificate"},
      {p, {}, "this worker sends KV over TLS alone, and the reader has no certificate"},
  };
  for (const Case& c : cases) {
    const Status status = OpenStatus(c.writer, c.reader);
    EXPECT_FALSE(status.ok()) << c.words;
    EXPECT_NE(status.message().find(c.words), std::string::npos) << status.ToString();
  }
}

TEST(GrpcCertificateTest, AWriterThatIsToldThatTheReaderSpeaksNoTlsGetsNoConnection) {
  Side writer, reader;
  Start(writer, "p", {});
  Start(reader, "d", CredentialsOf("d"));
  auto descriptor = *GrpcDescriptor::Parse(reader.transport->LocalDescriptor());
  descriptor.encrypted = false;
  writer.transport->Open(reader.id, descriptor.Encode());
  ASSERT_TRUE(writer.WaitFor<PeerOpened>(1));
  EXPECT_FALSE(writer.All<PeerOpened>()[0].status.ok());
}

TEST(GrpcOptionsTest, WhatCannotServeIsRefusedInWords) {
  TestWaker waker;
  GrpcOptions options;
  options.tls = CredentialsOf("d");
  options.tls.ca.clear();
  EXPECT_EQ(GrpcTransport::Create(options, &waker).status().code(), Code::kInvalidArgument);
  options.tls = {};
  options.listen = "192.0.2.1:0";  // nobody's
  const Status status = GrpcTransport::Create(options, &waker).status();
  EXPECT_NE(status.message().find("192.0.2.1"), std::string::npos) << status.ToString();
}

// ---- frames -------------------------------------------------------------------------------------

TEST(GrpcFrameTest, IsReadBackHoweverItWasCutAndRefusedWhenItIsShorterThanItSays) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    std::vector<std::byte> header(rng.Below(200)), payload(rng.Below(3000));
    Fill(header, seed);
    Fill(payload, seed + 1);
    Frame frame(LinkMessage::kData, header, payload.size());
    std::copy(payload.begin(), payload.end(), frame.payload().begin());
    const size_t size = frame.size();
    const auto bytes = frame.Release();
    std::vector<std::span<const std::byte>> parts;
    for (size_t at = 0; at < size;) {
      const size_t n = std::min<size_t>(size - at, rng.Below(700));  // some are empty
      parts.emplace_back(bytes.get() + at, n);
      at += n;
    }
    auto received = ReceivedFrame::Parse(parts);
    ASSERT_TRUE(received) << "seed " << seed;
    EXPECT_EQ(received->kind(), LinkMessage::kData);
    EXPECT_TRUE(std::equal(header.begin(), header.end(), received->header().begin(), received->header().end()));
    ASSERT_EQ(received->payload_bytes(), payload.size());
    std::vector<std::byte> got(payload.size());
    const size_t first = rng.Below(got.size() + 1);
    received->TakePayload(std::span(got).first(first));
    received->TakePayload(std::span(got).subspan(first));
    EXPECT_EQ(got, payload) << "seed " << seed;

    const std::span<const std::byte> cut(bytes.get(), rng.Below(6 + header.size()));
    EXPECT_FALSE(ReceivedFrame::Parse(std::span(&cut, 1))) << "seed " << seed;
  }
}

// ---- peers that are not Baton's -----------------------------------------------------------------

// Streams that the test drives by hand, in its own thread.
class HandDriven {
 public:
  HandDriven() {
    auto made = GrpcStreams::Listen({});
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    streams_ = *std::move(made);
  }
  ~HandDriven() {
    std::atomic<bool> stopped{false};
    std::thread stopping([&] {
      streams_->StopServer();
      stopped = true;
    });
    StreamEvent event;
    while (!stopped) streams_->Next(clock_.Now() + std::chrono::milliseconds(1), &event);
    stopping.join();
    streams_->Drain();
  }
  GrpcStreams* operator->() { return streams_.get(); }
  StreamEvent Next() {
    StreamEvent event;
    EXPECT_TRUE(streams_->Next(clock_.Now() + kHang, &event)) << "hangs";
    return event;
  }
  // The status with which the stream ends after these frames were sent; what comes meanwhile is dropped.
  Status EndAfter(const std::string& address, std::vector<Frame> frames) {
    const StreamId stream = streams_->Dial(address, "d");
    size_t next = 0;
    while (true) {
      const StreamEvent event = Next();
      if (event.kind == StreamEvent::Kind::kEnded) return event.why;
      const bool idle = event.kind == StreamEvent::Kind::kUp || event.kind == StreamEvent::Kind::kWritten;
      if (idle && next < frames.size()) streams_->Write(stream, std::move(frames[next++]));
    }
  }

 private:
  SteadyClock clock_;
  std::unique_ptr<GrpcStreams> streams_;
};

TEST(GrpcReaderTest, WhateverAPeerSendsEndsItsStreamInWordsAndNobodyElses) {
  Side writer, reader;
  Start(writer, "p", {});
  Start(reader, "d", {});
  const auto descriptor = *GrpcDescriptor::Parse(reader.transport->LocalDescriptor());
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, writer.id, {0}, {kPool});
  writer.transport->Open(reader.id, reader.transport->LocalDescriptor());
  ASSERT_TRUE(writer.WaitFor<PeerOpened>(1));

  const LinkHello stranger{7, descriptor.instance, {"x", {1, 1}}, TransferMode::kReceiverPosted, {}};
  const auto hello = [&](const LinkHello& h) { return Frame(LinkMessage::kHello, h.Encode()); };
  const LinkData data{7, ticket, OpId{1}, 0, {{0, 100, 0}}};
  HandDriven peer;
  const auto refused = [&](const char* words, auto... frames) {
    std::vector<Frame> list;
    (list.push_back(std::move(frames)), ...);
    const Status status = peer.EndAfter(descriptor.address, std::move(list));
    // Cut in the middle of an answer to the hello, it says no more than that.
    EXPECT_TRUE(status.message().find(words) != std::string::npos || status.code() == Code::kCancelled)
        << status.ToString();
  };
  refused("malformed first message", Frame(LinkMessage::kData, data.Encode(), 100));
  refused("malformed hello", Frame(LinkMessage::kHello, std::vector<std::byte>(40, std::byte{9})));
  LinkHello odd = stranger;
  odd.instance += 1;
  refused("an earlier start", hello(odd));
  odd = stranger;
  odd.mode = TransferMode::kOneSided;
  refused("malformed hello", hello(odd));
  odd = stranger;
  odd.writer.name.clear();
  refused("malformed hello", hello(odd));
  refused("malformed data", hello(stranger), Frame(LinkMessage::kData, data.Encode(), 99));
  LinkData other = data;
  other.link = 8;
  refused("malformed data", hello(stranger), Frame(LinkMessage::kData, other.Encode(), 100));
  refused("malformed notice", hello(stranger), Frame(LinkMessage::kNotice, std::vector<std::byte>(10)));
  refused("malformed message", hello(stranger), hello(stranger));
  refused("malformed message", hello(stranger), Frame(LinkMessage::kPlaced, {}));
  refused("arger than max", hello(stranger), Frame(LinkMessage::kData, data.Encode(), kMaxFrame));

  EXPECT_TRUE(AllAre(reader.pool, std::byte{0}));
  Fill(writer.pool, 5);
  writer.transport->Post({OpId{1}, reader.id, ticket, 0, 1, {{0, 0, 0, kPool}}, {0}});
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));
  EXPECT_TRUE(std::equal(writer.pool.begin(), writer.pool.end(), reader.pool.begin()));
  EXPECT_TRUE(writer.All<PeerLost>().empty());
}

TEST(GrpcReaderTest, OutOfDescriptorsItTurnsAwayWhoComesAndTakesThemAfterwards) {
  Side writer, reader;
  Start(writer, "p", {});
  Start(reader, "d", {});
  const std::string address = GrpcDescriptor::Parse(reader.transport->LocalDescriptor())->address;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{kHang.count(), 0};
  setsockopt(stranger, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = dup(stranger);
  close(lowest_free);
  const rlimit none{static_cast<rlim_t>(lowest_free), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  char byte = 0;
  const ssize_t got = recv(stranger, &byte, 1, 0);
  const int why = errno;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(stranger);
  EXPECT_TRUE(got == 0 || (got < 0 && why == ECONNRESET)) << got << " " << std::strerror(why);

  writer.transport->Open(reader.id, reader.transport->LocalDescriptor());
  ASSERT_TRUE(writer.WaitFor<PeerOpened>(1));
  EXPECT_TRUE(writer.All<PeerOpened>()[0].status.ok()) << writer.All<PeerOpened>()[0].status.ToString();
}

TEST(GrpcWriterTest, ToAReaderThatNeverPlacesGoesOneWindowAndTheOpsEndByTheDeadline) {
  UcxOptions options;
  options.op_timeout = std::chrono::milliseconds(300);
  options.max_in_flight_bytes = 1 << 20;
  Side writer;
  Start(writer, "p", {}, options);
  HandDriven reader;
  const ProcessId id{"d", {1, 1}};
  writer.transport->Open(id, GrpcDescriptor{1, "127.0.0.1:" + std::to_string(reader->port()), false}.Encode());
  uint64_t bytes = 0;
  bool ended = false;
  for (uint64_t op = 1; !ended;) {
    const StreamEvent event = reader.Next();
    if (event.kind == StreamEvent::Kind::kEnded) ended = true;
    if (event.kind == StreamEvent::Kind::kWritten) {  // it knows that it is open, soon
      ASSERT_TRUE(writer.WaitFor<PeerOpened>(1));
      for (; op <= 3; ++op) writer.transport->Post({OpId{op}, id, {{1, 1}, 1, 1}, 0, 1, {{0, 0, 0, kPool}}, {0}});
    }
    if (event.kind != StreamEvent::Kind::kMessage) continue;
    const auto frame = ReceivedFrame::Parse(event.parts);
    ASSERT_TRUE(frame);
    if (frame->kind() == LinkMessage::kHello) {
      const LinkAnswer answer{LinkHello::Parse(frame->header())->link, OkStatus()};
      reader->Write(event.stream, Frame(LinkMessage::kAnswer, answer.Encode()));
    } else {
      ASSERT_EQ(frame->kind(), LinkMessage::kData);
      bytes += frame->payload_bytes();
    }
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, 1u << 20);
  ASSERT_TRUE(writer.WaitFor<Quiesced>(3));
  for (const Quiesced& q : writer.All<Quiesced>()) EXPECT_EQ(q.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(writer.All<PeerLost>().size(), 1u);
}

}  // namespace
}  // namespace baton
