// A bounded queue from many threads into one. Two of its kind of wait exist in Baton (this, and a stream's
// write queue). Two lanes: ordinary submissions may be refused when full; control has room of its own and is
// bounded by what the protocol can have outstanding, so overflowing it is a bug of the sender's side that
// the caller handles by closing the link.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "baton/model_runner.h"

namespace baton {

template <typename T>
class Mailbox : public Waker {
 public:
  Mailbox(size_t capacity, size_t control_capacity) : capacity_(capacity), control_(control_capacity) {}

  // False: full, nothing was queued.
  [[nodiscard]] bool Push(T value) { return PushIf(std::move(value), capacity_); }
  [[nodiscard]] bool PushControl(T value) { return PushIf(std::move(value), capacity_ + control_); }

  // Makes a waiting Drain return although nothing was pushed.
  void Wake() override {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }

  // Appends everything queued to `out`. With nothing queued and no Wake pending, waits at most `wait`.
  // Consumer thread only.
  void Drain(std::vector<T>* out, std::chrono::nanoseconds wait) {
    std::unique_lock lock(mutex_);
    if (queue_.empty() && !woken_ && wait.count() > 0) {
      ready_.wait_for(lock, wait, [this] { return !queue_.empty() || woken_; });
    }
    woken_ = false;
    for (T& value : queue_) out->push_back(std::move(value));
    queue_.clear();
  }

 private:
  bool PushIf(T value, size_t limit) {
    {
      std::lock_guard lock(mutex_);
      if (queue_.size() >= limit) return false;
      queue_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }
  const size_t capacity_;
  const size_t control_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> queue_;
  bool woken_ = false;
};

}  // namespace baton
