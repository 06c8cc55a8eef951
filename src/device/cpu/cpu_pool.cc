#include "device/cpu/cpu_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace baton {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until done() or until kSpin has passed; true if done() held.
template <typename Done>
bool SpinUntil(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

Status PinThread(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) {
    return InvalidArgumentError("cannot pin a worker to CPU " + std::to_string(cpu));
  }
  CPU_SET(cpu, &set);
  if (const int error = pthread_setaffinity_np(thread, sizeof set, &set); error != 0) {
    return InvalidArgumentError("cannot pin a worker to CPU " + std::to_string(cpu) + ": " + std::strerror(error));
  }
  return OkStatus();
}

}  // namespace

CpuPool::CpuPool(const Options& options) : threads_(options.threads), cpus_(options.cpus) {}

StatusOr<std::unique_ptr<CpuPool>> CpuPool::Create(const Options& options) {
  constexpr int kMaxThreads = 1024;
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return InvalidArgumentError("CPU threads must be 1 to " + std::to_string(kMaxThreads) + ", not " +
                                std::to_string(options.threads));
  }
  if (!options.cpus.empty() && options.cpus.size() != static_cast<size_t>(options.threads)) {
    return InvalidArgumentError("CPUs to pin to: " + std::to_string(options.cpus.size()) + " given for " +
                                std::to_string(options.threads) + " threads; give one each");
  }
  std::unique_ptr<CpuPool> pool(new CpuPool(options));
  pool->workers_.reserve(static_cast<size_t>(options.threads - 1));
  for (int worker = 1; worker < options.threads; ++worker) {
    try {
      pool->workers_.emplace_back(&CpuPool::WorkerMain, pool.get(), worker);
    } catch (const std::system_error& error) {
      return ResourceExhaustedError("thread " + std::to_string(worker) + " of the CPU pool: " + error.what());
    }
    if (!options.cpus.empty()) {
      BATON_RETURN_IF_ERROR(
          PinThread(pool->workers_.back().native_handle(), options.cpus[static_cast<size_t>(worker)]));
    }
  }
  return pool;
}

CpuPool::~CpuPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Status CpuPool::PinCaller() const { return cpus_.empty() ? OkStatus() : PinThread(pthread_self(), cpus_[0]); }

void CpuPool::Run(size_t items, size_t grain, Task task, const void* fn) {
  if (items == 0) return;
  if (threads_ == 1 || items <= std::max<size_t>(grain, 1)) {
    task(fn, 0, items, 0);
    return;
  }
  items_ = items;
  grain_ = grain;
  task_ = task;
  fn_ = fn;
  next_.store(0, std::memory_order_relaxed);
  running_.store(threads_ - 1, std::memory_order_relaxed);
  // Sequentially consistent with AwaitEpoch: either a worker sees the new epoch before it sleeps, or it is
  // counted as a sleeper here.
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  Work(0);
  // Static shares end together, give or take what else runs on the cores: yield once spinning is in vain.
  while (!SpinUntil([this] { return running_.load(std::memory_order_acquire) == 0; })) sched_yield();
}

void CpuPool::Work(int worker) {
  if (grain_ == 0) {
    const auto share = [this](int i) {
      return static_cast<size_t>(static_cast<unsigned __int128>(items_) * static_cast<unsigned>(i) /
                                 static_cast<unsigned>(threads_));
    };
    const size_t begin = share(worker);
    const size_t end = share(worker + 1);
    if (begin < end) task_(fn_, begin, end, worker);
    return;
  }
  for (;;) {
    const size_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= items_) return;
    task_(fn_, begin, std::min(items_, begin + grain_), worker);
  }
}

uint64_t CpuPool::AwaitEpoch(uint64_t seen) {
  if (SpinUntil([&] { return epoch_.load(std::memory_order_acquire) != seen; })) return epoch_.load();
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return epoch_.load() != seen; });
  sleepers_.fetch_sub(1);
  return epoch_.load();
}

void CpuPool::WorkerMain(int worker) {
  uint64_t seen = 0;
  for (;;) {
    seen = AwaitEpoch(seen);
    if (stop_.load()) return;
    Work(worker);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace baton
