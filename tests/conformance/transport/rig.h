// Workers of the conformance suite: a transport with its pool and its events, made by kind.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "support/certificates.h"
#include "transport/fake/fake_transport.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/local/local_transport.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {

enum class Kind { kLocal, kFake, kUcxShm, kUcxTcp, kUcxKeyed, kUcxAuto, kGrpc, kGrpcTls };

// Why kUcxKeyed has no rows in which a writer dies, or closes, while its puts are on their way.
inline constexpr const char* kOnlyEmulated =
    "UCX 1.13 ends a process that still carries out puts of a peer that is gone; a device does that itself";

inline std::string KindName(Kind kind) {
  switch (kind) {
    case Kind::kLocal:
      return "Local";
    case Kind::kFake:
      return "Fake";
    case Kind::kUcxShm:
      return "UcxShm";
    case Kind::kUcxTcp:
      return "UcxTcp";
    case Kind::kUcxKeyed:
      return "UcxKeyed";
    case Kind::kUcxAuto:
      return "UcxAuto";
    case Kind::kGrpc:
      return "Grpc";
    case Kind::kGrpcTls:
      return "GrpcTls";
  }
  return "?";
}

class TestWaker : public Waker {
 public:
  void Wake() override {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }
  // A lost wake shows as a hang of the test: there is no timeout here that would hide it.
  void Wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return woken_; });
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

// Far beyond anything a passing test needs: reaching it means that something hangs.
inline constexpr std::chrono::seconds kHang{30};

struct Side {
  ProcessId id;
  TestWaker waker;
  std::unique_ptr<KvTransport> transport;
  std::span<std::byte> pool;
  std::vector<TransportEvent> events;  // everything so far, in order

  size_t PollOnce() {
    const size_t before = events.size();
    transport->Poll(&events);
    return events.size() - before;
  }
  // Polls until `done` holds over `events`.
  [[nodiscard]] bool WaitUntil(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + kHang;
    while (true) {
      PollOnce();
      if (done()) return true;
      const auto left = limit - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      waker.Wait(std::chrono::duration_cast<std::chrono::milliseconds>(left) + std::chrono::milliseconds(1));
    }
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> out;
    for (const TransportEvent& e : events) {
      if (const T* t = std::get_if<T>(&e)) out.push_back(*t);
    }
    return out;
  }
  template <typename T>
  [[nodiscard]] bool WaitFor(size_t count) {
    return WaitUntil([&] { return All<T>().size() >= count; });
  }
};

// What a worker of that name shows, from the one CA of this test run.
inline TlsPems CredentialsOf(const std::string& name, CertifiedRole role = CertifiedRole::kUnified) {
  static const test::TestAuthority authority;
  return authority.Issue(role, name);
}

inline std::unique_ptr<KvTransport> MakeGrpc(const ProcessId& id, TestWaker* waker, TlsPems tls,
                                             const UcxOptions& base = {}) {
  GrpcOptions options;
  options.self = id;
  options.tls = std::move(tls);
  options.op_timeout = base.op_timeout;
  options.open_timeout = base.open_timeout;
  options.max_in_flight_bytes = std::min(options.max_in_flight_bytes, base.max_in_flight_bytes);
  auto made = GrpcTransport::Create(options, waker);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *std::move(made) : nullptr;
}

inline std::unique_ptr<KvTransport> MakeKind(Kind kind, const LocalFabric& fabric, const ProcessId& id,
                                             TestWaker* waker, const UcxOptions& base = {}) {
  if (kind == Kind::kLocal) return std::make_unique<LocalTransport>(fabric, LocalOptions{id}, waker);
  if (kind == Kind::kFake) {
    return std::make_unique<FakeTransport>(std::make_unique<LocalTransport>(fabric, LocalOptions{id}, waker),
                                           FaultPolicy(1, {}), waker);
  }
  if (kind == Kind::kGrpc) return MakeGrpc(id, waker, {}, base);
  if (kind == Kind::kGrpcTls) return MakeGrpc(id, waker, CredentialsOf(id.name), base);
  UcxOptions options = base;
  options.self = id;
  options.net_devices = "lo";
  options.tls = kind == Kind::kUcxShm ? "shm" : kind == Kind::kUcxAuto ? "auto" : "tcp";
  options.puts_over_tcp = kind == Kind::kUcxKeyed;
  auto made = UcxTransport::Create(options, waker);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *std::move(made) : nullptr;
}

inline TransportCounters CountersOf(KvTransport& t) {
  if (auto* local = dynamic_cast<LocalTransport*>(&t)) return local->counters();
  if (auto* fake = dynamic_cast<FakeTransport*>(&t)) return CountersOf(fake->inner());
  if (auto* grpc = dynamic_cast<GrpcTransport*>(&t)) return grpc->counters();
  return dynamic_cast<UcxTransport&>(t).counters();
}

inline void Fill(std::span<std::byte> bytes, uint64_t seed) {
  Rng rng(seed);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t x = rng.Next();
    std::memcpy(bytes.data() + i, &x, std::min<size_t>(8, bytes.size() - i));
  }
}

// Whether every byte has this value; fast, since the suites ask it of tens of megabytes.
inline bool AllAre(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() || (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// The blocks of one ticket: disjoint, scattered over the reader's pool, of equal or unequal size.
struct Blocks {
  std::vector<uint64_t> base, bytes;
};
inline Blocks ScatteredBlocks(Rng& rng, uint64_t pool_bytes, uint32_t count, uint64_t max_bytes) {
  Blocks out;
  const uint64_t stride = pool_bytes / count;
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  for (uint32_t slot : order) {
    const uint64_t bytes = 1 + rng.Below(std::min(stride, max_bytes));
    out.base.push_back(slot * stride + rng.Below(stride - bytes + 1));
    out.bytes.push_back(bytes);
  }
  return out;
}

inline Ticket TicketNumber(const ProcessId& reader, uint32_t slot, uint32_t generation = 1) {
  return {reader.incarnation, slot, generation};
}

}  // namespace baton
