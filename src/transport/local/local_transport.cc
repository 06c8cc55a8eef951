#include "transport/local/local_transport.h"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "transport/admission_table.h"
#include "transport/digest_copy.h"
#include "transport/pieces.h"
#include "transport/wire.h"

namespace baton {
namespace {

constexpr uint32_t kDescriptorMagic = 0x4c4b5642;  // "BVKL"
constexpr uint64_t kSliceBytes = 1 << 20;          // between two looks at the command queue
constexpr size_t kMaxNotices = 1 << 16;

// One chunk notice on its way from a writer to the reader's thread.
struct Notice {
  ChunkArrived arrival;  // digest not yet set
  std::vector<TargetPiece> pieces;
};

// What other transports of the fabric hold of one: it outlives its transport, so a copy that is under way when
// the reader goes away still writes into mapped memory.
struct Port {
  Port(ProcessId id, Waker* waker) : self(std::move(id)), events(waker), admissions(&events, &counters) {}
  ~Port() {
    if (!pool.empty()) munmap(pool.data(), pool.size());
  }
  bool PushNotice(Notice notice) {
    {
      std::lock_guard lock(mutex);
      if (stopped || notices.size() == kMaxNotices) return false;
      notices.push_back(std::move(notice));
    }
    ready.notify_one();
    return true;
  }

  const ProcessId self;
  uint64_t number = 0;
  EventQueue events;
  AtomicTransportCounters counters;
  AdmissionTable admissions;
  std::span<std::byte> pool;

  std::mutex mutex;  // of the rest: the inbox of the port's own thread
  std::condition_variable ready;
  std::deque<Notice> notices;
  bool stopped = false;
};

}  // namespace

struct LocalFabric::State {
  std::mutex mutex;
  uint64_t next_number = 1;
  std::map<uint64_t, std::shared_ptr<Port>> ports;

  void Add(const std::shared_ptr<Port>& port) {
    std::lock_guard lock(mutex);
    port->number = next_number++;
    ports.emplace(port->number, port);
  }
  void Remove(uint64_t number) {
    std::lock_guard lock(mutex);
    ports.erase(number);
  }
  std::shared_ptr<Port> Find(uint64_t number) {
    std::lock_guard lock(mutex);
    const auto it = ports.find(number);
    return it == ports.end() ? nullptr : it->second;
  }
};

LocalFabric::LocalFabric() : state_(std::make_shared<State>()) {}
LocalFabric::~LocalFabric() = default;

// The progress thread and what it owns. Engine-thread calls only append to the command queue.
class LocalTransport::Worker {
 public:
  Worker(std::shared_ptr<LocalFabric::State> fabric, LocalOptions options, Waker* waker)
      : fabric_(std::move(fabric)), options_(std::move(options)) {
    port_ = std::make_shared<Port>(options_.self, waker);
    fabric_->Add(port_);
    thread_ = std::thread([this] { Run(); });
  }
  ~Worker() {
    fabric_->Remove(port_->number);
    port_->admissions.Stop();
    port_->events.Detach();
    {
      std::lock_guard lock(port_->mutex);
      port_->stopped = true;
    }
    port_->ready.notify_one();
    thread_.join();
  }

  struct OpenCommand {
    ProcessId reader;
    std::vector<std::byte> descriptor;
  };
  struct CloseCommand {
    ProcessId peer;
  };
  using Command = std::variant<OpenCommand, CloseCommand, TransferPost>;

  void Push(Command command) {
    {
      std::lock_guard lock(port_->mutex);
      if (commands_.empty()) first_pushed_ = clock_.Now();
      commands_.push_back(std::move(command));
    }
    port_->ready.notify_one();
  }
  Port& port() { return *port_; }

 private:
  struct Op {
    TransferPost post;
    std::shared_ptr<Port> reader;
    std::vector<CopyPiece> pieces;
    size_t next = 0;
    StreamHash64 hash;
  };

  void Run();
  bool TakeWork(std::deque<Command>* commands, std::deque<Notice>* notices);
  void Handle(OpenCommand command);
  void Handle(CloseCommand command);
  void Handle(TransferPost post);
  void CopySlice();
  void SendNotice(Op& op);
  void Finish(Op& op, Status status);
  void LosePeer(const ProcessId& peer, const Status& why);
  void Digest(Notice notice);

  const std::shared_ptr<LocalFabric::State> fabric_;
  const LocalOptions options_;
  std::shared_ptr<Port> port_;
  SteadyClock clock_;
  std::deque<Command> commands_;  // under port_->mutex
  TimePoint first_pushed_{};      // likewise, of commands_
  // Progress thread only.
  std::map<ProcessId, std::shared_ptr<Port>> open_;
  std::deque<std::unique_ptr<Op>> ops_;
  std::thread thread_;
};

// False: stop. Waits only if no copy is under way.
bool LocalTransport::Worker::TakeWork(std::deque<Command>* commands, std::deque<Notice>* notices) {
  std::unique_lock lock(port_->mutex);
  port_->ready.wait(
      lock, [this] { return !ops_.empty() || port_->stopped || !commands_.empty() || !port_->notices.empty(); });
  commands->swap(commands_);
  notices->swap(port_->notices);
  if (!commands->empty()) {
    const Duration waited = clock_.Now() - first_pushed_;
    CountTurn(port_->counters, static_cast<uint64_t>(std::max(waited, Duration(0)).count()));
  }
  return !port_->stopped;
}

void LocalTransport::Worker::Run() {
  std::deque<Command> commands;
  std::deque<Notice> notices;
  while (TakeWork(&commands, &notices)) {
    for (Command& command : commands) {
      std::visit([this](auto& c) { Handle(std::move(c)); }, command);
    }
    commands.clear();
    for (Notice& notice : notices) Digest(std::move(notice));
    notices.clear();
    if (!ops_.empty()) CopySlice();
  }
}

void LocalTransport::Worker::Handle(OpenCommand command) {
  WireReader in(command.descriptor);
  const auto magic = in.Get<uint32_t>();
  const auto number = in.Get<uint64_t>();
  Status status;
  if (!in.Finished() || magic != kDescriptorMagic) {
    status = InvalidArgumentError("open " + command.reader.name + ": not a descriptor of a local transport");
  } else if (std::shared_ptr<Port> port = fabric_->Find(number); port == nullptr || port->self != command.reader) {
    status = UnavailableError("open " + command.reader.name + ": no such worker in this process");
  } else {
    open_[command.reader] = std::move(port);
  }
  port_->events.Push(PeerOpened{command.reader, status, TransferMode::kReceiverPosted});
}

void LocalTransport::Worker::Handle(CloseCommand command) {
  open_.erase(command.peer);
  std::deque<std::unique_ptr<Op>> keep;
  for (auto& op : ops_) {
    if (op->post.reader == command.peer) {
      Finish(*op, CancelledError("closed by this side"));
    } else {
      keep.push_back(std::move(op));
    }
  }
  ops_.swap(keep);
  port_->events.Push(Severed{command.peer});
}

void LocalTransport::Worker::Handle(TransferPost post) {
  auto op = std::make_unique<Op>();
  op->post = std::move(post);
  const auto it = open_.find(op->post.reader);
  if (it == open_.end()) {
    Finish(*op, FailedPreconditionError("post to " + op->post.reader.name + ": not open"));
    return;
  }
  if (ops_.size() >= options_.max_pending_ops) {
    Finish(*op, ResourceExhaustedError("post: " + std::to_string(options_.max_pending_ops) + " are pending"));
    return;
  }
  op->reader = it->second;
  auto pieces = NormalizePieces(op->post.pieces, port_->pool.size());
  if (!pieces.ok()) {
    Finish(*op, pieces.status());
    return;
  }
  op->pieces = *std::move(pieces);
  ops_.push_back(std::move(op));
}

// One slice of the oldest op.
void LocalTransport::Worker::CopySlice() {
  Op& op = *ops_.front();
  std::vector<TargetPiece> targets;
  size_t last = op.next;
  for (uint64_t bytes = 0; last < op.pieces.size() && bytes < kSliceBytes; ++last) {
    bytes += op.pieces[last].bytes;
    targets.push_back(TargetOf(op.pieces[last]));
  }
  std::vector<std::span<std::byte>> places;
  const Status status = op.reader->admissions.Begin(op.post.ticket, port_->self, targets, &places);
  if (!status.ok()) {
    if (status.code() == Code::kUnavailable) {
      LosePeer(op.post.reader, status);
    } else {
      Count(op.reader->counters.placements_refused);
      Finish(op, status);
      ops_.pop_front();
    }
    return;
  }
  uint64_t placed = 0;
  const auto source = [&](size_t i) { return port_->pool.subspan(op.pieces[i].source, op.pieces[i].bytes); };
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t next = op.next + i + 1;
    DigestAndCopy(places[i].data(), source(op.next + i), &op.hash,
                  next < op.pieces.size() ? source(next) : std::span<std::byte>());
    placed += places[i].size();
  }
  FenceCopies();
  op.reader->admissions.End(op.post.ticket);
  Count(op.reader->counters.bytes_placed, placed);
  op.next = last;
  if (op.next < op.pieces.size()) return;
  SendNotice(op);
  Finish(op, OkStatus());
  ops_.pop_front();
}

void LocalTransport::Worker::SendNotice(Op& op) {
  Notice notice{{port_->self, op.post.ticket, op.post.chunk, op.post.attempt, 0}, {}};
  notice.pieces.reserve(op.pieces.size());
  for (const CopyPiece& piece : op.pieces) notice.pieces.push_back(TargetOf(piece));
  if (!op.reader->PushNotice(std::move(notice))) Count(op.reader->counters.notices_dropped);
}

void LocalTransport::Worker::Finish(Op& op, Status status) {
  AtomicTransportCounters& c = port_->counters;
  Count(status.ok() ? c.ops_ok : c.ops_failed);
  if (status.ok()) {
    Count(c.bytes_quiesced, TotalBytes(op.pieces));
    Count(c.pieces, op.pieces.size());
  }
  port_->events.Push(Quiesced{op.post.op, std::move(status), op.hash.Digest()});
}

void LocalTransport::Worker::LosePeer(const ProcessId& peer, const Status& why) {
  open_.erase(peer);
  Count(port_->counters.peers_lost);
  std::deque<std::unique_ptr<Op>> keep;
  for (auto& op : ops_) {
    if (op->post.reader == peer) {
      Finish(*op, why);
    } else {
      keep.push_back(std::move(op));
    }
  }
  ops_.swap(keep);
  port_->events.Push(PeerLost{peer, why});
}

void LocalTransport::Worker::Digest(Notice notice) {
  std::vector<std::span<std::byte>> places;
  ChunkArrived& arrival = notice.arrival;
  if (!port_->admissions.Begin(arrival.ticket, arrival.writer, notice.pieces, &places).ok()) {
    Count(port_->counters.notices_dropped);
    return;
  }
  StreamHash64 hash;
  for (const auto& place : places) hash.Add(place);
  arrival.digest = hash.Digest();
  port_->admissions.EndWithArrival(arrival);
}

LocalTransport::LocalTransport(const LocalFabric& fabric, LocalOptions options, Waker* waker)
    : worker_(std::make_unique<Worker>(fabric.state(), std::move(options), waker)) {}
LocalTransport::~LocalTransport() = default;

StatusOr<std::span<std::byte>> LocalTransport::AllocatePool(size_t bytes) {
  Port& port = worker_->port();
  BATON_CHECK(bytes > 0 && port.pool.empty(), "AllocatePool: once, with a size");
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhaustedError("KV pool: cannot map " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  }
  port.pool = {static_cast<std::byte*>(memory), bytes};
  port.admissions.SetPool(port.pool);
  return port.pool;
}

std::vector<std::byte> LocalTransport::LocalDescriptor() const {
  WireWriter out;
  out.Put(kDescriptorMagic);
  out.Put(worker_->port().number);
  return out.Take();
}

void LocalTransport::Open(const ProcessId& reader, std::span<const std::byte> descriptor) {
  worker_->Push(Worker::OpenCommand{reader, {descriptor.begin(), descriptor.end()}});
}
void LocalTransport::Close(const ProcessId& peer) { worker_->Push(Worker::CloseCommand{peer}); }
void LocalTransport::Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                           std::vector<uint64_t> block_bytes) {
  worker_->port().admissions.Admit(ticket, writer, std::move(block_base), std::move(block_bytes));
}
void LocalTransport::Retire(const Ticket& ticket) { worker_->port().admissions.Retire(ticket); }
void LocalTransport::Post(TransferPost post) { worker_->Push(std::move(post)); }
void LocalTransport::Poll(std::vector<TransportEvent>* events) { worker_->port().events.Take(events); }
TransportCounters LocalTransport::counters() const { return worker_->port().counters.Snapshot(); }

}  // namespace baton
