// The progress thread of a UCX transport and its inbox. Engine-thread calls only append commands (or act on the
// admission table, which locks); the thread runs commands, UCX, the writer's and the reader's half, in turns. It
// spins at most `kSpin` after the last progress while something is under way, then arms UCX's event fd and sleeps.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "transport/admission_table.h"
#include "transport/counters.h"
#include "transport/event_queue.h"
#include "transport/ucx/context.h"
#include "transport/ucx/reader.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/writer.h"

namespace baton {

class UcxEngine {
 public:
  static StatusOr<std::unique_ptr<UcxEngine>> Create(UcxOptions options, Waker* waker);
  ~UcxEngine();

  struct OpenCommand {
    ProcessId reader;
    std::vector<std::byte> descriptor;
  };
  struct CloseCommand {
    ProcessId peer;
  };
  struct RetiredCommand {
    Ticket ticket;
  };
  struct FenceCommand {
    ProcessId writer;
  };
  using Command = std::variant<OpenCommand, CloseCommand, RetiredCommand, FenceCommand, TransferPost>;

  StatusOr<std::span<std::byte>> AllocatePool(size_t bytes);
  std::vector<std::byte> LocalDescriptor() const;
  void Push(Command command);
  void Retire(const Ticket& ticket);
  AdmissionTable& admissions() { return admissions_; }
  EventQueue& events() { return events_; }
  TransportCounters counters() const { return counters_.Snapshot(); }

 private:
  UcxEngine(UcxOptions options, Waker* waker);
  Status Init();
  Status SetHandlers();
  void Run();
  bool RunCommands(TimePoint now);
  void ReportClosed();
  void Sleep(TimePoint now, bool may_nap);
  void Shutdown();
  void Handle(OpenCommand command, TimePoint now);
  void Handle(CloseCommand command, TimePoint now);
  void Handle(RetiredCommand command, TimePoint now);
  void Handle(FenceCommand command, TimePoint now);
  void Handle(TransferPost post, TimePoint now);

  const UcxOptions options_;
  const uint64_t instance_;
  SteadyClock clock_;
  EventQueue events_;
  AtomicTransportCounters counters_;
  AdmissionTable admissions_;
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<UcxWriter> writer_;
  std::unique_ptr<UcxReader> reader_;
  int wake_fd_ = -1;                        // eventfd: a command was queued, or stop
  std::set<ProcessId> severing_, fencing_;  // progress thread

  std::mutex mutex_;
  std::vector<Command> commands_;
  TimePoint first_pushed_{};  // of commands_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace baton
