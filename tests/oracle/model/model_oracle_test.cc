// Our logits and answers against Hugging Face transformers in float32 (tests/golden/README.md). The reference
// kernels run with K and V in fp32, so that nothing but the order of additions differs from the oracle; the
// fastest kernels run as they ship, with K and V in bf16. Tests of the default model are skipped where its file is
// not: $BATON_TEST_MODEL, else the cache that scripts/fetch_model.sh fills.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/runner_harness.h"

namespace baton {
namespace {

using nlohmann::json;
using test::GreedyRequest;
using test::HarnessOptions;
using test::RunnerHarness;
using test::TestSequence;

const std::string kGolden = std::string(BATON_SOURCE_DIR) + "/tests/golden/";

json ReadJson(const std::string& name) {
  std::ifstream in(kGolden + name);
  return json::parse(in);
}

template <typename T>
std::vector<T> ReadArray(const std::string& name) {
  std::ifstream in(kGolden + name, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

std::string DefaultModel() {
  if (const char* named = std::getenv("BATON_TEST_MODEL")) return named;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache";
  return base + "/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

#define SKIP_WITHOUT_MODEL(path)           \
  const std::string path = DefaultModel(); \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here; scripts/fetch_model.sh fetches it"

HarnessOptions Reference() {
  HarnessOptions options;
  options.kernels = "reference";
  options.kv_dtype = DType::kF32;
  options.threads = 2;
  return options;
}

// max |a - b| over max |b|.
double Distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::abs(double{a[i]} - b[i]));
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return difference / largest;
}

// Compares up to the first difference; there the oracle must have been undecided. Returns the tokens compared.
size_t CompareGreedy(RunnerHarness* harness, const std::vector<TokenId>& prompt, const json& greedy, const json& gap,
                     double undecided, const std::string& name) {
  TestSequence s = harness->NewSequence(GreedyRequest(prompt, static_cast<uint32_t>(greedy.size())));
  const auto answer = harness->Generate(&s, 512, static_cast<uint32_t>(greedy.size()));
  harness->Free(&s);
  for (size_t i = 0; i < greedy.size(); ++i) {
    if (answer[i].id == greedy[i].get<TokenId>()) continue;
    EXPECT_LE(gap[i].get<double>(), undecided) << name << ", token " << i << " is " << answer[i].id;
    return i;
  }
  return greedy.size();
}

TEST(ModelOracle, ReferenceKernelsGiveTheOraclesLogitsOnEveryTinyModel) {
  const json tiny = ReadJson("tiny/tiny.json");
  const auto rows = ReadArray<float>("tiny/tiny.bin");
  const size_t columns = tiny["columns"];
  const auto ids = tiny["ids"].get<std::vector<TokenId>>();
  for (const json& model : tiny["models"]) {
    const std::string name = model["name"];
    HarnessOptions options = Reference();
    options.all_rows = true;
    RunnerHarness harness(kGolden + "tiny/" + model["path"].get<std::string>(), options);
    TestSequence s = harness.NewSequence(GreedyRequest(ids, 1));
    harness.Generate(&s, 512, 1);
    size_t row = model["first_row"];
    for (const uint32_t position : tiny["positions"]) {
      const std::span<const float> expected(rows.data() + row++ * columns, columns);
      EXPECT_LE(Distance(harness.LogitsAt(s, position), expected), 1e-3) << name << ", position " << position;
    }
    EXPECT_EQ(CompareGreedy(&harness, ids, model["greedy"], model["gap"], 0.01, name), model["greedy"].size()) << name;
  }
}

TEST(ModelOracle, ReferenceKernelsGiveTheOraclesLogitsOnTheDefaultModel) {
  SKIP_WITHOUT_MODEL(path);
  RunnerHarness harness(path, Reference());
  const json sample = ReadJson("logits_sample.json");
  const auto rows = ReadArray<float>("logits_sample.bin");
  const size_t columns = sample["columns"];
  size_t compared = 0;
  for (const json& vector : sample["vectors"]) {
    const auto ids = vector["ids"].get<std::vector<TokenId>>();
    if (ids.size() > 64) continue;  // scalar code: the long ones would take minutes
    TestSequence s = harness.NewSequence(GreedyRequest(ids, 1));
    harness.Generate(&s, 512, 1);
    const std::span<const float> expected(rows.data() + vector["row"].get<size_t>() * columns, columns);
    EXPECT_LE(Distance(harness.LogitsAt(s, s.computed - 1), expected), 1e-3) << vector["name"];
    ++compared;
  }
  EXPECT_GE(compared, 1u);
  // The question of the quickstart, to its end token.
  for (const json& prompt : ReadJson("greedy.json")["prompts"]) {
    if (prompt["name"] != "chat_capital") continue;
    const json greedy(std::vector<int>(prompt["greedy"].begin(), prompt["greedy"].begin() + 8));
    EXPECT_EQ(CompareGreedy(&harness, prompt["ids"], greedy, prompt["gap"], 0.01, "chat_capital"), 8u);
  }
}

TEST(ModelOracle, TheFastestKernelsAnswerAsTheOracleWhereItIsDecided) {
  SKIP_WITHOUT_MODEL(path);
  HarnessOptions options;
  options.threads = 2;
  options.keep_logits = false;
  options.max_step_tokens = 1024;
  RunnerHarness harness(path, options);
  size_t compared = 0, tokens = 0;
  const json greedy = ReadJson("greedy.json");
  for (const json& prompt : greedy["prompts"]) {
    // bf16 keeps 8 bits: the logits move by about 0.3 % of the largest, 0.1.
    compared += CompareGreedy(&harness, prompt["ids"], prompt["greedy"], prompt["gap"], 0.15, prompt["name"]);
    tokens += prompt["greedy"].size();
  }
  RecordProperty("equal_tokens", static_cast<int>(compared));
  EXPECT_GE(compared, tokens * 9 / 10);
}

// One record of positions.bin.
struct Position {
  int32_t top_ids[5];
  float top_logits[5];
  float logsumexp, next_logit;
  float subset[64];
};
static_assert(sizeof(Position) == 304);

double LogSumExp(std::span<const float> x) {
  double sum = 0, max = *std::max_element(x.begin(), x.end());
  for (const float v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

struct Agreement {
  double cosine = 0, nll = 0, oracle_nll = 0;
  size_t positions = 0, same = 0, decided = 0, same_where_decided = 0;

  void Add(std::span<const float> row, const Position& p, const std::vector<size_t>& subset, TokenId next) {
    double dot = 0, a2 = 0, b2 = 0;
    for (size_t i = 0; i < subset.size(); ++i) {
      const double a = row[subset[i]], b = p.subset[i];
      dot += a * b, a2 += a * a, b2 += b * b;
    }
    cosine += dot / std::sqrt(a2 * b2);
    const bool equal = std::max_element(row.begin(), row.end()) - row.begin() == p.top_ids[0];
    const bool is_decided = p.top_logits[0] - p.top_logits[1] > 0.5f;
    ++positions;
    same += equal;
    decided += is_decided;
    same_where_decided += equal && is_decided;
    nll += LogSumExp(row) - row[static_cast<size_t>(next)];
    oracle_nll += double{p.logsumexp} - p.next_logit;
  }
};

// Over every golden position, with K and V kept as `dtype`; the oracle keeps them in fp32.
Agreement OverGoldenPositions(const std::string& path, DType dtype) {
  const json positions = ReadJson("positions.json");
  const auto records = ReadArray<Position>("positions.bin");
  const auto subset = positions["subset_ids"].get<std::vector<size_t>>();
  HarnessOptions options;
  options.threads = 2;
  options.all_rows = true;
  options.max_step_tokens = 1024;
  options.kv_dtype = dtype;
  RunnerHarness harness(path, options);
  Agreement total;
  for (const json& segment : positions["segments"]) {
    auto ids = segment["ids"].get<std::vector<TokenId>>();
    const std::vector<TokenId> prompt(ids.begin(), ids.end() - 1);
    TestSequence s = harness.NewSequence(GreedyRequest(prompt, 1));
    harness.Generate(&s, 1024, 1);
    for (uint32_t i = 0; i < prompt.size(); ++i) {
      total.Add(harness.LogitsAt(s, i), records[segment["first_record"].get<size_t>() + i], subset, ids[i + 1]);
    }
    harness.Free(&s);
    harness.ClearLogits();
  }
  const auto n = static_cast<double>(total.positions);
  std::printf(
      "%zu positions, KV %s: cosine %.6f, top-1 %.2f %%, where decided %zu of %zu, log-likelihood %.5f against "
      "%.5f\n",
      total.positions, Traits(dtype).name.data(), total.cosine / n, 100.0 * static_cast<double>(total.same) / n,
      total.same_where_decided, total.decided, -total.nll / n, -total.oracle_nll / n);
  return total;
}

TEST(ModelOracle, TheFastestKernelsBeatTheOraclesOwnBf16OverTwoThousandPositions) {
  SKIP_WITHOUT_MODEL(path);
  const Agreement total = OverGoldenPositions(path, DType::kBF16);
  ASSERT_GE(total.positions, 2000u);
  const auto n = static_cast<double>(total.positions);
  EXPECT_GE(total.cosine / n, 0.9998);
  EXPECT_GE(static_cast<double>(total.same) / n, 0.975);
  EXPECT_EQ(total.same_where_decided, total.decided);
  EXPECT_NEAR(total.nll / total.oracle_nll, 1, 0.0005);
}

TEST(ModelOracle, AnInt8CacheAnswersAsAnFp32OneOverTwoThousandPositionsButForNearTies) {
  SKIP_WITHOUT_MODEL(path);
  const Agreement total = OverGoldenPositions(path, DType::kI8);
  ASSERT_GE(total.positions, 2000u);
  const auto n = static_cast<double>(total.positions);
  EXPECT_GE(total.cosine / n, 0.9997);
  EXPECT_GE(static_cast<double>(total.same) / n, 0.98);
  EXPECT_EQ(total.same_where_decided, total.decided);
  EXPECT_NEAR(total.nll / total.oracle_nll, 1, 0.001);
}

}  // namespace
}  // namespace baton
