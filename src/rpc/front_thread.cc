#include "rpc/front_thread.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace baton {

namespace {
constexpr Duration kLongestWait = std::chrono::hours(1);
}  // namespace

FrontThread::FrontThread(Options options, const Tokenizer* tokenizer, const ChatTemplate* chat, const Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      front_(options_.front, tokenizer, chat),
      mailbox_(options_.max_submissions, options_.max_control),
      thread_([this] { Run(); }) {}

FrontThread::~FrontThread() { Stop(); }

// ---- any thread -------------------------------------------------------------------------------------------

bool FrontThread::PushControl(Item item) {
  std::lock_guard lock(gate_);
  return !closed_ && mailbox_.PushControl(std::move(item));
}

StatusOr<ClientHandle> FrontThread::Submit(ClientRequest request, std::shared_ptr<ClientSink> sink) {
  const ClientHandle client{next_client_.fetch_add(1)};
  std::lock_guard lock(gate_);
  if (closed_) return UnavailableError("the router is shutting down; try another one");
  if (!mailbox_.Push(Submitted{client, std::move(request), std::move(sink)})) {
    return ResourceExhaustedError("the router has " + std::to_string(options_.max_submissions) +
                                  " requests waiting to be read, which is its limit; try again later");
  }
  return client;
}

void FrontThread::Gone(ClientHandle client) {
  // Lost only in a mailbox that 128 k messages fill (or when all ends): the request then runs on, unheard.
  (void)PushControl(FrontInput(ClientGone{client}));
}

void FrontThread::Cancel(std::string request_id, std::function<void(bool)> done) {
  Cancelled item{std::move(request_id), done};
  if (!PushControl(std::move(item))) done(false);
}

LinkId FrontThread::AddWorker(WorkerHello hello, std::shared_ptr<WorkerSink> sink) {
  const LinkId link{next_link_.fetch_add(1)};
  return PushControl(Joined{link, std::move(hello), std::move(sink)}) ? link : LinkId{0};
}

bool FrontThread::FromWorkerLink(LinkId link, WorkerBatch batch) {
  return PushControl(FrontInput(FromWorker{link, std::move(batch)}));
}

void FrontThread::RemoveWorker(LinkId link, Status why) {
  // The front finds out by missing heartbeats where this is lost.
  (void)PushControl(FrontInput(WorkerDown{link, std::move(why)}));
}

template <typename T>
OperatorHandle FrontThread::PushOrder(T order, std::shared_ptr<OperatorSink> sink) {
  const OperatorHandle handle{next_operator_.fetch_add(1)};
  order.handle = handle;
  return PushControl(Ordered{handle, std::move(order), std::move(sink)}) ? handle : OperatorHandle{0};
}

OperatorHandle FrontThread::Order(DrainOrder order, std::shared_ptr<OperatorSink> sink) {
  return PushOrder(std::move(order), std::move(sink));
}

OperatorHandle FrontThread::Order(RoleOrder order, std::shared_ptr<OperatorSink> sink) {
  return PushOrder(std::move(order), std::move(sink));
}

void FrontThread::Gone(OperatorHandle handle) { (void)PushControl(FrontInput(OperatorGone{handle})); }

void FrontThread::BeginDrain() { (void)PushControl(FrontInput(FrontDrain{})); }

bool FrontThread::Query(std::function<void(const Front&, TimePoint)> query) {
  return PushControl(Asked{std::move(query)});
}

void FrontThread::Stop() {
  stop_.store(true);
  mailbox_.Wake();
  if (thread_.joinable()) thread_.join();
}

// ---- front thread -----------------------------------------------------------------------------------------

void FrontThread::Run() {
  std::vector<Item> items;
  while (!stop_.load()) {
    mailbox_.Drain(&items, TimeToWait());
    now_ = clock_->Now();
    for (Item& item : items) Handle(std::move(item));
    items.clear();
    if (now_ >= front_.NextTimer()) front_.Handle(Tick{}, now_, &output_);
    DeliverOutput();
    live_.store(front_.live(), std::memory_order_relaxed);
    UpdateServing();
  }
  // What is still queued gets an answer too, and nothing is queued after it.
  {
    std::lock_guard lock(gate_);
    closed_ = true;
  }
  mailbox_.Drain(&items, std::chrono::nanoseconds(0));
  for (Item& item : items) {
    if (auto* submitted = std::get_if<Submitted>(&item)) clients_[submitted->client] = std::move(submitted->sink);
    if (auto* cancelled = std::get_if<Cancelled>(&item)) cancelled->done(false);
    if (auto* asked = std::get_if<Asked>(&item)) asked->query(front_, now_);
    if (auto* joined = std::get_if<Joined>(&item)) joined->sink->Close(UnavailableError("the router is shutting down"));
    if (auto* ordered = std::get_if<Ordered>(&item)) operators_[ordered->handle] = std::move(ordered->sink);
  }
  OrderUpdate stopped;
  stopped.last = true;
  stopped.status = UnavailableError("the router is shutting down");
  for (auto& [handle, sink] : operators_) sink->OnUpdate(stopped);
  operators_.clear();
  for (auto& [client, sink] : clients_) {
    sink->OnEvent(Failed{UnavailableError("the router is shutting down; try another one"), "SHUTTING_DOWN", "", {}});
  }
  for (auto& [link, sink] : workers_) sink->Close(UnavailableError("the router is shutting down"));
  clients_.clear();
  workers_.clear();
}

Duration FrontThread::TimeToWait() const {
  const TimePoint timer = front_.NextTimer();
  if (timer == kNever) return kLongestWait;
  return std::clamp<Duration>(timer - clock_->Now(), Duration(0), kLongestWait);
}

void FrontThread::Handle(Item item) {
  if (auto* submitted = std::get_if<Submitted>(&item)) {
    clients_[submitted->client] = std::move(submitted->sink);
    front_.Handle(ClientSubmit{submitted->client, std::move(submitted->request)}, now_, &output_);
  } else if (auto* cancelled = std::get_if<Cancelled>(&item)) {
    const bool found = front_.Knows(cancelled->request_id);
    front_.Handle(ClientCancel{ClientHandle{0}, std::move(cancelled->request_id)}, now_, &output_);
    cancelled->done(found);
  } else if (auto* joined = std::get_if<Joined>(&item)) {
    workers_[joined->link] = std::move(joined->sink);
    serving_checked_ = {};
    front_.Handle(WorkerUp{joined->link, std::move(joined->hello)}, now_, &output_);
  } else if (auto* asked = std::get_if<Asked>(&item)) {
    asked->query(front_, now_);
  } else if (auto* ordered = std::get_if<Ordered>(&item)) {
    operators_[ordered->handle] = std::move(ordered->sink);
    serving_checked_ = {};
    front_.Handle(std::move(ordered->order), now_, &output_);
  } else {
    auto& input = std::get<FrontInput>(item);
    if (auto* gone = std::get_if<ClientGone>(&input)) clients_.erase(gone->client);
    if (auto* down = std::get_if<WorkerDown>(&input)) workers_.erase(down->link);
    if (auto* waiter = std::get_if<OperatorGone>(&input)) operators_.erase(waiter->handle);
    if (!std::holds_alternative<FromWorker>(input)) serving_checked_ = {};
    front_.Handle(std::move(input), now_, &output_);
  }
}

void FrontThread::DeliverOutput() {
  for (auto& [client, event] : output_.to_clients) {
    const auto sink = clients_.find(client);
    if (sink == clients_.end()) continue;  // gone meanwhile
    const bool last = std::holds_alternative<Done>(event) || std::holds_alternative<Failed>(event);
    sink->second->OnEvent(std::move(event));
    if (last) clients_.erase(sink);
  }
  for (const auto& [handle, update] : output_.to_operators) {
    const auto sink = operators_.find(handle);
    if (sink == operators_.end()) continue;
    sink->second->OnUpdate(update);
    if (update.last) operators_.erase(sink);
  }
  for (const auto& [link, command] : output_.to_workers) {
    const auto sink = workers_.find(link);
    if (sink != workers_.end()) sink->second->Send(command);
  }
  for (const LinkClose& close : output_.close) {
    const auto sink = workers_.find(close.link);
    if (sink == workers_.end()) continue;
    spdlog::info("closing a worker's session: {}", close.why.ToString());
    sink->second->Close(close.why);
    workers_.erase(sink);
  }
  output_.Clear();
}

void FrontThread::UpdateServing() {
  // Roles and drains of workers change with heartbeats, and there is always a next one: looking every 50 ms is
  // enough for those. Whatever else happens is looked at once (serving_checked_ is then zero).
  if (workers_.empty() && !serving_.load(std::memory_order_relaxed)) return;
  if (serving_checked_ != TimePoint{} && now_ < serving_checked_ + std::chrono::milliseconds(50)) return;
  serving_checked_ = now_;
  const bool serving = front_.CouldServe();
  if (serving == serving_.exchange(serving)) return;
  if (options_.on_serving) options_.on_serving(serving);
}

}  // namespace baton
