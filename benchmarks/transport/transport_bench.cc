// Hand-off bandwidth beside memcpy and raw loopback TCP, and the exposed tail of a request, in one run. Rounds of
// the paths alternate, so that a loaded machine slows all of them; medians are printed. Two workers in one process
// (grpc: in two), each with its own pool and progress thread; every chunk is digested on both sides, as in service.
// usage: transport_bench [rounds [transport]]
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/hash.h"
#include "base/rng.h"
#include "credentials/issue.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/local/local_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {
namespace {

constexpr uint64_t kRound = 64 << 20;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class BenchWaker : public Waker {
 public:
  void Wake() override {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return woken_; });
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

struct Worker {
  ProcessId id;
  BenchWaker waker;
  std::unique_ptr<KvTransport> transport;
  std::span<std::byte> pool;

  // Waits until `done` saw the event it waits for.
  void WaitFor(const std::function<bool(const TransportEvent&)>& done) {
    while (true) {
      std::vector<TransportEvent> events;
      transport->Poll(&events);
      bool found = false;
      for (const TransportEvent& e : events) found |= done(e);
      if (found) return;
      waker.Wait();
    }
  }
};

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// A scattered copy plan: piece i of the source goes to block perm[i] of the target.
struct Plan {
  uint64_t total = 0, piece = 0, seed = 0;
  std::vector<CopyPiece> pieces;
  std::vector<uint64_t> base, bytes;
};
Plan ScatteredPlan(uint64_t total, uint64_t piece, uint64_t seed) {
  Plan plan{total, piece, seed, {}, {}, {}};
  const auto n = static_cast<uint32_t>(total / piece);
  std::vector<uint32_t> from(n), to(n);
  for (uint32_t i = 0; i < n; ++i) from[i] = to[i] = i;
  Rng rng(seed);
  for (uint32_t i = n; i > 1; --i) {
    std::swap(from[i - 1], from[rng.Below(i)]);
    std::swap(to[i - 1], to[rng.Below(i)]);
  }
  for (uint32_t i = 0; i < n; ++i) {
    plan.base.push_back(uint64_t{to[i]} * piece);
    plan.bytes.push_back(piece);
    plan.pieces.push_back({uint64_t{from[i]} * piece, i, 0, piece});
  }
  return plan;
}

// Threads that are started meanwhile run on this core of the process, as a worker's do in service: else the kernel
// often wakes the reader on the writer's core and leaves the other idle.
class Pinned {
 public:
  explicit Pinned(int nth) {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &before_) && nth-- == 0) CPU_SET(core, &one);
    }
    if (CPU_COUNT(&one) == 1) sched_setaffinity(0, sizeof(one), &one);
  }
  ~Pinned() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

// Of one authority of this run.
TlsPems CredentialsOf(const std::string& name) {
  static const Validity now{std::time(nullptr) - 3600, std::time(nullptr) + 3600};
  static const auto authority = MakeAuthority("transport_bench", now);
  if (!authority.ok()) Die(authority.status());
  const auto own = IssueCertificate(*authority, {CertifiedRole::kUnified, name}, {}, now);
  if (!own.ok()) Die(own.status());
  return {authority->certificate, own->certificate, own->key};
}

void StartWorker(Worker& w, const std::string& name, const std::string& kind, const LocalFabric& fabric) {
  w.id = {name, {1, 1}};
  if (kind == "local") {
    w.transport = std::make_unique<LocalTransport>(fabric, LocalOptions{w.id}, &w.waker);
  } else if (kind == "grpc" || kind == "grpc-plain") {
    GrpcOptions options;
    options.self = w.id;
    if (kind == "grpc") options.tls = CredentialsOf(name);
    auto made = GrpcTransport::Create(options, &w.waker);
    if (!made.ok()) Die(made.status());
    w.transport = *std::move(made);
  } else {
    UcxOptions options;
    options.self = w.id;
    options.tls = kind;
    auto made = UcxTransport::Create(options, &w.waker);
    if (!made.ok()) Die(made.status());
    w.transport = *std::move(made);
  }
  auto pool = w.transport->AllocatePool(kRound);
  if (!pool.ok()) Die(pool.status());
  w.pool = *pool;
  std::memset(w.pool.data(), 7, kRound);
}

template <typename Event>
void Count(Worker& worker, size_t wanted) {
  size_t seen = 0;
  worker.WaitFor([&](const TransportEvent& e) { return (seen += std::holds_alternative<Event>(e)) == wanted; });
}

// The reader's side of one transfer, as a pair's writer asks for it.
struct Admission {
  uint64_t total = 0, piece = 0, seed = 0, chunks = 0;
  uint32_t generation = 0;
};

// A reader in a process of its own, forked before this one has a thread: within one process gRPC lets one thread at a
// time wait for all sockets, so a writer and a reader there would wake each other for every frame.
class ForkedReader {
 public:
  explicit ForkedReader(const std::string& kind) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) std::abort();
    CredentialsOf("d");  // one authority for both
    const pid_t child = fork();
    if (child < 0) std::abort();
    in_ = child == 0 ? to[0] : from[0];
    out_ = child == 0 ? from[1] : to[1];
    close(child == 0 ? to[1] : from[1]);
    close(child == 0 ? from[0] : to[0]);
    if (child == 0) Serve(kind);
    uint64_t size = 0;
    Read(&size, sizeof(size));
    descriptor.resize(size);
    Read(descriptor.data(), size);
  }
  ~ForkedReader() {  // the child reads its end of file
    close(in_);
    close(out_);
  }
  void Admit(const Admission& admission) {
    Write(&admission, sizeof(admission));
    AwaitWord();
  }
  void AwaitWord() {
    char word = 0;
    Read(&word, 1);
  }
  std::vector<std::byte> descriptor;

 private:
  [[noreturn]] void Serve(const std::string& kind) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Pinned pinned(1);
    LocalFabric fabric;
    Worker reader;
    StartWorker(reader, "d", kind, fabric);
    descriptor = reader.transport->LocalDescriptor();
    const uint64_t size = descriptor.size();
    Write(&size, sizeof(size));
    Write(descriptor.data(), size);
    while (true) {
      Admission a;
      Read(&a, sizeof(a));
      const Plan plan = ScatteredPlan(a.total, a.piece, a.seed);
      const Ticket ticket{{1, 1}, 0, a.generation};
      reader.transport->Admit(ticket, {"p", {1, 1}}, plan.base, plan.bytes);
      Write("a", 1);
      Count<ChunkArrived>(reader, a.chunks);
      Write("b", 1);
      reader.transport->Retire(ticket);
      Count<Quiet>(reader, 1);
      Write("c", 1);
    }
  }
  void Read(void* to, size_t bytes) {
    for (size_t n = 0; n < bytes;) {
      const ssize_t got = read(in_, static_cast<char*>(to) + n, bytes - n);
      if (got <= 0) _exit(0);
      n += static_cast<size_t>(got);
    }
  }
  void Write(const void* from, size_t bytes) {
    if (write(out_, from, bytes) != static_cast<ssize_t>(bytes)) _exit(1);
  }
  int in_ = -1, out_ = -1;
};

class Pair {
 public:
  // `forked` or nullptr: the reader, else it lives in this process.
  Pair(const std::string& kind, ForkedReader* forked) : forked_(forked) {
    {
      const Pinned pinned(0);
      StartWorker(writer_, "p", kind, fabric_);
    }
    reader_.id = {"d", {1, 1}};
    if (forked_ == nullptr) {
      const Pinned pinned(1);
      StartWorker(reader_, "d", kind, fabric_);
    }
    writer_.transport->Open(reader_.id, forked_ ? forked_->descriptor : reader_.transport->LocalDescriptor());
    writer_.WaitFor([](const TransportEvent& e) {
      if (const auto* o = std::get_if<PeerOpened>(&e); o && !o->status.ok()) Die(o->status);
      return std::holds_alternative<PeerOpened>(e);
    });
  }
  struct Seconds {
    double quiesced = 0;  // first Post to last Quiesced: every byte is complete at the target
    double arrived = 0;   // first Post to last ChunkArrived: and digested there
    double tail = 0;      // last Post to last ChunkArrived
  };
  // The whole plan as `chunks` equal chunks, posted `gap` seconds apart.
  Seconds Send(const Plan& plan, size_t chunks, double gap) {
    const Ticket ticket{{1, 1}, 0, ++generation_};
    if (forked_) forked_->Admit({plan.total, plan.piece, plan.seed, chunks, generation_});
    if (!forked_) reader_.transport->Admit(ticket, writer_.id, plan.base, plan.bytes);
    const size_t each = plan.pieces.size() / chunks;
    const double first = Now();
    double last = first;
    for (size_t c = 0; c < chunks; ++c) {
      if (c > 0 && gap > 0) std::this_thread::sleep_for(std::chrono::duration<double>(gap));
      TransferPost post{static_cast<OpId>(++op_), reader_.id, ticket, static_cast<ChunkIndex>(c), 1, {}, plan.base};
      post.pieces.assign(plan.pieces.begin() + static_cast<long>(c * each),
                         plan.pieces.begin() + static_cast<long>((c + 1) * each));
      last = Now();
      writer_.transport->Post(std::move(post));
    }
    Seconds out;
    Count<Quiesced>(writer_, chunks);
    out.quiesced = Now() - first;
    Arrived(chunks);
    out.arrived = Now() - first;
    out.tail = Now() - last;
    Retire(ticket);
    return out;
  }

 private:
  void Arrived(size_t chunks) {
    if (forked_) return forked_->AwaitWord();
    Count<ChunkArrived>(reader_, chunks);
  }
  void Retire(const Ticket& ticket) {
    if (forked_) return forked_->AwaitWord();
    reader_.transport->Retire(ticket);
    Count<Quiet>(reader_, 1);
  }
  ForkedReader* const forked_;
  LocalFabric fabric_;
  Worker writer_, reader_;
  uint32_t generation_ = 0;
  uint64_t op_ = 0;
};

double Memcpy(const Plan& plan, std::span<std::byte> from, std::span<std::byte> to) {
  const double start = Now();
  for (const CopyPiece& p : plan.pieces) {
    std::memcpy(to.data() + plan.base[p.target_block], from.data() + p.source, p.bytes);
  }
  return Now() - start;
}

// A connected loopback pair; writev from the source's pieces, readv into the target's.
class RawTcp {
 public:
  RawTcp() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0) std::abort();
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    out_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(out_, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
    in_ = accept(listener, nullptr, nullptr);
    close(listener);
    const int one = 1;
    setsockopt(out_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }
  ~RawTcp() {
    close(in_);
    close(out_);
  }
  double Send(const Plan& plan, std::span<std::byte> from, std::span<std::byte> to) {
    std::vector<iovec> source, target;
    for (const CopyPiece& p : plan.pieces) {
      source.push_back({from.data() + p.source, p.bytes});
      target.push_back({to.data() + plan.base[p.target_block], p.bytes});
    }
    const double start = Now();
    std::thread receiver([&] { All(target, [this](iovec* v, int n) { return readv(in_, v, n); }); });
    All(source, [this](iovec* v, int n) { return writev(out_, v, n); });
    receiver.join();
    return Now() - start;
  }

 private:
  template <typename Call>
  static void All(std::vector<iovec>& iov, Call call) {
    for (size_t at = 0; at < iov.size();) {
      auto n = call(&iov[at], static_cast<int>(std::min<size_t>(32, iov.size() - at)));
      if (n <= 0) std::abort();
      while (n > 0) {
        const auto step = std::min<size_t>(static_cast<size_t>(n), iov[at].iov_len);
        iov[at].iov_base = static_cast<char*>(iov[at].iov_base) + step;
        iov[at].iov_len -= step;
        n -= static_cast<ssize_t>(step);
        if (iov[at].iov_len == 0) ++at;
      }
    }
  }
  int in_ = -1, out_ = -1;
};

double Quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
}

double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Path {
  const char* name;
  Pair* pair;
  bool network;  // compared with raw TCP, else with memcpy
  std::vector<double> there, digested;
};

void Bandwidth(std::vector<Path> paths, int rounds) {
  std::vector<std::byte> a(kRound, std::byte{1}), b(kRound, std::byte{2});
  RawTcp raw;
  std::printf("64 MiB a round in 8 chunks, GB/s, median of %d alternating rounds\n", rounds);
  std::printf("complete at the target, and digested there too; x: of memcpy, over a network of raw tcp\n");
  std::printf("%9s %-11s %15s %15s\n", "piece", "", "complete", "digested too");
  for (uint64_t piece : {uint64_t{1} << 20, uint64_t{64} << 10, uint64_t{16} << 10, uint64_t{8} << 10}) {
    const Plan plan = ScatteredPlan(kRound, piece, piece);
    std::vector<double> memory, wire;
    for (Path& path : paths) path.there.clear(), path.digested.clear();
    for (int i = -2; i < rounds; ++i) {  // two rounds warm up
      const double copied = Memcpy(plan, a, b), sent = raw.Send(plan, a, b);
      if (i >= 0) memory.push_back(copied), wire.push_back(sent);
      for (Path& path : paths) {
        const Pair::Seconds s = path.pair->Send(plan, 8, 0);
        if (i >= 0) path.there.push_back(s.quiesced), path.digested.push_back(s.arrived);
      }
    }
    const auto rate = [](const std::vector<double>& v) { return kRound / Quantile(v, 0.5) / 1e9; };
    std::printf("%5lu KiB %-11s %7.2f\n%9s %-11s %7.2f\n", piece >> 10, "memcpy", rate(memory), "", "raw tcp",
                rate(wire));
    for (const Path& path : paths) {
      const double base = rate(path.network ? wire : memory);
      std::printf("%9s %-11s %7.2f %6.2fx %7.2f %6.2fx\n", "", path.name, rate(path.there), rate(path.there) / base,
                  rate(path.digested), rate(path.digested) / base);
    }
  }
}

void Tail(const char* name, Pair& pair, int rounds) {
  constexpr uint64_t kPiece = 8 << 10;  // one head's K and V of one layer: 32 tokens, dim 64, bf16
  constexpr size_t kLayers = 30, kEach = 27;
  const Plan plan = ScatteredPlan(kPiece * kLayers * kEach, kPiece, 5);
  std::vector<double> tail, whole;
  for (int i = 0; i < rounds; ++i) {
    tail.push_back(1e3 * pair.Send(plan, kLayers, 0.5e-3).tail);
    whole.push_back(1e3 * pair.Send(plan, 1, 0).tail);
  }
  std::printf(
      "%-11s last 1-layer chunk (216 KiB): p50 %.3f p99 %.3f ms   whole request (6.3 MiB) at once: p50 %.3f "
      "p99 %.3f ms\n",
      name, Quantile(tail, 0.5), Quantile(tail, 0.99), Quantile(whole, 0.5), Quantile(whole, 0.99));
}

// Of every transport whose name contains `only`.
int Main(int rounds, const std::string& only) {
  struct Kind {
    const char *name, *kind;
    bool network, forked;
  };
  constexpr Kind kKinds[] = {{"local", "local", false, false},
                             {"ucx shm", "shm", false, false},
                             {"ucx tcp", "tcp", true, false},
                             {"grpc, TLS", "grpc", true, true},
                             {"grpc, plain", "grpc-plain", true, true}};
  const auto wanted = [&](const Kind& k) { return std::string(k.name).find(only) != std::string::npos; };
  std::map<std::string, std::unique_ptr<ForkedReader>> forked;
  for (const Kind& k : kKinds) {
    if (k.forked && wanted(k)) forked[k.kind] = std::make_unique<ForkedReader>(k.kind);
  }
  std::vector<std::unique_ptr<Pair>> pairs;
  std::vector<Path> paths;
  for (const Kind& k : kKinds) {
    if (!wanted(k)) continue;
    pairs.push_back(std::make_unique<Pair>(k.kind, k.forked ? forked.at(k.kind).get() : nullptr));
    paths.push_back({k.name, pairs.back().get(), k.network, {}, {}});
  }
  Bandwidth(paths, rounds);
  std::printf("\nexposed tail, Post to ChunkArrived, a layer each 0.5 ms\n");
  for (const Path& path : paths) Tail(path.name, *path.pair, 5 * rounds);
  const double cpu = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  std::printf("\nidle: %.2f %% of a core for %zu open transports\n", 100 * (CpuSeconds() - cpu) / 2,
              2 * paths.size() - forked.size());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  return baton::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 20, argc > 2 ? argv[2] : "");
}
