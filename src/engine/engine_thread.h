// The thread around an EngineCore: waits for commands, finished work or a timer, takes one turn, hands the outbox
// on. It sleeps while there is nothing to do, so an idle worker costs no CPU beyond its heartbeats.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/mailbox.h"
#include "baton/clock.h"
#include "engine/engine_core.h"

namespace baton {

class EngineThread {
 public:
  // `deliver` is called on the engine thread and must not block. All of them outlive the thread.
  EngineThread(EngineCore* core, Mailbox<EngineCommand>* mailbox, const Clock* clock,
               std::function<void(Outbox&&)> deliver);
  ~EngineThread() { Stop(); }
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  void Start();
  // Ends after the present turn. What was running is lost: drain first.
  void Stop();
  // After BeginDrain: true once nothing lives in the core any more. Any thread.
  bool drained() const { return drained_.load(); }

 private:
  void Loop(const std::stop_token& stop);

  EngineCore* const core_;
  Mailbox<EngineCommand>* const mailbox_;
  const Clock* const clock_;
  const std::function<void(Outbox&&)> deliver_;
  std::atomic<bool> drained_{false};
  std::jthread thread_;
};

}  // namespace baton
