// A token's logits depend on its sequence's tokens alone: bit-equal rows whatever the chunking, the neighbours,
// the threads, the kernel table, the block size, the container of the weights, or a preemption.
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "device/cpu/cpu_features.h"
#include "support/runner_harness.h"
#include "support/tiny_checkpoint.h"

namespace baton {
namespace {

using test::GreedyRequest;
using test::HarnessOptions;
using test::RunnerHarness;
using test::TestSequence;

const std::string kTiny = std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/";
constexpr uint32_t kPrompt = 150;  // crosses blocks of every size and the first piece of attention
constexpr uint32_t kAnswer = 10;

std::vector<TokenId> Prompt(uint32_t n, uint64_t seed, uint32_t vocab = 290) {
  Rng rng(seed);
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < n; ++i) out.push_back(static_cast<TokenId>(rng.Below(vocab)));
  return out;
}

HarnessOptions AllRows() {
  HarnessOptions options;
  options.all_rows = true;
  return options;
}

// Logits after every position of prompt and answer, and the answer.
struct Observed {
  std::vector<std::vector<float>> rows;
  std::vector<OutputToken> answer;
};

Observed Collect(RunnerHarness* harness, TestSequence* s, std::vector<OutputToken> answer) {
  Observed run;
  for (uint32_t p = 0; p < s->computed; ++p) run.rows.push_back(harness->LogitsAt(*s, p));
  run.answer = std::move(answer);
  return run;
}

Observed RunAlone(RunnerHarness* harness, RequestPtr request, uint32_t chunk) {
  TestSequence s = harness->NewSequence(std::move(request));
  std::vector<OutputToken> answer = harness->Generate(&s, chunk, kAnswer);
  Observed run = Collect(harness, &s, std::move(answer));
  harness->Free(&s);
  return run;
}

void ExpectBitEqual(const Observed& a, const Observed& b, const std::string& what) {
  ASSERT_EQ(a.rows.size(), b.rows.size()) << what;
  for (size_t p = 0; p < a.rows.size(); ++p) {
    ASSERT_EQ(a.rows[p].size(), b.rows[p].size()) << what;
    ASSERT_EQ(std::memcmp(a.rows[p].data(), b.rows[p].data(), a.rows[p].size() * sizeof(float)), 0)
        << what << ", position " << p;
  }
  EXPECT_EQ(a.answer, b.answer) << what;
}

RequestPtr Sampled(std::vector<TokenId> prompt, uint64_t seed) {
  auto request = std::make_shared<Request>();
  request->prompt = std::move(prompt);
  request->sampling = {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = seed, .logit_bias = {}, .logprobs = 5};
  request->stop.max_tokens = kAnswer;
  return request;
}

class EveryFormat : public testing::TestWithParam<const char*> {
 protected:
  const std::string path_ = kTiny + GetParam();
};

// FF-080
TEST_P(EveryFormat, ChunkingChangesNothing) {
  RunnerHarness harness(path_, AllRows());
  const Observed whole = RunAlone(&harness, Sampled(Prompt(kPrompt, 1), 3), 512);
  ASSERT_EQ(whole.rows.size(), kPrompt + kAnswer - 1);
  for (const uint32_t chunk : {1u, 7u, 16u, 64u}) {
    ExpectBitEqual(RunAlone(&harness, Sampled(Prompt(kPrompt, 1), 3), chunk), whole, "chunk " + std::to_string(chunk));
  }
}

// `s` computes its prompt in chunks of 20 and then decodes, while neighbours of other lengths do the same in the
// same steps, each at its own place.
Observed RunAmong(RunnerHarness* harness, RequestPtr request, uint32_t neighbours) {
  constexpr uint32_t kChunk = 20;
  std::vector<TestSequence> all;
  std::vector<uint32_t> answered(neighbours + 1, 0);
  const uint32_t mine = neighbours / 2;
  for (uint32_t i = 0; i <= neighbours; ++i) {
    all.push_back(harness->NewSequence(i == mine ? request : Sampled(Prompt(5 + 23 * i % 90, 100 + i), i)));
  }
  std::vector<OutputToken> answer;
  while (answer.size() < kAnswer) {
    StepPlan plan;
    for (uint32_t i = 0; i <= neighbours; ++i) {
      TestSequence& s = all[i];
      const auto& prompt = s.request->prompt;
      if (s.computed >= prompt.size()) {
        harness->Add(&s, {}, true, answered[i]++, &plan);
        continue;
      }
      const size_t end = std::min<size_t>(prompt.size(), s.computed + kChunk);
      const bool last = end == prompt.size();
      harness->Add(&s, {prompt.begin() + s.computed, prompt.begin() + static_cast<ptrdiff_t>(end)}, last, 0, &plan);
      answered[i] += last ? 1 : 0;
    }
    EXPECT_EQ(plan.sequences.size(), neighbours + 1);  // the subject happened: they shared the step
    for (const SampledToken& t : harness->RunStep(std::move(plan)).tokens) {
      if (t.sequence == all[mine].id) answer.push_back(t.token);
    }
  }
  Observed run = Collect(harness, &all[mine], std::move(answer));
  for (TestSequence& s : all) harness->Free(&s);
  return run;
}

// FF-020, FF-081
TEST_P(EveryFormat, NeighboursChangeNothing) {
  RunnerHarness harness(path_, AllRows());
  const Observed alone = RunAlone(&harness, Sampled(Prompt(kPrompt, 1), 3), 512);
  for (const uint32_t neighbours : {1u, 7u, 15u}) {
    ExpectBitEqual(RunAmong(&harness, Sampled(Prompt(kPrompt, 1), 3), neighbours), alone,
                   std::to_string(neighbours) + " neighbours");
  }
}

TEST_P(EveryFormat, ThreadsKernelTablesAndBlockSizesChangeNothing) {
  RunnerHarness first(path_, AllRows());
  const Observed expected = RunAlone(&first, Sampled(Prompt(kPrompt, 1), 3), 64);
  for (const KernelTable* table : AvailableCpuKernels()) {
    for (const int threads : {1, 2}) {
      for (const uint32_t block_tokens : {16u, 32u, 64u, 128u}) {
        HarnessOptions options = AllRows();
        options.kernels = table->name;
        options.threads = threads;
        options.block_tokens = block_tokens;
        RunnerHarness harness(path_, options);
        ExpectBitEqual(RunAlone(&harness, Sampled(Prompt(kPrompt, 1), 3), 64), expected,
                       std::string(table->name) + ", threads " + std::to_string(threads) + ", block " +
                           std::to_string(block_tokens));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, EveryFormat,
                         testing::Values("tiny-f32.gguf", "tiny-f16.gguf", "tiny-bf16.gguf", "tiny-q8_0.gguf",
                                         "tiny-q4_0.gguf", "tiny-q4_1.gguf", "hf-mixed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

// FF-032
TEST(RunnerEquality, EveryPromptLengthUpToFourBlocksAndOneGivesPrefixesOfOneRun) {
  RunnerHarness harness(kTiny + "tiny-q4_1.gguf", AllRows());
  const auto prompt = Prompt(4 * 32 + 1, 9);
  TestSequence whole = harness.NewSequence(GreedyRequest(prompt, 1));
  harness.Generate(&whole, 512, 1);
  for (uint32_t n = 1; n <= prompt.size(); ++n) {
    TestSequence s = harness.NewSequence(GreedyRequest({prompt.begin(), prompt.begin() + n}, 1));
    harness.Generate(&s, 512, 1);
    ASSERT_EQ(harness.LogitsAt(s, n - 1), harness.LogitsAt(whole, n - 1)) << n;
    harness.Free(&s);
  }
}

TEST(RunnerEquality, AnswersRecomputedAsPromptGiveTheBytesThatDecodeGave) {
  RunnerHarness harness(kTiny + "tiny-q4_1.gguf", AllRows());
  const auto bytes_of = [&](const TestSequence& s) {
    std::vector<std::byte> out;
    for (const BlockId b : s.blocks) {
      const auto* begin = harness.pool().data() + harness.pool_plan().BlockOffset(harness.layout(), 0, b);
      out.insert(out.end(), begin, begin + harness.layout().BlockBytes(0));
    }
    return out;
  };
  TestSequence s = harness.NewSequence(GreedyRequest(Prompt(60, 4), 40));
  const auto answer = harness.Generate(&s, 512, 40);
  std::vector<TokenId> again = s.request->prompt;
  for (size_t i = 0; i + 1 < answer.size(); ++i) again.push_back(answer[i].id);

  TestSequence t = harness.NewSequence(GreedyRequest(again, 1));
  const auto next = harness.Generate(&t, 33, 1);
  EXPECT_EQ(next[0].id, answer.back().id);
  ASSERT_EQ(t.computed, s.computed);
  ASSERT_GT(s.blocks.size(), 2u);
  EXPECT_NE(s.blocks, t.blocks);
  EXPECT_EQ(bytes_of(s), bytes_of(t));
}

TEST(RunnerEquality, TheSameWeightsAsGgufAndAsHfFolderGiveTheSameLogits) {
  test::TempFolder folder;
  const test::TinyCheckpoint checkpoint(8, /*tied_head=*/false);
  test::WriteFile(folder / "f32.gguf", checkpoint.Gguf(false).Finish());
  test::WriteFile(folder / "bf16.gguf", checkpoint.Gguf(true).Finish());
  checkpoint.WriteHf(folder.path(), checkpoint.HfConfig());
  const auto run = [&](const std::filesystem::path& path) {
    RunnerHarness harness(path.string(), AllRows());
    return RunAlone(&harness, Sampled(Prompt(kPrompt, 2, checkpoint.vocab), 5), 64);
  };
  const Observed hf = run(folder.path());
  ExpectBitEqual(run(folder / "f32.gguf"), hf, "F32 GGUF");
  ExpectBitEqual(run(folder / "bf16.gguf"), hf, "BF16 GGUF");
}

}  // namespace
}  // namespace baton
