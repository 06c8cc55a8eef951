// What an engine keeps of requests that are over: nothing. Thousands of them end in every way there is, and the bytes
// that it has from the allocator stay where they were after the first.
#include <gtest/gtest.h>
#include <malloc.h>

#include "base/rng.h"
#include "engine_bench.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

size_t BytesInUse() { return mallinfo2().uordblks; }

// The bench remembers everything that the engine says; here nothing of that is wanted.
void Forget(EngineBench* b) {
  b->events.clear();
  b->heartbeats.clear();
  b->reports.clear();
  b->to_peers.clear();
  b->to_links.clear();
  b->closed.clear();
  b->dials.clear();
  b->transport.admitted.clear();
  b->transport.posts.clear();
}

// One request, of one token or a few, local, handed on or taken over; it ends by itself, is cancelled anywhere, fails
// in a step, runs into its deadline, loses its peer's answer, or its front.
struct Life {
  explicit Life(uint64_t seed) : rng(seed) {
    b.Greet();
    Forget(&b);
  }
  void Run(uint64_t number) {
    b.now += milliseconds(100);  // what is kept for a while is over in due time
    const RequestPtr request = b.Make(number, 20 + static_cast<uint32_t>(rng.Below(60)), rng.Chance(0.5) ? 1 : 5);
    const Progress progress = EngineBench::Fresh(rng.Chance(0.1) ? Duration(milliseconds(1)) : Duration(seconds(60)));
    const uint64_t kind = rng.Below(3);
    if (kind == 0) b.Front(DecodeCommand{request, progress, 1});
    if (kind == 1) b.Front(PrefillCommand{request, progress, 1, b.reader});
    if (kind == 2) Reserve(request);
    bool cancelled = false;
    for (int i = 0; i < 200 && !b.core->idle(); ++i) {
      if (!cancelled && rng.Chance(0.15)) {
        cancelled = true;
        b.Front(CancelCommand{request->id, 1});
      }
      if (!b.runner.launched.empty()) b.Finish(9);
      Answer();
      if (i > 20) b.now += milliseconds(500);
      b.Turn();
    }
    ASSERT_TRUE(b.core->idle());
    b.Front(CancelCommand{request->id, 1});  // late, of what is over
    Forget(&b);
  }
  void Reserve(const RequestPtr& request) {
    b.FromWriter(b.ReserveFor(request, 1));
    if (b.Sent<Grant>().empty()) return;
    if (rng.Chance(0.6))
      b.Fill(b.Last<Grant>(), static_cast<uint32_t>(request->prompt.size()), 9, rng.Chance(0.2) ? 1 : 0);
    for (const AbortTicket& abort : b.Sent<AbortTicket>()) b.FromWriter(Drained{abort.ticket, rng.Chance(0.3)});
  }
  void Answer() {
    if (!b.dials.empty() && b.dials.back().link != b.reader_link) b.AnswerDial();
    if (rng.Chance(0.7)) b.transport.QuiesceAll(), b.transport.posts.clear();
    const std::vector<PairMessage> said = std::move(b.to_peers);
    b.to_peers.clear();
    b.to_links.clear();
    for (const PairMessage& m : said) {
      if (const auto* reserve = std::get_if<baton::Reserve>(&m); reserve != nullptr && rng.Chance(0.7)) {
        Grant grant = b.GrantFor(*reserve, 0);
        grant.ticket.generation = ++generation;
        b.FromReader(grant);
      } else if (const auto* commit = std::get_if<Commit>(&m); commit != nullptr && rng.Chance(0.7)) {
        const auto verdict = rng.Chance(0.7) ? CommitVerdict::kAck : CommitVerdict::kCorrupt;
        b.FromReader(CommitAnswer{commit->child, 1, commit->ticket, commit->attempt, verdict, {}});
      } else if (const auto* drained = std::get_if<Drained>(&m)) {
        b.FromReader(DrainedAck{drained->ticket});
      } else if (const auto* abort = std::get_if<AbortTicket>(&m)) {
        b.FromWriter(Drained{abort->ticket, false});
      }
    }
  }

  Rng rng;
  EngineBench b{{}, /*pool_blocks=*/64};
  uint32_t generation = 0;
};

// FF-109, FF-110.
TEST(EngineMemory, FF109_FF110_StaysFlatOverThousandsOfRequestsThatEndInEveryWay) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer has an allocator of its own";
#endif
  Life life(1);
  uint64_t number = 0;
  const auto run = [&](int n) {
    for (int i = 0; i < n && !testing::Test::HasFatalFailure(); ++i) life.Run(++number);
    life.b.now += seconds(700);  // past every memory of epochs and outcomes
    life.b.Turn();
    Forget(&life.b);
    return BytesInUse();
  };
  const size_t warm = run(3000);
  const size_t after = run(12000);
  EXPECT_LT(after, warm + 64 * 1024) << "bytes of twelve thousand requests: " << (after - warm) / 12000.0 << " each";
}

}  // namespace
}  // namespace baton
