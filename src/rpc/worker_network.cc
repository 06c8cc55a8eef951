// Structure: Inbox is what other threads leave for the network thread, and outlives it for the last callbacks of
// gRPC's threads. Owners (FrontOwner, DialedOwner, AcceptedOwner) turn one stream's messages into EngineCommands.
// Network holds the links and runs the thread.
#include "rpc/worker_network.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "baton/internal/v1/handoff.grpc.pb.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "rpc/grpc_setup.h"
#include "rpc/link_codec.h"
#include "rpc/link_stream.h"
#include "rpc/peer_identity.h"

namespace baton {

namespace {

using FrontStream = ClientLink<wire::WorkerMessage, wire::FrontCommand>;
using DialedStream = ClientLink<wire::PairMessage, wire::PairMessage>;
using AcceptedStream = ServerLink<wire::PairMessage, wire::PairMessage>;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr uint64_t kNetworkIds = uint64_t{1} << 63;  // accepted and front links; the engine's have this bit clear
constexpr size_t kMaxWatched = 4096;
constexpr std::chrono::seconds kWarnUnreachableEvery{30};

// ---- what other threads leave for the network thread ------------------------------------------------------

struct LinkEnded {
  LinkId link{};
  Status why;
  bool was_up = false;
};
struct LinkAccepted {
  LinkId link{};
  std::shared_ptr<AcceptedStream> stream;
};
using NetworkEvent = std::variant<LinkEnded, LinkAccepted>;

class Inbox {
 public:
  // More than this many messages between two turns of the network thread means that it is stuck.
  static constexpr size_t kMaxWaiting = 1 << 17;

  Inbox() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { BATON_CHECK(wake_fd_ >= 0, "eventfd failed"); }
  ~Inbox() { close(wake_fd_); }
  int wake_fd() const { return wake_fd_; }

  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof(one));
  }
  void Post(NetworkEvent event) {
    {
      std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    Wake();
  }
  void Deliver(Outbox&& more) {
    {
      std::lock_guard lock(mutex_);
      overflowed_ |= outbox_.to_peers.size() + outbox_.to_fronts.size() > kMaxWaiting;
      if (!overflowed_) {
        Append(&outbox_.dial, &more.dial);
        Append(&outbox_.to_peers, &more.to_peers);
        Append(&outbox_.to_fronts, &more.to_fronts);
        Append(&outbox_.watch, &more.watch);
        Append(&outbox_.close, &more.close);
      }
    }
    Wake();
  }
  // False: an overflow happened, something was dropped and no link can be trusted any more.
  bool Take(Outbox* outbox, std::vector<NetworkEvent>* events) {
    uint64_t count = 0;
    (void)!read(wake_fd_, &count, sizeof(count));
    std::lock_guard lock(mutex_);
    *outbox = std::exchange(outbox_, {});
    *events = std::exchange(events_, {});
    return !std::exchange(overflowed_, false);
  }

  // ---- to the engine, from any thread, in order per caller ----
  void Attach(Mailbox<EngineCommand>* engine) { engine_.store(engine); }
  bool attached() const { return engine_.load() != nullptr; }
  bool Submit(EngineCommand command) { return engine_.load()->Push(std::move(command)); }
  bool Control(EngineCommand command) { return engine_.load()->PushControl(std::move(command)); }
  // A fact that must not be lost (LinkDown, ProcessDied): kept and tried again when there is no room.
  void Insist(EngineCommand command) {
    std::lock_guard lock(mutex_);
    insisted_.push_back(std::move(command));
    TryInsisted();
  }
  bool Retry() {  // true: some are still kept
    std::lock_guard lock(mutex_);
    TryInsisted();
    return !insisted_.empty();
  }

 private:
  template <typename T>
  static void Append(std::vector<T>* to, std::vector<T>* from) {
    if (to->empty()) return to->swap(*from);
    to->insert(to->end(), std::make_move_iterator(from->begin()), std::make_move_iterator(from->end()));
  }
  void TryInsisted() {
    size_t sent = 0;
    while (sent < insisted_.size() && engine_.load()->PushControl(insisted_[sent])) ++sent;
    insisted_.erase(insisted_.begin(), insisted_.begin() + static_cast<ptrdiff_t>(sent));
  }

  const int wake_fd_;
  std::atomic<Mailbox<EngineCommand>*> engine_{nullptr};
  std::mutex mutex_;
  Outbox outbox_;
  std::vector<NetworkEvent> events_;
  std::vector<EngineCommand> insisted_;
  bool overflowed_ = false;
};

Status EngineIsFull() {
  return ResourceExhaustedError("the engine's mailbox is full: it is stuck, or the peer ignores its credits");
}

// Shared with what may outlive the network: the last callbacks of gRPC's threads.
using OwnTls = std::shared_ptr<const TlsPems>;

Status NotWhom(const std::string& expected, const CertifiedProcess& proven) {
  return Status(Code::kPermissionDenied, expected + " is expected, but the certificate is that of " +
                                             std::string(RoleName(proven.role)) + " " + proven.name);
}

// ---- owners: one stream's life as commands ----------------------------------------------------------------

// Sends LinkUp once and before anything else, LinkDown once and after everything.
class LinkLife {
 public:
  // `admit`: whether the peer is who it should be; asked once, before LinkUp.
  LinkLife(std::shared_ptr<Inbox> inbox, LinkId link, LinkKind kind, std::function<Status()> admit = {})
      : inbox_(std::move(inbox)), link_(link), kind_(kind), admit_(std::move(admit)) {}
  Status Up() {
    std::lock_guard lock(mutex_);  // the answer and the first message may be reported by two threads at once
    if (up_) return OkStatus();
    if (admit_) BATON_RETURN_IF_ERROR(admit_());
    up_ = inbox_->Control(LinkUp{link_, kind_});
    return up_ ? OkStatus() : EngineIsFull();
  }
  // A dial that never came up is told too, an unsolicited link is not.
  void Down(const Status& why) {
    if (up_ || kind_ == LinkKind::kPairWriter) inbox_->Insist(LinkDown{link_, why});
    inbox_->Post(LinkEnded{link_, why, up_});
  }
  Inbox& inbox() { return *inbox_; }
  LinkId link() const { return link_; }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const LinkId link_;
  const LinkKind kind_;
  const std::function<Status()> admit_;
  std::mutex mutex_;
  bool up_ = false;
};

class FrontOwner final : public LinkOwner<wire::FrontCommand> {
 public:
  // `call` outlives this.
  FrontOwner(std::shared_ptr<Inbox> inbox, LinkId link, const grpc::ClientContext* call, OwnTls tls)
      : tls_(std::move(tls)), life_(std::move(inbox), link, LinkKind::kFront, [this, call] { return Admit(*call); }) {}
  Status OnUp() override { return life_.Up(); }
  Status OnMessage(const wire::FrontCommand& message) override {
    BATON_RETURN_IF_ERROR(life_.Up());
    BATON_ASSIGN_OR_RETURN(FrontCommand command, Decode(message));
    if (const auto* hello = std::get_if<FrontHello>(&command); hello != nullptr && proven_) {
      if (hello->front.name != proven_->name) return NotWhom("router " + hello->front.name, *proven_);
    }
    const bool submission =
        std::holds_alternative<PrefillCommand>(command) || std::holds_alternative<DecodeCommand>(command);
    FromFront value{life_.link(), std::move(command)};
    const bool taken = submission ? life_.inbox().Submit(std::move(value)) : life_.inbox().Control(std::move(value));
    return taken ? OkStatus() : EngineIsFull();
  }
  void OnClosed(const Status& why) override { life_.Down(ExplainConnection(why, *tls_)); }

 private:
  Status Admit(const grpc::ClientContext& call) {
    BATON_ASSIGN_OR_RETURN(proven_, ProvenProcess(*call.auth_context(), tls_->serves()));
    return !proven_ || proven_->role == CertifiedRole::kRouter ? OkStatus() : NotWhom("a router", *proven_);
  }

  const OwnTls tls_;
  std::optional<CertifiedProcess> proven_;  // since Up
  LinkLife life_;
};

class DialedOwner final : public LinkOwner<wire::PairMessage> {
 public:
  // `call` outlives this.
  DialedOwner(std::shared_ptr<Inbox> inbox, LinkId link, std::string reader, const grpc::ClientContext* call,
              OwnTls tls)
      : reader_(std::move(reader)),
        tls_(std::move(tls)),
        life_(std::move(inbox), link, LinkKind::kPairWriter, [this, call] { return Admit(*call); }) {}
  Status OnUp() override { return life_.Up(); }
  Status OnMessage(const wire::PairMessage& message) override {
    BATON_RETURN_IF_ERROR(life_.Up());
    BATON_ASSIGN_OR_RETURN(PairMessage value, Decode(message));
    return life_.inbox().Control(FromPeer{life_.link(), std::move(value)}) ? OkStatus() : EngineIsFull();
  }
  void OnClosed(const Status& why) override { life_.Down(ExplainConnection(why, *tls_)); }

 private:
  Status Admit(const grpc::ClientContext& call) const {
    BATON_ASSIGN_OR_RETURN(const std::optional<CertifiedProcess> proven,
                           ProvenProcess(*call.auth_context(), tls_->serves()));
    const bool good = !proven || (proven->name == reader_ && proven->may().decode);
    return good ? OkStatus() : NotWhom("decode worker " + reader_, *proven);
  }

  const std::string reader_;
  const OwnTls tls_;
  LinkLife life_;
};

class AcceptedOwner final : public LinkOwner<wire::PairMessage> {
 public:
  AcceptedOwner(std::shared_ptr<Inbox> inbox, LinkId link, std::optional<CertifiedProcess> proven,
                std::shared_ptr<AcceptedStream> stream)
      : life_(std::move(inbox), link, LinkKind::kPairReader), proven_(std::move(proven)), stream_(std::move(stream)) {}
  Status Up() { return life_.Up(); }
  Status OnMessage(const wire::PairMessage& message) override {
    BATON_ASSIGN_OR_RETURN(PairMessage value, Decode(message));
    if (const auto* hello = std::get_if<PairHello>(&value); hello != nullptr && proven_) {
      if (hello->writer.name != proven_->name) {
        const Status why = NotWhom("writer " + hello->writer.name, *proven_);
        spdlog::warn("a pair session is refused: {}", why.message());
        return why;
      }
    }
    if (const auto* reserve = std::get_if<Reserve>(&value)) {
      if (proven_ && !proven_->may().prefill && !reserve->migration) {
        const Status why = NotWhom("a writer of prompts", *proven_);
        spdlog::warn("a pair session is closed: {}", why.message());
        return why;
      }
      // No credits bound what many writers ask for together, so a full engine says BUSY and the link lives.
      const Busy busy{reserve->child, reserve->epoch, reserve->attempt, std::chrono::milliseconds(20)};
      if (life_.inbox().Submit(FromPeer{life_.link(), std::move(value)})) return OkStatus();
      auto answer = std::make_unique<wire::PairMessage>();
      Encode(PairMessage(busy), answer.get());
      return stream_->Send(std::move(answer)) == SendResult::kOverflow ? EngineIsFull() : OkStatus();
    }
    return life_.inbox().Control(FromPeer{life_.link(), std::move(value)}) ? OkStatus() : EngineIsFull();
  }
  void OnClosed(const Status& why) override {
    stream_.reset();
    life_.Down(why);
  }

 private:
  LinkLife life_;
  const std::optional<CertifiedProcess> proven_;  // nothing: no TLS
  std::shared_ptr<AcceptedStream> stream_;
};

// ---- the pair service -------------------------------------------------------------------------------------

class PairService final : public wire::PairLink::CallbackService {
 public:
  PairService(std::shared_ptr<Inbox> inbox, std::atomic<uint64_t>* next_link, LinkBounds bounds, bool tls)
      : inbox_(std::move(inbox)), next_link_(next_link), bounds_(bounds), tls_(tls) {}

  grpc::ServerBidiReactor<wire::PairMessage, wire::PairMessage>* Pair(grpc::CallbackServerContext* context) override {
    const std::shared_ptr<AcceptedStream> stream = AcceptedStream::Make(context, bounds_);
    if (!inbox_->attached()) {
      stream->Refuse(UnavailableError("this worker is still starting"));
      return stream.get();
    }
    StatusOr<std::optional<CertifiedProcess>> proven = ProvenProcess(*context->auth_context(), tls_);
    // A worker of any role: prefill workers hand off, and whoever decodes may migrate what runs there.
    const bool writes = !proven.ok() || !*proven || (*proven)->may().prefill || (*proven)->may().decode;
    if (!writes) proven = NotWhom("a writer", **proven);
    if (!proven.ok()) {
      spdlog::warn("a pair session from {} is refused: {}", context->peer(), proven.status().message());
      stream->Refuse(proven.status());
      return stream.get();
    }
    const LinkId link{kNetworkIds | next_link_->fetch_add(1)};
    auto owner = std::make_shared<AcceptedOwner>(inbox_, link, *std::move(proven), stream);
    // The network thread learns of the stream first, so that the engine's answer finds it.
    inbox_->Post(LinkAccepted{link, stream});
    if (Status status = owner->Up(); !status.ok()) {
      stream->Refuse(status);
      owner->OnClosed(status);
      return stream.get();
    }
    stream->Run(std::move(owner));
    return stream.get();
  }

 private:
  const std::shared_ptr<Inbox> inbox_;
  std::atomic<uint64_t>* const next_link_;
  const LinkBounds bounds_;
  const bool tls_;
};

// ---- the network ------------------------------------------------------------------------------------------

class Network final : public WorkerNetwork {
 public:
  explicit Network(WorkerNetworkOptions options)
      : options_(std::move(options)),
        bounds_{options_.link_queue_messages, options_.link_queue_bytes},
        service_(inbox_, &next_link_, bounds_, tls_->serves()) {}
  ~Network() override { Shutdown(); }

  Status Bind() {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    BATON_CHECK(epoll_ >= 0, "epoll_create1 failed");
    Watch(inbox_->wake_fd());
    if (options_.listen.empty()) return OkStatus();
    grpc::ServerBuilder builder;
    ServerSettings settings;
    settings.max_receive_bytes = options_.max_message_bytes;
    settings.keepalive_time = options_.keepalive_time;
    settings.keepalive_timeout = options_.keepalive_timeout;
    settings.least_ping_interval =
        std::min<std::chrono::milliseconds>(options_.keepalive_time / 2, std::chrono::milliseconds(500));
    Configure(settings, &builder);
    builder.RegisterService(&service_);
    BATON_ASSIGN_OR_RETURN(BoundServer bound,
                           BuildServer(options_.listen, options_.tls, ClientCertificates::kDemanded, &builder));
    server_ = std::move(bound.server);
    acceptor_ = std::move(bound.acceptor);
    address_ = options_.advertise.empty() ? acceptor_->address() : options_.advertise;
    if (address_.ends_with(":0")) address_.replace(address_.size() - 1, 1, std::to_string(acceptor_->port()));
    return OkStatus();
  }

  std::string pair_address() const override { return address_; }

  void Start(Mailbox<EngineCommand>* engine, const std::vector<Endpoint>& routers) override {
    BATON_CHECK(!thread_.joinable(), "WorkerNetwork::Start came twice");
    for (const Endpoint& endpoint : routers) routers_.push_back({endpoint, options_.redial_first, {}, {}, {}});
    inbox_->Attach(engine);
    thread_ = std::thread([this] { Run(); });
  }

  void Deliver(Outbox&& outbox) override { inbox_->Deliver(std::move(outbox)); }

  void Shutdown() override {
    if (shut_down_) return;
    shut_down_ = true;
    stopping_.store(true);
    inbox_->Wake();
    // Ends the accepted links too; the network thread is still there to take their ends.
    if (server_ != nullptr) {
      acceptor_->Stop();
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
      server_->Wait();
    }
    if (thread_.joinable()) thread_.join();
    server_.reset();
    for (const auto& [fd, process] : watched_) close(fd);
    close(epoll_);
  }

 private:
  struct Router {
    Endpoint endpoint;
    std::chrono::milliseconds backoff;
    LinkId link{};         // 0: not dialed
    SteadyTime dial_at{};  // when link is 0; max: never again
    SteadyTime warn_at{};  // when a failed attempt is worth a line again
  };

  // ---- network thread ----
  void Run() {
    std::vector<NetworkEvent> events;
    Outbox outbox;
    SteadyTime give_up = SteadyTime::max();
    while (true) {
      WaitForWork();
      const bool whole = inbox_->Take(&outbox, &events);
      for (NetworkEvent& event : events) OnEvent(std::move(event));
      Carry(std::move(outbox));
      if (!whole) AbortAll(ResourceExhaustedError("the network thread fell behind: too many messages wait"));
      const SteadyTime now = std::chrono::steady_clock::now();
      if (stopping_.load()) {
        if (give_up == SteadyTime::max()) give_up = now + std::chrono::seconds(5);
        AbortAll(CancelledError("this worker is shutting down"));
        const bool quiet = fronts_.empty() && dialed_.empty() && accepted_.empty() && !kept_;
        if (quiet || now >= give_up) return;
      } else {
        DialRouters(now);
      }
    }
  }

  void WaitForWork() {
    int wait_ms = -1;
    kept_ = inbox_->Retry();
    if (kept_) wait_ms = 1;
    if (stopping_.load()) wait_ms = 5;
    const SteadyTime now = std::chrono::steady_clock::now();
    for (const Router& router : routers_) {
      if (router.link != LinkId{0} || router.dial_at == SteadyTime::max()) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(router.dial_at - now).count();
      const int ms = static_cast<int>(std::clamp<int64_t>(left, 0, 10000));
      wait_ms = wait_ms < 0 ? ms : std::min(wait_ms, ms);
    }
    epoll_event ready[16];
    const int n = epoll_wait(epoll_, ready, 16, wait_ms);
    for (int i = 0; i < n; ++i) {
      if (ready[i].data.fd != inbox_->wake_fd()) OnProcessEnd(ready[i].data.fd);
    }
  }

  void Watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    BATON_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl failed");
  }

  void OnEvent(NetworkEvent event) {
    if (auto* accepted = std::get_if<LinkAccepted>(&event)) {
      accepted_[accepted->link] = std::move(accepted->stream);
      return;
    }
    const auto& ended = std::get<LinkEnded>(event);
    dialed_.erase(ended.link);
    accepted_.erase(ended.link);
    fronts_.erase(ended.link);
    for (Router& router : routers_) {
      if (router.link == ended.link) OnRouterLost(&router, ended);
    }
  }

  void OnRouterLost(Router* router, const LinkEnded& ended) {
    router->link = LinkId{0};
    if (stopping_.load()) return;
    const SteadyTime now = std::chrono::steady_clock::now();
    const std::string name = router->endpoint.in_process ? "of this process" : router->endpoint.address;
    if (ended.why.code() == Code::kFailedPrecondition) {
      router->dial_at = SteadyTime::max();
      const Status why = ended.why.Annotate("router " + name + " refuses this worker");
      if (options_.on_refused) return options_.on_refused(why);
      spdlog::error("{}", why.message());
      return;
    }
    if (ended.was_up) {
      spdlog::warn("router {} lost: {}", name, ended.why.ToString());
      router->backoff = options_.redial_first;
      router->warn_at = now + kWarnUnreachableEvery;
    } else if (now >= router->warn_at) {
      spdlog::warn("router {} cannot be reached: {}; it is tried again until it answers", name, ended.why.ToString());
      router->warn_at = now + kWarnUnreachableEvery;
    }
    router->dial_at = now + router->backoff;
    router->backoff = std::min(2 * router->backoff, options_.redial_most);
  }

  ChannelSettings PeerChannel() const {
    ChannelSettings settings;
    settings.max_message_bytes = options_.max_message_bytes;
    settings.keepalive_time = options_.keepalive_time;
    settings.keepalive_timeout = options_.keepalive_timeout;
    settings.tls = *tls_;
    return settings;
  }

  void DialRouters(SteadyTime now) {
    for (Router& router : routers_) {
      if (router.link != LinkId{0} || router.dial_at > now) continue;
      std::shared_ptr<grpc::Channel> channel = OpenChannel(router.endpoint, PeerChannel());
      if (channel == nullptr) {  // an in-process router that is gone stays gone
        router.dial_at = SteadyTime::max();
        continue;
      }
      router.link = LinkId{kNetworkIds | next_link_.fetch_add(1)};
      const std::shared_ptr<FrontStream> stream = FrontStream::Make(bounds_);
      wire::WorkerLink::NewStub(channel)->async()->WorkerSession(stream->context(), stream.get());
      fronts_[router.link] = stream;
      stream->Run(std::make_shared<FrontOwner>(inbox_, router.link, stream->context(), tls_), std::move(channel));
    }
  }

  void DialPeer(const Dial& dial) {
    ChannelSettings settings = PeerChannel();
    settings.peer_name = dial.peer.process.name;
    std::shared_ptr<grpc::Channel> channel = OpenChannel({dial.peer.address, nullptr}, settings);
    const std::shared_ptr<DialedStream> stream = DialedStream::Make(bounds_);
    wire::PairLink::NewStub(channel)->async()->Pair(stream->context(), stream.get());
    dialed_[dial.link] = stream;
    stream->Run(std::make_shared<DialedOwner>(inbox_, dial.link, dial.peer.process.name, stream->context(), tls_),
                std::move(channel));
  }

  // In the outbox's order per link: a link is dialed before it is written to, and closed last.
  void Carry(Outbox outbox) {
    for (const Dial& dial : outbox.dial) DialPeer(dial);
    for (const auto& [link, message] : outbox.to_peers) {
      if (const auto dialed = dialed_.find(link); dialed != dialed_.end()) {
        SendOn(dialed->second.get(), message);
      } else if (const auto accepted = accepted_.find(link); accepted != accepted_.end()) {
        SendOn(accepted->second.get(), message);
      }
    }
    for (const auto& [link, message] : outbox.to_fronts) {
      const auto front = fronts_.find(link);
      if (front != fronts_.end()) SendOn(front->second.get(), message);
    }
    for (const WatchProcess& watch : outbox.watch) WatchPeer(watch);
    const Status closed = CancelledError("closed by this worker");
    for (LinkId link : outbox.close) {
      if (const auto it = dialed_.find(link); it != dialed_.end()) it->second->Close(closed);
      if (const auto it = accepted_.find(link); it != accepted_.end()) it->second->Close(closed);
      if (const auto it = fronts_.find(link); it != fronts_.end()) it->second->Close(closed);
    }
  }

  // Links that are gone are told by their LinkDown, which is on its way.
  template <typename Stream, typename Message>
  void SendOn(Stream* stream, const Message& message) {
    using Wire = std::conditional_t<std::is_same_v<Message, PairMessage>, wire::PairMessage, wire::WorkerMessage>;
    auto out = std::make_unique<Wire>();
    Encode(message, out.get());
    if (stream->Send(std::move(out)) != SendResult::kOverflow) return;
    spdlog::warn("a link's write queue is full ({} messages or {} bytes): it is closed", bounds_.messages,
                 bounds_.bytes);
    stream->Abort(ResourceExhaustedError("the peer does not read: too much waits to be written"));
  }

  void AbortAll(const Status& why) {
    for (const auto& [link, stream] : dialed_) stream->Abort(why);
    for (const auto& [link, stream] : accepted_) stream->Abort(why);
    for (const auto& [link, stream] : fronts_) stream->Abort(why);
  }

  // ---- processes ----
  void WatchPeer(const WatchProcess& watch) {
    for (const auto& [fd, process] : watched_) {
      if (process == watch.process) return inbox_->Insist(ProcessWatched{watch.process, true});
    }
    // On another host its pid means nothing.
    if (watch.host.empty() || watch.host != HostIdentity()) {
      return inbox_->Insist(ProcessWatched{watch.process, false});
    }
    if (watched_.size() >= kMaxWatched || watch.pid == 0 || watch.pid > INT32_MAX) {
      spdlog::warn("process {} (pid {}) cannot be watched", ToString(watch.process), watch.pid);
      return inbox_->Insist(ProcessWatched{watch.process, false});
    }
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(watch.pid), 0));
    if (fd < 0) {
      // No such process under an identity that shares our pids: it has ended.
      if (errno == ESRCH) return inbox_->Insist(ProcessDied{watch.process});
      spdlog::warn("pidfd_open({}) failed with errno {}: {} is not watched", watch.pid, errno, ToString(watch.process));
      return inbox_->Insist(ProcessWatched{watch.process, false});
    }
    watched_[fd] = watch.process;
    Watch(fd);
    inbox_->Insist(ProcessWatched{watch.process, true});
  }

  void OnProcessEnd(int fd) {
    const auto it = watched_.find(fd);
    if (it == watched_.end()) return;
    spdlog::info("process {} has ended", ToString(it->second));
    inbox_->Insist(ProcessDied{it->second});
    watched_.erase(it);
    close(fd);
  }

  const WorkerNetworkOptions options_;
  const LinkBounds bounds_;
  const OwnTls tls_ = std::make_shared<const TlsPems>(options_.tls);
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::atomic<uint64_t> next_link_{1};
  PairService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  std::string address_;
  int epoll_ = -1;
  bool shut_down_ = false;
  std::atomic<bool> stopping_{false};

  // Network thread.
  bool kept_ = false;
  std::vector<Router> routers_;
  std::map<LinkId, std::shared_ptr<FrontStream>> fronts_;
  std::map<LinkId, std::shared_ptr<DialedStream>> dialed_;
  std::map<LinkId, std::shared_ptr<AcceptedStream>> accepted_;
  std::map<int, ProcessId> watched_;  // by pidfd

  std::thread thread_;
};

}  // namespace

StatusOr<std::unique_ptr<WorkerNetwork>> WorkerNetwork::Listen(WorkerNetworkOptions options) {
  KeepCallbackThreads();
  auto network = std::make_unique<Network>(std::move(options));
  BATON_RETURN_IF_ERROR(network->Bind());
  return std::unique_ptr<WorkerNetwork>(std::move(network));
}

std::string HostIdentity() {
  static const std::string identity = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    struct stat pids {};
    if (boot.empty() || stat("/proc/self/ns/pid", &pids) != 0) return std::string();
    return boot + ":" + std::to_string(pids.st_ino);
  }();
  return identity;
}

}  // namespace baton
