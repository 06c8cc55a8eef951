#include "app/load_progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "model/memory_plan.h"

namespace baton {
namespace {

constexpr int kBarWidth = 40;
constexpr std::chrono::milliseconds kQuiet{1000};
constexpr std::chrono::milliseconds kBarEvery{50};
constexpr std::chrono::milliseconds kLineEvery{1000};

}  // namespace

LoadProgressLine::LoadProgressLine(EventLines* events)
    : events_(events),
      terminal_(!events->supervised() && isatty(STDERR_FILENO) == 1),
      begun_(std::chrono::steady_clock::now()),
      next_(begun_ + kQuiet) {}

LoadProgress LoadProgressLine::Callback() {
  return [this](uint64_t done_bytes, uint64_t total_bytes) { Show(done_bytes, total_bytes); };
}

void LoadProgressLine::Show(uint64_t done_bytes, uint64_t total_bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_ || total_bytes == 0) return;
  const double part = static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const int percent = static_cast<int>(part * 100);
  if (terminal_) {
    const int full = static_cast<int>(part * kBarWidth);
    const std::string bar =
        std::string(static_cast<size_t>(full), '#') + std::string(kBarWidth - static_cast<size_t>(full), ' ');
    std::fprintf(stderr, "\rloading [%s] %3d %%  %s of %s ", bar.c_str(), percent,
                 ByteWords(done_bytes).c_str(), ByteWords(total_bytes).c_str());
    shown_ = true;
    next_ = now + kBarEvery;
  } else if (events_->supervised()) {
    events_->Say("loading, " + std::to_string(percent) + " %");
    next_ = now + kLineEvery;
  }
}

void LoadProgressLine::Done() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace baton
