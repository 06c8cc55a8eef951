// The flow control of a pair, against the sentences of its header.
#include "handoff/send_window.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/rng.h"

namespace baton {
namespace {

constexpr uint64_t kMiB = 1 << 20;

ChildEpoch Child(uint64_t number) { return {{1, number, 0}, 1}; }
TimePoint At(int64_t ms) { return TimePoint(std::chrono::milliseconds(ms)); }
SendWindow::Entry Chunk(uint64_t child, ChunkIndex chunk, uint64_t bytes) {
  return {{Child(child), chunk, 1}, {{1, 1}, static_cast<uint32_t>(child), 1}, bytes};
}

// Everything in the order in which it goes when each chunk ends before the next is asked for.
std::vector<uint64_t> Order(SendWindow window, TimePoint now) {
  std::vector<uint64_t> order;
  while (const auto entry = window.Next(now)) {
    order.push_back(entry->post.key.child.number);
    window.Done(entry->bytes);
  }
  return order;
}

TEST(SendWindow, ChunksGoByTheDeadlineOfTheirDecode) {
  SendWindow window;
  window.Add(Chunk(1, 0, kMiB), At(30));
  window.Add(Chunk(2, 0, kMiB), At(10));
  window.Add(Chunk(3, 0, kMiB), At(20));
  EXPECT_EQ(Order(window, At(0)), (std::vector<uint64_t>{2, 3, 1}));
  window.Add(Chunk(1, 1, kMiB), At(5));  // its prompt is done sooner than it seemed
  EXPECT_EQ(Order(window, At(0)), (std::vector<uint64_t>{1, 1, 2, 3}));
}

TEST(SendWindow, AShortPromptThatIsDoneDoesNotWaitForALongOneThatWasDoneBefore) {
  SendWindow window;
  for (ChunkIndex i = 0; i < 20; ++i) window.Add(Chunk(1, i, kMiB), At(1));
  window.Add(Chunk(2, 0, kMiB), At(2));
  window.Add(Chunk(3, 0, kMiB), At(90));  // not done
  const std::vector<uint64_t> order = Order(window, At(3));
  EXPECT_EQ(order.front(), 2u);
  EXPECT_EQ(order.back(), 3u);
}

TEST(SendWindow, NobodyStarvesHoweverManyShortAndUrgentOnesCome) {
  SendWindow window({8 * kMiB, 16 * kMiB});
  for (ChunkIndex i = 0; i < 4; ++i) window.Add(Chunk(1, i, 2 * kMiB), At(1'000'000));
  uint64_t sent_of_1 = 0, passed = 0;
  for (uint64_t child = 2; sent_of_1 < 4; ++child) {
    window.Add(Chunk(child, 0, kMiB), At(0));
    const auto entry = window.Next(At(1));
    ASSERT_TRUE(entry);
    window.Done(entry->bytes);
    const bool mine = entry->post.key == Child(1);
    passed = mine ? 0 : passed + entry->bytes;
    sent_of_1 += mine ? 1 : 0;
    ASSERT_LE(passed, 17 * kMiB);
  }
}

TEST(SendWindow, AChunkLargerThanTheWindowGoesAlone) {
  SendWindow window({kMiB, kMiB});
  window.Add(Chunk(1, 0, 3 * kMiB), At(1));
  window.Add(Chunk(1, 1, 1), At(1));
  ASSERT_TRUE(window.Next(At(0)));
  EXPECT_EQ(window.credit(), 0u);
  EXPECT_FALSE(window.Next(At(0)));
  window.Done(3 * kMiB);
  EXPECT_EQ(window.credit(), kMiB);
  EXPECT_TRUE(window.Next(At(0)));
}

TEST(SendWindow, WhatIsDroppedIsNeverSentAndTakesNoRoom) {
  SendWindow window;
  for (ChunkIndex i = 0; i < 3; ++i) window.Add(Chunk(1, i, kMiB), At(1)), window.Add(Chunk(2, i, kMiB), At(2));
  ASSERT_EQ(window.Next(At(0))->post.key, Child(1));
  window.Drop(Child(1));
  window.Drop(Child(9));
  EXPECT_EQ(window.queued(), 3 * kMiB);
  EXPECT_EQ(Order(window, At(0)), (std::vector<uint64_t>{2, 2, 2}));
  EXPECT_EQ(window.in_flight(), kMiB) << "what is under way ends by itself";
}

TEST(SendWindow, TheDecodeIsDueWhenThePromptEndsAndBeforeThatWhereItsPaceSays) {
  WriterChild child;
  child.reserve.num_tokens = 1000;
  child.begun = At(100);
  const TimePoint at_once = DecodeDue(child, At(100));
  EXPECT_GT(at_once, At(100));
  child.tokens_done = 250;  // a quarter in 50 ms
  EXPECT_EQ(DecodeDue(child, At(150)), At(300));
  child.tokens_done = 1000;
  EXPECT_EQ(DecodeDue(child, At(310)), At(310));
  child.finished = At(320);
  EXPECT_EQ(DecodeDue(child, At(400)), At(320));
}

// Random arrivals, ends and drops against a plain account of what was said.
TEST(SendWindow, KeepsWhatItPromisesUnderAnyTraffic) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    const SendWindowOptions options{1 + rng.Below(64), 1 + rng.Below(128)};
    constexpr uint64_t kMaxChunk = 40, kChildren = 6;
    SendWindow window(options);
    std::map<uint64_t, std::deque<std::pair<ChunkIndex, uint64_t>>> waiting;  // by child
    std::map<uint64_t, uint64_t> passed;
    std::vector<uint64_t> under_way;
    ChunkIndex next_chunk = 0;
    uint64_t in_flight = 0;
    for (int step = 0; step < 200; ++step) {
      const TimePoint now = At(step);
      switch (rng.Below(8)) {
        case 0:
        case 1:
        case 2: {
          const uint64_t child = 1 + rng.Below(kChildren), bytes = 1 + rng.Below(kMaxChunk);
          if (waiting[child].empty()) passed[child] = 0;
          waiting[child].emplace_back(next_chunk, bytes);
          window.Add(Chunk(child, next_chunk++, bytes),
                     now + std::chrono::milliseconds(rng.Below(50)) - std::chrono::milliseconds(20));
          break;
        }
        case 3:
          if (rng.Chance(0.1)) {
            const uint64_t child = 1 + rng.Below(kChildren);
            waiting[child].clear();
            window.Drop(Child(child));
          }
          break;
        case 4:
        case 5:
          if (under_way.empty()) break;
          std::swap(under_way[rng.Below(under_way.size())], under_way.back());
          in_flight -= under_way.back();
          window.Done(under_way.back());
          under_way.pop_back();
          break;
        default: {
          const auto entry = window.Next(now);
          uint64_t largest_head = 0;
          for (const auto& [child, chunks] : waiting) {
            if (!chunks.empty()) largest_head = std::max(largest_head, chunks.front().second);
          }
          if (!entry) {
            // Nothing waits, or something that waits does not fit.
            ASSERT_TRUE(largest_head == 0 || (in_flight > 0 && in_flight + largest_head > options.window_bytes))
                << "seed " << seed;
            break;
          }
          const uint64_t child = entry->post.key.child.number;
          ASSERT_FALSE(waiting[child].empty()) << "seed " << seed << ": dropped or sent before";
          ASSERT_EQ(waiting[child].front(), std::pair(entry->post.chunk, entry->bytes)) << "seed " << seed;
          waiting[child].pop_front();
          ASSERT_TRUE(in_flight == 0 || in_flight + entry->bytes <= options.window_bytes) << "seed " << seed;
          in_flight += entry->bytes;
          under_way.push_back(entry->bytes);
          for (auto& [other, bytes] : passed) bytes += entry->bytes;
          passed[child] = 0;
          for (const auto& [other, chunks] : waiting) {
            if (!chunks.empty())
              ASSERT_LE(passed[other], options.max_passed + kChildren * kMaxChunk) << "seed " << seed;
          }
        }
      }
      ASSERT_EQ(window.in_flight(), in_flight);
    }
  }
}

}  // namespace
}  // namespace baton
