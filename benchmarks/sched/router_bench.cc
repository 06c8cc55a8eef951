// How long does the router take to decide, and the front to carry a request? Prints percentiles.
//   router_bench [workers] [pages per worker]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "front/front.h"
#include "route/router.h"
#include "unit/front/front_bench.h"

namespace baton {
namespace {

void Print(const char* what, std::vector<double>* micros) {
  std::sort(micros->begin(), micros->end());
  const auto at = [&](double q) { return (*micros)[static_cast<size_t>(q * static_cast<double>(micros->size() - 1))]; };
  std::printf("%-28s p50 %7.2f  p90 %7.2f  p99 %7.2f  p99.9 %7.2f us  (%zu)\n", what, at(0.5), at(0.9), at(0.99),
              at(0.999), micros->size());
}

WorkerHello Hello(uint64_t i, uint64_t workers) {
  WorkerHello h = HelloOf("w" + std::to_string(i), i < workers / 2, i >= workers / 2);
  h.num_blocks = {4096};
  h.max_context_tokens = 32768;
  h.submit_credits = 64;
  return h;
}

// Workers hold prefixes of conversations: a shared first part, then branches.
void Decide(uint64_t workers, uint64_t pages_each) {
  Router router({});
  Rng rng(1);
  const TimePoint now{std::chrono::seconds(10)};
  std::vector<std::vector<Hash128>> conversations;
  for (uint64_t c = 0; c < 4000; ++c) {
    std::vector<Hash128> chain;
    Hash128 parent{7, 7};
    const uint64_t pages = 20 + rng.Below(400);
    for (uint64_t p = 0; p < pages; ++p) {
      const std::vector<TokenId> tokens(kPageTokens, static_cast<TokenId>(p < 8 ? p : c * 1000 + p));
      chain.push_back(parent = ChainHash(parent, tokens));
    }
    conversations.push_back(std::move(chain));
  }
  uint64_t held = 0;
  for (uint64_t i = 0; i < workers; ++i) {
    const WorkerHello h = Hello(i, workers);
    const WorkerId id = router.AddWorker(h, now);
    Heartbeat b;
    b.roles = h.roles;
    b.queued_work = std::chrono::milliseconds(rng.Below(200));
    b.running = static_cast<uint32_t>(rng.Below(64));
    b.context_tokens = b.running * 1500;
    b.free_blocks = {static_cast<uint32_t>(rng.Below(4096))};
    router.OnHeartbeat(id, b, now);
    CacheEvents events{.sequence = 1, .snapshot = true, .stored = {}, .removed = {}};
    while (events.stored.size() < pages_each) {
      const auto& chain = conversations[rng.Below(conversations.size())];
      events.stored.insert(events.stored.end(), chain.begin(),
                           chain.begin() + static_cast<std::ptrdiff_t>(1 + rng.Below(chain.size())));
    }
    router.OnCacheEvents(id, events);
    held += events.stored.size();
  }
  std::vector<double> micros;
  const SteadyClock clock;
  std::map<Hash128, std::vector<Hash128>> pages;
  for (uint64_t i = 1; i <= 20000; ++i) {
    auto& chain = pages[Hello(0, workers).numeric];
    chain = conversations[rng.Below(conversations.size())];
    PlaceQuery q;
    q.prompt_tokens = static_cast<uint32_t>(chain.size() * kPageTokens + 5);
    q.answer_tokens = 200;
    q.pages = &pages;
    const TimePoint begin = clock.Now();
    const auto placed = router.Place(q, now);
    micros.push_back(Seconds(clock.Now() - begin) * 1e6);
    if (const auto* p = std::get_if<Placement>(&placed)) {
      router.Dispatched({1, i, 0}, 1, *p, q, now);
      if (i > 1000) router.Ended({1, i - 1000, 0}, 1);
    }
  }
  std::printf("%lu workers, %lu pages stored\n", workers, held);
  Print("decide", &micros);
}

// Submit, place, 64 tokens through one worker, done: what a request costs the front, tokenizing left out.
void Carry() {
  FrontBench b;
  WorkerHello h = HelloOf("w", true, true);
  h.num_blocks = {100000};
  const LinkId w = b.Up(h);
  const SteadyClock clock;
  std::vector<double> whole, submit;
  for (int i = 0; i < 5000; ++i) {
    ClientRequest r;
    r.prompt = TextPrompt{std::string(500, 'x')};
    r.max_tokens = 64;
    r.stop = {"stop here"};
    b.now += std::chrono::milliseconds(100);
    const TimePoint begin = clock.Now();
    const ClientHandle client = b.Submit(r);
    submit.push_back(Seconds(clock.Now() - begin) * 1e6);
    const ChildId child = b.front.ChildOf(client);
    for (uint32_t t = 0; t < 64; ++t) {
      b.Token(w, child, 1, t, 'a', t == 63 ? FinishReason::kLength : FinishReason::kNone);
    }
    whole.push_back(Seconds(clock.Now() - begin) * 1e6);
    b.told.clear();
  }
  Print("front: submit", &submit);
  Print("front: request of 64 tokens", &whole);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const uint64_t workers = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  const uint64_t pages = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
  baton::Decide(workers, pages);
  baton::Carry();
}
