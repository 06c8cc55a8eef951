// How long does the scheduler take for a step? Prints percentiles.
//   scheduler_bench [running sequences] [prompt tokens] [steps]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "kv/block_pool.h"
#include "sched/scheduler.h"

namespace baton {
namespace {

void Print(const char* what, std::vector<double>* micros) {
  std::sort(micros->begin(), micros->end());
  const auto at = [&](double q) { return (*micros)[static_cast<size_t>(q * static_cast<double>(micros->size() - 1))]; };
  std::printf("%-28s p50 %7.2f  p90 %7.2f  p99 %7.2f  p99.9 %7.2f us  (%zu)\n", what, at(0.5), at(0.9), at(0.99),
              at(0.999), micros->size());
}

// `running` answers decode with two steps in flight. With arrivals, answers have all lengths up to 512 tokens, and
// a new request takes the place of each that ends; without, none ends.
void Steps(uint32_t running, uint32_t prompt, uint32_t steps, bool arrivals) {
  constexpr uint32_t kBlock = 32;
  SchedulerOptions o;
  o.max_running = running;
  o.max_waiting = running;
  o.max_prefill_tokens = 8192;
  o.max_step_tokens = running + 8192;
  o.max_context_tokens = prompt + steps + 1024;
  BlockPool pool(kBlock, {running * (o.max_context_tokens / kBlock + 2)});
  Scheduler scheduler(o, &pool);
  Rng rng(1);
  TimePoint now{};
  const auto add = [&] {
    auto request = std::make_shared<Request>();
    for (uint32_t i = 0; i < prompt; ++i) request->prompt.push_back(static_cast<TokenId>(rng.Below(30000)));
    request->stop.max_tokens = arrivals ? static_cast<uint32_t>(2 + rng.Below(510)) : steps + 1000;
    if (!scheduler.Add(std::move(request), {}, 1, false, now).ok()) std::abort();
  };
  for (uint32_t i = 0; i < running; ++i) add();

  const SteadyClock clock;
  std::vector<double> schedule, done;
  std::deque<StepPlan> launched;
  uint64_t tokens = 0;
  while (schedule.size() < steps) {
    while (true) {
      const TimePoint begin = clock.Now();
      StepPlan plan = scheduler.Schedule(now);
      const double took = Seconds(clock.Now() - begin) * 1e6;
      if (plan.sequences.empty()) break;
      if (plan.sequences.size() + 8 >= running) schedule.push_back(took);  // everybody runs
      launched.push_back(std::move(plan));
    }
    StepResult result;
    result.id = launched.front().id;
    for (const SequenceStep& s : launched.front().sequences) {
      if (s.sample) result.tokens.push_back({s.sequence, s.sample_index, {TokenId{7}, 0, {}}});
    }
    result.plan = std::move(launched.front());
    launched.pop_front();
    const TimePoint begin = clock.Now();
    const StepOutcome outcome = scheduler.OnStepDone(result, now);
    done.push_back(Seconds(clock.Now() - begin) * 1e6);
    scheduler.Recycle(std::move(result.plan));
    tokens += outcome.tokens.size();
    for (const NewToken& token : outcome.tokens) {
      if (token.finish == FinishReason::kNone) continue;
      scheduler.End(token.sequence);
      add();
    }
    pool.TakeEvents();
    now += std::chrono::milliseconds(10);
  }
  std::printf("%u sequences, prompts of %u tokens, %s (%lu tokens)\n", running, prompt,
              arrivals ? "arrivals" : "decodes only", tokens);
  Print("Schedule", &schedule);
  Print("OnStepDone", &done);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const auto number = [&](int i, uint32_t standard) {
    return argc > i ? static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)) : standard;
  };
  for (const bool arrivals : {false, true}) {
    baton::Steps(number(1, 1024), number(2, 1000), number(3, 2000), arrivals);
  }
}
