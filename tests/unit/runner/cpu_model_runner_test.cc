// The runner's contract as its caller sees it, on a tiny model.
#include "runner/cpu_model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <thread>

#include "runner/warm_up.h"
#include "support/runner_harness.h"
#include "support/tiny_checkpoint.h"

namespace baton {
namespace {

using test::GreedyRequest;
using test::HarnessOptions;
using test::RunnerHarness;
using test::TestSequence;
using testing::HasSubstr;

const std::string kModel = std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/tiny-q4_1.gguf";

std::vector<TokenId> Prompt(uint32_t n) {
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(static_cast<TokenId>((i * 37 + 11) % 290));
  return out;
}

TEST(CpuModelRunner, TwoStepsMayBeInFlightAndTheSecondReadsWhatTheFirstSamples) {
  RunnerHarness harness(kModel, {});
  TestSequence alone = harness.NewSequence(GreedyRequest(Prompt(20), 3));
  const auto expected = harness.Generate(&alone, 512, 3);

  TestSequence s = harness.NewSequence(GreedyRequest(Prompt(20), 3));
  StepPlan prefill, first, second;
  harness.Add(&s, Prompt(20), true, 0, &prefill);
  harness.Add(&s, {}, true, 1, &first);
  harness.Launch(std::move(prefill));
  harness.Launch(std::move(first));
  EXPECT_EQ(harness.NextResult().tokens[0].token.id, expected[0].id);
  harness.Add(&s, {}, true, 2, &second);
  harness.Launch(std::move(second));
  EXPECT_EQ(harness.NextResult().tokens[0].token.id, expected[1].id);
  EXPECT_EQ(harness.NextResult().tokens[0].token.id, expected[2].id);
}

TEST(WarmUp, LeavesNothingThatAnAnswerCouldShow) {
  RunnerHarness cold(kModel, {}), warm(kModel, {});
  ASSERT_EQ(WarmUp(&warm.runner(), 1), OkStatus());
  TestSequence a = cold.NewSequence(GreedyRequest(Prompt(40), 6)), b = warm.NewSequence(GreedyRequest(Prompt(40), 6));
  EXPECT_EQ(warm.Generate(&b, 512, 6), cold.Generate(&a, 512, 6));
}

TEST(CpuModelRunner, LayersAreReportedInOrderBeforeTheResultAndNotForSmallSteps) {
  HarnessOptions options;
  options.min_layer_event_tokens = 16;
  RunnerHarness harness(kModel, options);
  TestSequence s = harness.NewSequence(GreedyRequest(Prompt(20), 3));
  harness.Generate(&s, 512, 3);
  // Two layers: the first is reported, the last is implied by the result; the decodes report none.
  ASSERT_EQ(harness.layer_events().size(), 1u);
  EXPECT_EQ(harness.layer_events()[0].layers, 1u);
  EXPECT_EQ(harness.layer_events()[0].id, StepId{1});
}

TEST(CpuModelRunner, AnEndedSequenceIsForgottenBehindTheStepsThatNameIt) {
  RunnerHarness harness(kModel, {});
  TestSequence s = harness.NewSequence(GreedyRequest(Prompt(9), 2));
  StepPlan prefill, decode, other;
  harness.Add(&s, Prompt(9), true, 0, &prefill);
  harness.Add(&s, {}, true, 1, &decode);
  harness.Launch(std::move(prefill));
  harness.Launch(std::move(decode));
  EXPECT_EQ(harness.NextResult().tokens.size(), 1u);
  harness.Free(&s);  // the decode may not have begun
  TestSequence t = harness.NewSequence(GreedyRequest(Prompt(9), 2));
  harness.Add(&t, Prompt(9), true, 0, &other);
  harness.Launch(std::move(other));
  EXPECT_EQ(harness.NextResult().tokens.size(), 1u);
  EXPECT_EQ(harness.NextResult().tokens.size(), 1u);
}

TEST(CpuModelRunner, BlocksThatEnterUseAreZeroedAndCopiesAreWhole) {
  RunnerHarness harness(kModel, {});
  const size_t block_bytes = harness.layout().BlockBytes(0);
  const auto block = [&](BlockId b) {
    return harness.pool().subspan(harness.pool_plan().BlockOffset(harness.layout(), 0, b), block_bytes);
  };
  std::ranges::fill(harness.pool(), std::byte{0x3f});
  TestSequence s = harness.NewSequence(GreedyRequest(Prompt(40), 1));
  StepPlan plan;
  harness.Add(&s, Prompt(40), true, 0, &plan);
  harness.RunStep(std::move(plan));
  // Token-pair slots past position 40 of the second block's first K tile: [dim / 2][token][2].
  const auto tile = block(s.blocks[1]).first(harness.layout().TileBytes(0));
  for (uint32_t pair = 0; pair < 16; ++pair) {
    for (uint32_t token = 8; token < 32; ++token) {
      for (uint32_t byte = 0; byte < 4; ++byte) ASSERT_EQ(tile[(pair * 32 + token) * 4 + byte], std::byte{0});
    }
  }
  TestSequence t = harness.NewSequence(GreedyRequest(Prompt(1), 1));
  StepPlan copy;
  harness.Add(&t, Prompt(1), false, 0, &copy);
  const BlockId target{harness.pool_plan().num_blocks[0] - 1};
  ASSERT_NE(target, t.blocks[0]);
  copy.copies.push_back({0, s.blocks[0], target});
  harness.RunStep(std::move(copy));
  EXPECT_EQ(std::memcmp(block(target).data(), block(s.blocks[0]).data(), block_bytes), 0);
}

TEST(CpuModelRunner, ATokenOutsideTheVocabularyFailsItsSequenceAndNoOther) {
  RunnerHarness harness(kModel, {});
  TestSequence good = harness.NewSequence(GreedyRequest(Prompt(5), 1));
  TestSequence bad = harness.NewSequence(GreedyRequest({1, 290, 3}, 1));
  StepPlan plan;
  harness.Add(&bad, {1, 290, 3}, true, 0, &plan);
  harness.Add(&good, Prompt(5), true, 0, &plan);
  const StepResult result = harness.RunStep(std::move(plan));
  EXPECT_TRUE(result.status.ok());
  ASSERT_EQ(result.tokens.size(), 1u);
  EXPECT_EQ(result.tokens[0].sequence, good.id);
  ASSERT_EQ(result.failed.size(), 1u);
  EXPECT_EQ(result.failed[0].sequence, bad.id);
  EXPECT_THAT(result.failed[0].why.message(), HasSubstr("token 290 at position 1"));
}

// FF-145
TEST(CpuModelRunner, NonFiniteLogitsFailTheirSequenceInThisAndTheNextStepOnly) {
  // The embedding of token 5 is infinite, so whatever follows it is not a number.
  test::TempFolder folder;
  test::TinyCheckpoint checkpoint(3, /*tied_head=*/false);
  for (uint32_t i = 0; i < checkpoint.hidden; ++i) {
    checkpoint.matrices[0].values[5 * checkpoint.hidden + i] = std::numeric_limits<float>::infinity();
  }
  test::WriteFile(folder / "m.gguf", checkpoint.Gguf().Finish());
  RunnerHarness harness((folder / "m.gguf").string(), {});
  TestSequence good = harness.NewSequence(GreedyRequest({1, 2, 3}, 2));
  TestSequence bad = harness.NewSequence(GreedyRequest({1, 5, 3}, 2));
  StepPlan first, second;
  harness.Add(&bad, {1, 5, 3}, true, 0, &first);
  harness.Add(&good, {1, 2, 3}, true, 0, &first);
  harness.Add(&bad, {}, true, 1, &second);
  harness.Add(&good, {}, true, 1, &second);
  harness.Launch(std::move(first));
  harness.Launch(std::move(second));
  for (int step = 0; step < 2; ++step) {
    const StepResult result = harness.NextResult();
    EXPECT_TRUE(result.status.ok());
    ASSERT_EQ(result.failed.size(), 1u);
    EXPECT_EQ(result.failed[0].sequence, bad.id);
    ASSERT_EQ(result.tokens.size(), 1u);
    EXPECT_EQ(result.tokens[0].sequence, good.id);
  }
}

TEST(WarmUp, SaysWhenTheModelsFirstStepGivesNoToken) {
  test::TempFolder folder;
  test::TinyCheckpoint checkpoint(3, /*tied_head=*/false);
  checkpoint.matrices[0].values[0] = std::numeric_limits<float>::infinity();
  test::WriteFile(folder / "m.gguf", checkpoint.Gguf().Finish());
  RunnerHarness harness((folder / "m.gguf").string(), {});
  EXPECT_FALSE(WarmUp(&harness.runner(), 1).ok());
}

TEST(CpuModelRunner, MoreSamplingRowsThanALogitsPieceAllGetTheirToken) {
  RunnerHarness harness(kModel, {});
  std::vector<TestSequence> sequences;
  StepPlan plan;
  for (TokenId i = 0; i < 100; ++i) {
    sequences.push_back(harness.NewSequence(GreedyRequest({i}, 1)));
    harness.Add(&sequences.back(), {i}, true, 0, &plan);
  }
  const StepResult together = harness.RunStep(std::move(plan));
  ASSERT_EQ(together.tokens.size(), 100u);
  for (TokenId i = 0; i < 100; i += 9) {
    TestSequence alone = harness.NewSequence(GreedyRequest({i}, 1));
    const auto token = harness.Generate(&alone, 1, 1);
    EXPECT_EQ(together.tokens[static_cast<size_t>(i)].token, token[0]);
    EXPECT_EQ(together.tokens[static_cast<size_t>(i)].sequence, sequences[static_cast<size_t>(i)].id);
  }
}

TEST(CpuModelRunner, ALayoutThatIsNotTheModelsIsRefused) {
  auto file = ModelFile::Open(kModel);
  auto device = CpuDevice::Create({.threads = 1, .cpus = {}, .kernels = ""});
  auto model = LoadedModel::Load(**file, (*device)->pool());
  KvLayout layout = MakeKvLayout((*model)->decoder(), 32);
  layout.groups[0].num_layers += 1;
  const KvPoolPlan plan = PlanPool(layout, 1 << 20);
  std::vector<std::byte> pool(plan.total_bytes);
  EXPECT_EQ(CpuModelRunner::Create(**model, **device, layout, plan, pool, {}).status().code(),
            Code::kFailedPrecondition);
  const KvLayout right = MakeKvLayout((*model)->decoder(), 32);
  const KvPoolPlan right_plan = PlanPool(right, 1 << 20);
  EXPECT_EQ(
      CpuModelRunner::Create(**model, **device, right, right_plan, std::span(pool).first(100), {}).status().code(),
      Code::kFailedPrecondition);
}

TEST(CpuModelRunner, AnIdleRunnerUsesNoCpu) {
  HarnessOptions options;
  options.threads = 2;
  RunnerHarness harness(kModel, options);
  TestSequence s = harness.NewSequence(GreedyRequest(Prompt(20), 3));
  harness.Generate(&s, 512, 3);
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // let workers go to sleep
  const double before = cpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu() - before, 0.015);
}

}  // namespace
}  // namespace baton
