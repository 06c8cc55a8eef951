#include "transport/grpc/grpc_transport.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "transport/admission_table.h"
#include "transport/event_queue.h"
#include "transport/grpc/descriptor.h"
#include "transport/grpc/reader.h"
#include "transport/grpc/streams.h"
#include "transport/grpc/writer.h"

namespace baton {
namespace {

uint64_t RandomInstance() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

struct OpenCommand {
  ProcessId reader;
  std::vector<std::byte> descriptor;
};
struct CloseCommand {
  ProcessId peer;
};
using Command = std::variant<OpenCommand, CloseCommand, TransferPost>;

}  // namespace

// The progress thread and its inbox. Engine-thread calls only append commands, or act on the admission table.
class GrpcTransport::Engine {
 public:
  Engine(GrpcOptions options, std::unique_ptr<GrpcStreams> streams, Waker* waker)
      : options_(std::move(options)),
        events_(waker),
        admissions_(&events_, &counters_),
        streams_(std::move(streams)),
        writer_(streams_.get(), options_, &events_, &counters_),
        reader_(streams_.get(), options_, instance_, &admissions_, &counters_),
        thread_([this] { Run(); }) {}

  ~Engine() {
    admissions_.Stop();
    events_.Detach();
    streams_->StopServer();
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    streams_->Wake();
    thread_.join();
    streams_.reset();
    if (!pool_.empty()) munmap(pool_.data(), pool_.size());
  }

  StatusOr<std::span<std::byte>> AllocatePool(size_t bytes) {
    BATON_CHECK(bytes > 0 && pool_.empty(), "AllocatePool: once, with a size");
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return ResourceExhaustedError("KV pool: cannot map " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
    }
    std::lock_guard lock(mutex_);
    pool_ = {static_cast<std::byte*>(memory), bytes};
    admissions_.SetPool(pool_);
    return pool_;
  }

  std::vector<std::byte> LocalDescriptor() const {
    std::string address = options_.advertise.empty() ? options_.listen : options_.advertise;
    if (address.ends_with(":0")) address.replace(address.size() - 1, 1, std::to_string(streams_->port()));
    return GrpcDescriptor{instance_, std::move(address), options_.tls.mutual()}.Encode();
  }

  void Push(Command command) {
    {
      std::lock_guard lock(mutex_);
      if (commands_.empty()) first_pushed_ = clock_.Now();
      commands_.push_back(std::move(command));
    }
    streams_->Wake();
  }
  AdmissionTable& admissions() { return admissions_; }
  EventQueue& events() { return events_; }
  TransportCounters counters() const { return counters_.Snapshot(); }

 private:
  void Run() {
    while (true) {
      // While a digest is under way it only looks at what is there.
      const TimePoint deadline =
          reader_.digests().empty() ? std::min(writer_.NextDeadline(), reader_.NextDeadline()) : TimePoint();
      StreamEvent event;
      const bool got = streams_->Next(deadline, &event);
      const TimePoint now = clock_.Now();
      if (got && event.kind == StreamEvent::Kind::kWoken) {
        if (!RunCommands(now)) break;
      } else if (got && event.accepted) {
        reader_.OnEvent(event, now);
      } else if (got) {
        writer_.OnEvent(event, progress_pool_, now);
      }
      writer_.CheckDeadlines(now);
      reader_.CheckDeadlines(now);
      reader_.digests().Slice();
    }
    writer_.CloseAll();
    streams_->Drain();
  }

  bool RunCommands(TimePoint now) {
    std::vector<Command> commands;
    TimePoint pushed;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return false;
      pushed = first_pushed_;
      commands.swap(commands_);
      progress_pool_ = pool_;
    }
    if (!commands.empty()) CountTurn(counters_, static_cast<uint64_t>(std::max(now - pushed, Duration{}).count()));
    for (Command& command : commands) {
      std::visit([&](auto& c) { Handle(std::move(c), now); }, command);
    }
    return true;
  }
  void Handle(OpenCommand command, TimePoint now) { writer_.Open(command.reader, command.descriptor, now); }
  void Handle(CloseCommand command, TimePoint) {
    writer_.Close(command.peer);
    reader_.Close(command.peer);
    events_.Push(Severed{command.peer});
  }
  void Handle(TransferPost post, TimePoint now) { writer_.Post(std::move(post), progress_pool_, now); }

  const GrpcOptions options_;
  const uint64_t instance_ = RandomInstance();
  SteadyClock clock_;
  EventQueue events_;
  AtomicTransportCounters counters_;
  AdmissionTable admissions_;
  std::unique_ptr<GrpcStreams> streams_;
  GrpcWriter writer_;
  GrpcReader reader_;
  std::span<std::byte> progress_pool_;  // progress thread

  std::mutex mutex_;
  std::vector<Command> commands_;
  TimePoint first_pushed_{};  // of commands_
  std::span<std::byte> pool_;
  bool stop_ = false;
  std::thread thread_;
};

GrpcTransport::GrpcTransport(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
GrpcTransport::~GrpcTransport() = default;

StatusOr<std::unique_ptr<GrpcTransport>> GrpcTransport::Create(GrpcOptions options, Waker* waker) {
  StreamOptions streams;
  streams.listen = options.listen;
  streams.tls = options.tls;
  streams.max_accepted = options.max_inbound_links;
  streams.connect_timeout = options.open_timeout;
  BATON_ASSIGN_OR_RETURN(auto bound, GrpcStreams::Listen(streams));
  return std::unique_ptr<GrpcTransport>(
      new GrpcTransport(std::make_unique<Engine>(std::move(options), std::move(bound), waker)));
}

StatusOr<std::span<std::byte>> GrpcTransport::AllocatePool(size_t bytes) { return engine_->AllocatePool(bytes); }
std::vector<std::byte> GrpcTransport::LocalDescriptor() const { return engine_->LocalDescriptor(); }
void GrpcTransport::Open(const ProcessId& reader, std::span<const std::byte> descriptor) {
  engine_->Push(OpenCommand{reader, {descriptor.begin(), descriptor.end()}});
}
void GrpcTransport::Close(const ProcessId& peer) { engine_->Push(CloseCommand{peer}); }
void GrpcTransport::Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                          std::vector<uint64_t> block_bytes) {
  engine_->admissions().Admit(ticket, writer, std::move(block_base), std::move(block_bytes));
}
void GrpcTransport::Retire(const Ticket& ticket) { engine_->admissions().Retire(ticket); }
void GrpcTransport::Post(TransferPost post) { engine_->Push(std::move(post)); }
void GrpcTransport::Poll(std::vector<TransportEvent>* events) { engine_->events().Take(events); }
TransportCounters GrpcTransport::counters() const { return engine_->counters(); }

}  // namespace baton
