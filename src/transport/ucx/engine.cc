#include "transport/ucx/engine.h"

#include <immintrin.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "transport/ucx/lanes.h"

namespace baton {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(20);
constexpr Duration kNap = std::chrono::milliseconds(1);  // while UCX has something to do but gets nowhere
constexpr Duration kShutdown = std::chrono::seconds(2);
constexpr int kProgressCalls = 64;  // of UCX between two looks at the commands

uint64_t RandomInstance() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::span<const std::byte> Bytes(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }

template <typename Half, void (Half::*kHandle)(std::span<const std::byte>)>
ucs_status_t OnControl(void* half, const void*, size_t, void* data, size_t size, const ucp_am_recv_param_t* param) {
  // Control messages are sent eagerly; a peer that wants a rendezvous for one is not one of ours.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) (static_cast<Half*>(half)->*kHandle)(Bytes(data, size));
  return UCS_OK;
}

ucs_status_t OnData(void* reader, const void* header, size_t header_size, void* data, size_t size,
                    const ucp_am_recv_param_t* param) {
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<UcxReader*>(reader)->OnData(Bytes(header, header_size), data, size, rendezvous);
}

}  // namespace

StatusOr<std::unique_ptr<UcxEngine>> UcxEngine::Create(UcxOptions options, Waker* waker) {
  std::unique_ptr<UcxEngine> engine(new UcxEngine(std::move(options), waker));
  BATON_RETURN_IF_ERROR(engine->Init());
  return engine;
}

UcxEngine::UcxEngine(UcxOptions options, Waker* waker)
    : options_(std::move(options)), instance_(RandomInstance()), events_(waker), admissions_(&events_, &counters_) {}

Status UcxEngine::Init() {
  std::vector<std::string> put_transports;
  if (options_.tls == "auto" || options_.tls == "rdma") {
    BATON_ASSIGN_OR_RETURN(const UcxOffer offer, QueryUcx());
    put_transports = PutTransports(offer.lanes, options_.net_devices);
  }
  if (options_.puts_over_tcp) put_transports = {"tcp"};
  BATON_ASSIGN_OR_RETURN(context_, UcxContext::Create(options_.tls, options_.net_devices, std::move(put_transports)));
  writer_ = std::make_unique<UcxWriter>(context_.get(), options_, &events_, &counters_);
  reader_ = std::make_unique<UcxReader>(context_.get(), options_, instance_, &admissions_, &counters_);
  BATON_RETURN_IF_ERROR(SetHandlers());
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) {
    return ResourceExhaustedError(std::string("ucx: event fd: ") + std::strerror(errno) + "; raise ulimit -n");
  }
  return OkStatus();
}

Status UcxEngine::SetHandlers() {
  struct Handler {
    LinkMessage id;
    ucp_am_recv_callback_t callback;
    void* half;
  };
  const Handler handlers[] = {
      {LinkMessage::kHello, &OnControl<UcxReader, &UcxReader::OnHello>, reader_.get()},
      {LinkMessage::kAnswer, &OnControl<UcxWriter, &UcxWriter::OnAnswer>, writer_.get()},
      {LinkMessage::kData, &OnData, reader_.get()},
      {LinkMessage::kPlaced, &OnControl<UcxWriter, &UcxWriter::OnPlaced>, writer_.get()},
      {LinkMessage::kNotice, &OnControl<UcxReader, &UcxReader::OnNotice>, reader_.get()},
  };
  for (const Handler& h : handlers) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = static_cast<unsigned>(h.id);
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = h.callback;
    param.arg = h.half;
    if (ucs_status_t s = ucp_worker_set_am_recv_handler(context_->worker(), &param); s != UCS_OK) {
      return FromUcx(s, "ucx: message handler");
    }
  }
  return OkStatus();
}

UcxEngine::~UcxEngine() {
  admissions_.Stop();
  events_.Detach();
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
    thread_.join();
  }
  // The worker first: destroying it may still run callbacks into the halves.
  context_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

StatusOr<std::span<std::byte>> UcxEngine::AllocatePool(size_t bytes) {
  BATON_CHECK(bytes > 0 && context_->pool().empty(), "AllocatePool: once, with a size");
  BATON_RETURN_IF_ERROR(context_->AllocatePool(bytes));
  admissions_.SetPool(context_->pool());
  thread_ = std::thread([this] { Run(); });
  return context_->pool();
}

std::vector<std::byte> UcxEngine::LocalDescriptor() const {
  UcxDescriptor d;
  d.host = ThisHost();
  d.instance = instance_;
  d.tls = options_.tls;
  d.address = context_->address();
  d.rkey = context_->rkey();
  d.pool_base = reinterpret_cast<uint64_t>(context_->pool().data());
  d.pool_bytes = context_->pool().size();
  d.put_lanes = context_->put_transports();
  return d.Encode();
}

void UcxEngine::Push(Command command) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = commands_.empty();
    if (first) first_pushed_ = clock_.Now();
    commands_.push_back(std::move(command));
  }
  const uint64_t one = 1;
  if (first) [[maybe_unused]]
    const ssize_t n = write(wake_fd_, &one, sizeof(one));
}

void UcxEngine::Retire(const Ticket& ticket) {
  if (!admissions_.Retire(ticket)) Push(RetiredCommand{ticket});
}

void UcxEngine::Handle(OpenCommand command, TimePoint now) { writer_->Open(command.reader, command.descriptor, now); }
void UcxEngine::Handle(CloseCommand command, TimePoint) {
  writer_->Close(command.peer);
  reader_->Close(command.peer);
  severing_.insert(command.peer);
}
void UcxEngine::Handle(FenceCommand command, TimePoint) {
  reader_->Fence(command.writer);
  fencing_.insert(command.writer);
}
void UcxEngine::Handle(RetiredCommand command, TimePoint now) {
  reader_->WatchRetired(command.ticket, now + options_.retire_timeout);
}
void UcxEngine::Handle(TransferPost post, TimePoint) { writer_->Post(std::move(post)); }

// True: something was done.
bool UcxEngine::RunCommands(TimePoint now) {
  std::vector<Command> commands;
  TimePoint pushed;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
    pushed = first_pushed_;
  }
  if (!commands.empty()) CountTurn(counters_, static_cast<uint64_t>(std::max(now - pushed, Duration(0)).count()));
  for (Command& command : commands) {
    std::visit([&](auto& c) { Handle(std::move(c), now); }, command);
  }
  return !commands.empty();
}

void UcxEngine::ReportClosed() {
  std::erase_if(severing_, [this](const ProcessId& peer) {
    if (writer_->Closing(peer) || reader_->Closing(peer)) return false;
    events_.Push(Severed{peer});
    return true;
  });
  std::erase_if(fencing_, [this](const ProcessId& writer) {
    if (reader_->Closing(writer)) return false;
    events_.Push(Fenced{writer});
    return true;
  });
}

void UcxEngine::Run() {
  TimePoint last = clock_.Now();
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    TimePoint now = clock_.Now();
    bool did = RunCommands(now);
    for (int i = 0; i < kProgressCalls && ucp_worker_progress(context_->worker()) != 0; ++i) did = true;
    did |= writer_->Advance(now);
    did |= reader_->Advance(now);
    ReportClosed();
    now = clock_.Now();
    if (did) {
      last = now;
    } else if ((writer_->Pending() || reader_->Pending()) && now - last < kSpin) {
      _mm_pause();
    } else {
      Sleep(now, now - last >= kSpin);
    }
  }
  Shutdown();
}

// Waits for UCX, a command or the next deadline. If UCX wants progress rather than to sleep (arm says busy), spins a
// little first, then naps between looks: a stopped peer can keep it busy for seconds.
void UcxEngine::Sleep(TimePoint now, bool may_nap) {
  Duration wait = std::chrono::hours(1);
  const TimePoint deadline = std::min(writer_->NextDeadline(), reader_->NextDeadline());
  if (deadline != kNever) wait = std::clamp(deadline - now, Duration{}, wait);
  const bool armed = ucp_worker_arm(context_->worker()) == UCS_OK;
  if (!armed && !may_nap) return;
  if (!armed || writer_->closing_any() || reader_->closing_any()) wait = std::min(wait, kNap);
  const auto ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
  pollfd fds[2] = {{wake_fd_, POLLIN, 0}, {context_->event_fd(), POLLIN, 0}};
  if (poll(fds, armed ? 2 : 1, ms) > 0 && (fds[0].revents & POLLIN) != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof(count));
  }
}

void UcxEngine::Shutdown() {
  writer_->CloseAll();
  reader_->CloseAll();
  const TimePoint give_up = clock_.Now() + kShutdown;
  while (!(writer_->idle() && reader_->idle()) && clock_.Now() < give_up) {
    ucp_worker_progress(context_->worker());
    writer_->Advance(clock_.Now());
    reader_->Advance(clock_.Now());
  }
}

UcxTransport::UcxTransport(std::unique_ptr<UcxEngine> engine) : engine_(std::move(engine)) {}
UcxTransport::~UcxTransport() = default;

StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(UcxOptions options, Waker* waker) {
  auto engine = UcxEngine::Create(std::move(options), waker);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<UcxTransport>(new UcxTransport(*std::move(engine)));
}

StatusOr<std::span<std::byte>> UcxTransport::AllocatePool(size_t bytes) { return engine_->AllocatePool(bytes); }
std::vector<std::byte> UcxTransport::LocalDescriptor() const { return engine_->LocalDescriptor(); }
void UcxTransport::Open(const ProcessId& reader, std::span<const std::byte> descriptor) {
  engine_->Push(UcxEngine::OpenCommand{reader, {descriptor.begin(), descriptor.end()}});
}
void UcxTransport::Close(const ProcessId& peer) { engine_->Push(UcxEngine::CloseCommand{peer}); }
void UcxTransport::Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                         std::vector<uint64_t> block_bytes) {
  engine_->admissions().Admit(ticket, writer, std::move(block_base), std::move(block_bytes));
}
void UcxTransport::Retire(const Ticket& ticket) { engine_->Retire(ticket); }
void UcxTransport::Fence(const ProcessId& writer) { engine_->Push(UcxEngine::FenceCommand{writer}); }
void UcxTransport::Post(TransferPost post) { engine_->Push(std::move(post)); }
void UcxTransport::Poll(std::vector<TransportEvent>* events) { engine_->events().Take(events); }
TransportCounters UcxTransport::counters() const { return engine_->counters(); }

}  // namespace baton
