// A worker in a process of its own, for the tests that kill or stop one: a transport driven by lines on stdin, its
// events as lines on stdout. usage: transport_peer NAME COUNTER shm|tcp|keyed|grpc POOL_BYTES FILL [CA CERTIFICATE KEY]
//   open NAME COUNTER RANDOM DESCRIPTOR   admit SLOT WRITER COUNTER RANDOM BYTES   retire SLOT
//   post OP SLOT NAME COUNTER RANDOM INCARNATION_RANDOM BYTES    (source 0 to block 0; reader's incarnation named)
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "base/hash.h"
#include "base/rng.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {
namespace {

class EventFdWaker : public Waker {
 public:
  void Wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
  }
  const int fd = eventfd(0, EFD_NONBLOCK);
};

std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned>(b));
    out += two;
  }
  return out;
}
std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

ProcessId ReadProcess(std::istream& in) {
  ProcessId p;
  in >> p.name >> p.incarnation.counter >> p.incarnation.random;
  return p;
}

struct Peer {
  ProcessId self;
  EventFdWaker waker;
  std::unique_ptr<KvTransport> transport;
  std::span<std::byte> pool;

  void Command(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "open") {
      const ProcessId reader = ReadProcess(in);
      std::string hex;
      in >> hex;
      transport->Open(reader, FromHex(hex));
    } else if (verb == "admit") {
      uint32_t slot = 0;
      in >> slot;
      const ProcessId writer = ReadProcess(in);
      uint64_t bytes = 0;
      in >> bytes;
      transport->Admit({self.incarnation, slot, 1}, writer, {0}, {bytes});
      std::cout << "admitted" << std::endl;
    } else if (verb == "retire") {
      uint32_t slot = 0;
      in >> slot;
      transport->Retire({self.incarnation, slot, 1});
    } else if (verb == "post") {
      uint64_t op = 0, bytes = 0;
      uint32_t slot = 0;
      in >> op >> slot;
      const ProcessId reader = ReadProcess(in);
      in >> bytes;
      transport->Post({static_cast<OpId>(op),
                       reader,
                       {reader.incarnation, slot, 1},
                       static_cast<ChunkIndex>(op),
                       1,
                       {{0, 0, 0, bytes}},
                       {0}});
    }
  }
  void Report(const TransportEvent& event) {
    if (const auto* a = std::get_if<ChunkArrived>(&event)) {
      std::cout << "arrived " << a->chunk << ' ' << a->digest << std::endl;
    } else if (const auto* q = std::get_if<Quiesced>(&event)) {
      std::cout << "quiesced " << Raw(q->op) << ' ' << q->status.ok() << std::endl;
    } else if (const auto* o = std::get_if<PeerOpened>(&event)) {
      std::cout << "opened " << o->status.ToString() << std::endl;
    } else if (std::get_if<PeerLost>(&event) != nullptr) {
      std::cout << "lost" << std::endl;
    } else if (std::get_if<Quiet>(&event) != nullptr) {
      std::cout << "quiet" << std::endl;
    }
  }
  void Loop() {
    std::string buffer;
    while (true) {
      pollfd fds[2] = {{0, POLLIN, 0}, {waker.fd, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) return;
      uint64_t count = 0;
      if (fds[1].revents & POLLIN) [[maybe_unused]]
        const ssize_t n = read(waker.fd, &count, sizeof(count));
      if (fds[0].revents & (POLLIN | POLLHUP)) {
        char chunk[4096];
        const ssize_t n = read(0, chunk, sizeof(chunk));
        if (n <= 0) return;
        buffer.append(chunk, static_cast<size_t>(n));
        for (size_t end; (end = buffer.find('\n')) != std::string::npos; buffer.erase(0, end + 1)) {
          Command(buffer.substr(0, end));
        }
      }
      std::vector<TransportEvent> events;
      transport->Poll(&events);
      for (const TransportEvent& event : events) Report(event);
    }
  }
};

StatusOr<std::unique_ptr<KvTransport>> Make(Peer& peer, const std::string& kind, TlsPems tls) {
  if (kind == "grpc") {
    GrpcOptions options;
    options.self = peer.self;
    options.tls = std::move(tls);
    BATON_ASSIGN_OR_RETURN(auto grpc, GrpcTransport::Create(std::move(options), &peer.waker));
    return std::unique_ptr<KvTransport>(std::move(grpc));
  }
  UcxOptions options;
  options.self = peer.self;
  options.tls = kind == "keyed" ? "tcp" : kind;
  options.puts_over_tcp = kind == "keyed";
  BATON_ASSIGN_OR_RETURN(auto ucx, UcxTransport::Create(std::move(options), &peer.waker));
  return std::unique_ptr<KvTransport>(std::move(ucx));
}

int Main(char** argv, TlsPems tls) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing outlives the test
  Peer peer;
  peer.self = {argv[1], {std::stoull(argv[2]), 77}};
  auto transport = Make(peer, argv[3], std::move(tls));
  if (!transport.ok()) return std::cerr << transport.status().ToString() << '\n', 1;
  peer.transport = *std::move(transport);
  auto pool = peer.transport->AllocatePool(std::stoull(argv[4]));
  if (!pool.ok()) return std::cerr << pool.status().ToString() << '\n', 1;
  peer.pool = *pool;
  std::memset(peer.pool.data(), std::stoi(argv[5]), peer.pool.size());
  std::cout << "descriptor " << Hex(peer.transport->LocalDescriptor()) << std::endl;
  peer.Loop();
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  if (argc == 6) return baton::Main(argv, {});
  return argc == 9 ? baton::Main(argv, {argv[6], argv[7], argv[8]}) : 2;
}
