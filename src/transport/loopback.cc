#include "transport/loopback.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace baton {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{16} << 20;
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;
constexpr uint64_t kSmallBytes = 4096;
constexpr uint32_t kInFlight = 2;
constexpr uint32_t kMostSmall = 200;
constexpr Duration kStuck = std::chrono::seconds(2);

class Bell : public Waker {
 public:
  void Wake() override {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

class Loop {
 public:
  Status Start(const TransportMaker& make) {
    BATON_ASSIGN_OR_RETURN(reader_, make(reader_id_, &bell_));
    BATON_ASSIGN_OR_RETURN(writer_, make(writer_id_, &bell_));
    BATON_ASSIGN_OR_RETURN(const auto target, reader_->AllocatePool(kPoolBytes));
    BATON_ASSIGN_OR_RETURN(const auto source, writer_->AllocatePool(kPoolBytes));
    (void)target;
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
    writer_->Open(reader_id_, reader_->LocalDescriptor());
    BATON_RETURN_IF_ERROR(Until([this] { return opened_; }));
    BATON_RETURN_IF_ERROR(failure_);
    reader_->Admit(ticket_, writer_id_, {0}, {kPoolBytes});
    return OkStatus();
  }

  StatusOr<LoopbackRate> Measure(Duration time) {
    LoopbackRate out;
    out.mode = mode_;
    std::vector<Duration> small;
    const TimePoint begin = clock_.Now();
    while (small.size() < kMostSmall && (small.empty() || clock_.Now() - begin < time / 4)) {
      const TimePoint posted = clock_.Now();
      Post(kSmallBytes);
      BATON_RETURN_IF_ERROR(Until([this] { return arrived_ == posted_; }));
      small.push_back(clock_.Now() - posted);
    }
    std::nth_element(small.begin(), small.begin() + small.size() / 2, small.end());
    out.small_seconds = Seconds(small[small.size() / 2]);

    const TimePoint start = clock_.Now();
    const TimePoint end = start + time * 3 / 4;
    const uint32_t before = arrived_;
    while (arrived_ == before || clock_.Now() < end) {
      while (posted_ - arrived_ < kInFlight) Post(kChunkBytes);
      const uint32_t had = arrived_;
      BATON_RETURN_IF_ERROR(Until([&] { return arrived_ > had; }));
    }
    out.bytes = (arrived_ - before) * kChunkBytes;
    out.bytes_per_second = static_cast<double>(out.bytes) / Seconds(clock_.Now() - start);
    return out;
  }

 private:
  // Pieces that do not touch each other, as those of layers and blocks.
  void Post(uint64_t bytes) {
    TransferPost post{OpId{++posted_}, reader_id_, ticket_, posted_, 1, {}, {0}};
    for (uint64_t at = 0, i = 0; at < bytes; at += kPieceBytes, ++i) {
      const uint64_t size = std::min(bytes - at, kPieceBytes);
      post.pieces.push_back({(i * 2 % (kPoolBytes / kPieceBytes)) * kPieceBytes, 0, i * 2 * kPieceBytes, size});
    }
    writer_->Post(std::move(post));
  }

  void Poll() {
    std::vector<TransportEvent> events;
    writer_->Poll(&events);
    reader_->Poll(&events);
    for (const TransportEvent& event : events) {
      if (const auto* opened = std::get_if<PeerOpened>(&event)) {
        opened_ = true;
        mode_ = opened->mode;
        failure_ = opened->status;
      } else if (const auto* quiesced = std::get_if<Quiesced>(&event)) {
        if (failure_.ok()) failure_ = quiesced->status;
      } else if (std::get_if<ChunkArrived>(&event) != nullptr) {
        ++arrived_;
      }
    }
  }

  template <typename Done>
  Status Until(const Done& done) {
    const TimePoint limit = clock_.Now() + kStuck;
    while (true) {
      Poll();
      BATON_RETURN_IF_ERROR(failure_);
      if (done()) return OkStatus();
      if (clock_.Now() >= limit) return UnavailableError("nothing arrived for 2 s");
      bell_.Wait();
    }
  }

  const ProcessId writer_id_{"loopback-writer", {1, 1}}, reader_id_{"loopback-reader", {1, 2}};
  const Ticket ticket_{reader_id_.incarnation, 0, 1};
  SteadyClock clock_;
  Bell bell_;
  std::unique_ptr<KvTransport> reader_, writer_;
  TransferMode mode_{};
  Status failure_;
  bool opened_ = false;
  uint32_t posted_ = 0, arrived_ = 0;
};

}  // namespace

StatusOr<LoopbackRate> MeasureLoopback(const TransportMaker& make, Duration time) {
  Loop loop;
  BATON_RETURN_IF_ERROR(loop.Start(make));
  return loop.Measure(time);
}

double MeasureMemcpy(Duration time) {
  constexpr size_t kBytes = size_t{32} << 20;
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes, std::byte{2});
  const SteadyClock clock;
  const TimePoint start = clock.Now();
  uint64_t bytes = 0;
  do {
    std::memcpy(to.data(), from.data(), kBytes);
    from[bytes / kBytes % kBytes] = to[(bytes / kBytes + 1) % kBytes];  // so that no copy can be left out
    bytes += kBytes;
  } while (clock.Now() - start < time);
  return static_cast<double>(bytes) / Seconds(clock.Now() - start);
}

}  // namespace baton
