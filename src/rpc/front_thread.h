// The one thread that owns a Front: inputs from any thread through a bounded mailbox, timers, outputs handed to
// sinks. No gRPC here: other protocols can drive the same front.
//
// Always true: a sink is called on the front thread only and must not block; a client's sink gets events until
// Done or Failed and is then forgotten; a worker's sink gets commands in order until Close.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/mailbox.h"
#include "baton/clock.h"
#include "baton/status.h"
#include "front/front.h"

namespace baton {

class ClientSink {
 public:
  virtual ~ClientSink() = default;
  virtual void OnEvent(ClientEvent event) = 0;
};

class WorkerSink {
 public:
  virtual ~WorkerSink() = default;
  virtual void Send(const FrontCommand& command) = 0;
  virtual void Close(const Status& why) = 0;  // after what was sent is written
};

class OperatorSink {
 public:
  virtual ~OperatorSink() = default;
  virtual void OnUpdate(const OrderUpdate& update) = 0;  // until the last
};

class FrontThread {
 public:
  struct Options {
    FrontOptions front;
    size_t max_submissions = 4096;  // waiting in the mailbox
    size_t max_control = size_t{1} << 17;
    std::function<void(bool)> on_serving;  // front thread, at every change; begins as false
  };
  // `tokenizer`, `chat` (may be null) and `clock` outlive it.
  FrontThread(Options options, const Tokenizer* tokenizer, const ChatTemplate* chat, const Clock* clock);
  ~FrontThread();  // as Stop
  FrontThread(const FrontThread&) = delete;
  FrontThread& operator=(const FrontThread&) = delete;

  // ---- any thread ----
  // RESOURCE_EXHAUSTED with nothing queued when the mailbox is full. The sink gets everything else.
  StatusOr<ClientHandle> Submit(ClientRequest request, std::shared_ptr<ClientSink> sink);
  void Gone(ClientHandle client);  // the stream broke; its sink is forgotten
  // By request_id; false when no such request is live. `done` runs on the front thread.
  void Cancel(std::string request_id, std::function<void(bool found)> done);

  // 0: the mailbox is full or too many workers. The sink lives until WorkerDown or its Close.
  LinkId AddWorker(WorkerHello hello, std::shared_ptr<WorkerSink> sink);
  // False: full, and the link must be closed.
  bool FromWorkerLink(LinkId link, WorkerBatch batch);
  void RemoveWorker(LinkId link, Status why);

  // An order of an operator; its handle is given here. Handle 0: full or stopped, and the sink hears nothing.
  OperatorHandle Order(DrainOrder order, std::shared_ptr<OperatorSink> sink);
  OperatorHandle Order(RoleOrder order, std::shared_ptr<OperatorSink> sink);
  void Gone(OperatorHandle handle);  // nobody waits for it; the order stands

  void BeginDrain();
  // Runs `query` on the front thread. False: full or stopped, it never runs.
  bool Query(std::function<void(const Front&, TimePoint)> query);
  uint32_t live() const { return live_.load(std::memory_order_relaxed); }
  bool serving() const { return serving_.load(std::memory_order_relaxed); }
  // Every live client gets Failed(UNAVAILABLE); then the thread ends. Idempotent.
  void Stop();

 private:
  struct Submitted {
    ClientHandle client{};
    ClientRequest request;
    std::shared_ptr<ClientSink> sink;
  };
  struct Cancelled {
    std::string request_id;
    std::function<void(bool)> done;
  };
  struct Joined {
    LinkId link{};
    WorkerHello hello;
    std::shared_ptr<WorkerSink> sink;
  };
  struct Asked {
    std::function<void(const Front&, TimePoint)> query;
  };
  struct Ordered {
    OperatorHandle handle{};
    FrontInput order;
    std::shared_ptr<OperatorSink> sink;
  };
  using Item = std::variant<Submitted, Cancelled, Joined, Asked, Ordered, FrontInput>;

  void Run();
  void Handle(Item item);
  void DeliverOutput();
  void UpdateServing();
  Duration TimeToWait() const;
  bool PushControl(Item item);
  template <typename T>
  OperatorHandle PushOrder(T order, std::shared_ptr<OperatorSink> sink);

  const Options options_;
  const Clock* const clock_;
  Front front_;  // front thread
  Mailbox<Item> mailbox_;
  std::map<ClientHandle, std::shared_ptr<ClientSink>> clients_;        // front thread
  std::map<LinkId, std::shared_ptr<WorkerSink>> workers_;              // front thread
  std::map<OperatorHandle, std::shared_ptr<OperatorSink>> operators_;  // front thread
  FrontOutput output_;                                                 // front thread, reused
  TimePoint now_{};                                                    // front thread
  TimePoint serving_checked_{};                                        // front thread; zero: look again now
  std::atomic<uint64_t> next_client_{1};
  std::atomic<uint64_t> next_link_{1};
  std::atomic<uint64_t> next_operator_{1};
  std::atomic<uint32_t> live_{0};
  std::atomic<bool> serving_{false};
  std::atomic<bool> stop_{false};
  std::mutex gate_;      // between the last drain and late pushes
  bool closed_ = false;  // gate_: nothing is queued any more
  std::thread thread_;
};

}  // namespace baton
