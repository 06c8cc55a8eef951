#include "engine/engine_thread.h"

#include <algorithm>

namespace baton {

EngineThread::EngineThread(EngineCore* core, Mailbox<EngineCommand>* mailbox, const Clock* clock,
                           std::function<void(Outbox&&)> deliver)
    : core_(core), mailbox_(mailbox), clock_(clock), deliver_(std::move(deliver)) {}

void EngineThread::Start() {
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

void EngineThread::Stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  mailbox_->Wake();
  thread_.join();
}

void EngineThread::Loop(const std::stop_token& stop) {
  std::vector<EngineCommand> commands;
  while (!stop.stop_requested()) {
    const TimePoint now = clock_->Now();
    const TimePoint timer = core_->NextTimer();
    const Duration wait = timer == kNever ? Duration(std::chrono::seconds(1))
                                          : std::clamp<Duration>(timer - now, Duration(0), std::chrono::seconds(1));
    mailbox_->Drain(&commands, wait);
    Outbox out;
    core_->Step(clock_->Now(), &commands, &out);
    if (!out.empty()) deliver_(std::move(out));
    drained_.store(core_->draining() && core_->idle());
  }
}

}  // namespace baton
