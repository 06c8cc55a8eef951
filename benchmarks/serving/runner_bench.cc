// Prefill and decode speed of the CPU runner alone, with no server around it:
//   runner_bench MODEL [--threads 1,2] [--kernels auto] [--prompt 512] [--decode 64] [--streams 1,8] [--repeat 5]
//     [--kv-dtype bf16,int8]
// Prompts are token ids from a fixed generator. Prints medians over the repetitions.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/rng.h"
#include "support/runner_harness.h"

namespace baton::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model, kernels = "auto", threads = "1,2", streams = "1", kv_dtypes = "bf16";
  uint32_t prompt = 512, decode = 64, repeat = 5;
};

std::vector<uint32_t> Numbers(const std::string& list) {
  std::vector<uint32_t> out;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) out.push_back(static_cast<uint32_t>(std::stoul(item)));
  return out;
}

struct NamedType {
  std::string name;
  DType dtype;
};
std::vector<NamedType> Types(const std::string& list) {
  const NamedType all[] = {{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}, {"int8", DType::kI8}};
  std::vector<NamedType> out;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) {
    for (const NamedType& type : all) {
      if (type.name == item) out.push_back(type);
    }
  }
  return out;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<TokenId> RandomPrompt(uint32_t length, uint32_t vocab, uint64_t seed) {
  std::vector<TokenId> out;
  Rng rng(seed);
  for (uint32_t i = 0; i < length; ++i) out.push_back(static_cast<TokenId>(rng.Below(vocab)));
  return out;
}

void Measure(const Arguments& a, const NamedType& type, int threads, uint32_t streams) {
  HarnessOptions options;
  options.threads = threads;
  options.kernels = a.kernels;
  options.kv_dtype = type.dtype;
  options.keep_logits = false;
  options.kv_tokens = streams * (a.prompt + a.decode + 64);
  options.max_step_tokens = std::max(512u, streams);
  RunnerHarness harness(a.model, options);
  std::vector<double> prefill, decode;
  for (uint32_t r = 0; r < a.repeat; ++r) {
    std::vector<TestSequence> sequences;
    const auto start = Clock::now();
    for (uint32_t s = 0; s < streams; ++s) {
      sequences.push_back(harness.NewSequence(
          GreedyRequest(RandomPrompt(a.prompt, harness.model().decoder().vocab_size, r * 1000 + s), a.decode)));
      harness.Generate(&sequences.back(), 512, 1);
    }
    prefill.push_back(streams * a.prompt / Since(start));
    const auto decode_start = Clock::now();
    for (uint32_t i = 1; i <= a.decode; ++i) {
      StepPlan plan;
      for (TestSequence& s : sequences) harness.Add(&s, {}, true, i, &plan);
      harness.RunStep(std::move(plan));
    }
    decode.push_back(streams * a.decode / Since(decode_start));
    for (TestSequence& s : sequences) harness.Free(&s);
  }
  std::printf("threads %d, streams %u, KV %s: prefill %u %8.1f tok/s, decode %u %8.1f tok/s\n", threads, streams,
              type.name.c_str(), a.prompt, Median(prefill), a.decode, Median(decode));
  std::fflush(stdout);
}

}  // namespace
}  // namespace baton::test

int main(int argc, char** argv) {
  using namespace baton::test;
  Arguments a;
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: %s MODEL [--threads 1,2] [--kernels auto] [--prompt 512] [--decode 64] "
                 "[--streams 1] [--repeat 5] [--kv-dtype bf16,fp16,fp32,int8]\n",
                 argv[0]);
    return 2;
  }
  a.model = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads")
      a.threads = value;
    else if (flag == "--kernels")
      a.kernels = value;
    else if (flag == "--kv-dtype")
      a.kv_dtypes = value;
    else if (flag == "--streams")
      a.streams = value;
    else if (flag == "--prompt")
      a.prompt = static_cast<uint32_t>(std::stoul(value));
    else if (flag == "--decode")
      a.decode = static_cast<uint32_t>(std::stoul(value));
    else if (flag == "--repeat")
      a.repeat = static_cast<uint32_t>(std::stoul(value));
    else {
      std::fprintf(stderr, "unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  for (const uint32_t threads : Numbers(a.threads)) {
    for (const uint32_t streams : Numbers(a.streams)) {
      for (const NamedType& type : Types(a.kv_dtypes)) Measure(a, type, static_cast<int>(threads), streams);
    }
  }
  return 0;
}
