// The CPU kernels' threads. One thread at a time runs ParallelFor and is worker 0 of it; the others spin at
// most 20 us for the next call and then sleep, so an idle pool costs no CPU. Nothing is allocated per call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "baton/status.h"

namespace baton {

class CpuPool {
 public:
  struct Options {
    int threads = 1;        // including the caller; 1 starts no thread
    std::vector<int> cpus;  // worker i is pinned to cpus[i]; empty: nobody is. Worker 0 pins itself with PinCaller.
  };
  static StatusOr<std::unique_ptr<CpuPool>> Create(const Options& options);
  ~CpuPool();
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  // Pins the calling thread to cpus[0]; no-op without cpus.
  Status PinCaller() const;

  // fn(begin, end, worker) over [0, items). grain 0: one contiguous share per worker, fixed. grain > 0: workers
  // take runs of `grain` items as they come free, in rising order. Returns when all are done; what workers
  // wrote is visible. fn may not call the pool and may not throw.
  template <typename Fn>
  void ParallelFor(size_t items, size_t grain, const Fn& fn) {
    Run(
        items, grain, [](const void* f, size_t b, size_t e, int w) { (*static_cast<const Fn*>(f))(b, e, w); }, &fn);
  }

  int threads() const { return threads_; }

 private:
  using Task = void (*)(const void* fn, size_t begin, size_t end, int worker);
  explicit CpuPool(const Options& options);
  void Run(size_t items, size_t grain, Task task, const void* fn);
  void Work(int worker);
  void WorkerMain(int worker);
  uint64_t AwaitEpoch(uint64_t seen);

  const int threads_;
  const std::vector<int> cpus_;

  // The current call; written by worker 0 before epoch_ rises.
  size_t items_ = 0;
  size_t grain_ = 0;
  Task task_ = nullptr;
  const void* fn_ = nullptr;

  alignas(64) std::atomic<uint64_t> epoch_{0};  // raised once per call
  alignas(64) std::atomic<size_t> next_{0};     // first item not taken (grain > 0)
  alignas(64) std::atomic<int> running_{0};     // workers that have not finished this call
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace baton
