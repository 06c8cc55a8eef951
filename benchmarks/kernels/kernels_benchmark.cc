// Rates of the CPU kernels at a small model's shapes, next to the limits that were probed in the same run:
// GEMM and GEMV in GFLOP/s and % of fp32 FMA peak, weight bytes in GB/s and % of the read probe, attention in
// GFLOP/s, and a whole model's matrix work as tokens per second. Weights are cold: every repetition reads other
// copies than the last. Prints the median and the best of the repetitions; on a shared machine the best says
// what the kernel does, the median what the neighbours left of it.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "benchmarks/kernels/probe.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/packed_matrix.h"

namespace baton::bench {
namespace {

struct Flags {
  int threads = 2;
  std::string kernels;
  DType dtype = DType::kQ4_1;
  int repetitions = 9;
};

struct Times {
  double median = 0, best = 0;
};
// With one thread its own CPU time: what other processes take from it does not count.
bool by_cpu_time = false;
double Now() {
  timespec t{};
  clock_gettime(by_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
Times Measure(int repetitions, const std::function<void()>& fn) {
  std::vector<double> seconds;
  fn();
  for (int i = 0; i < repetitions; ++i) {
    const double start = Now();
    fn();
    seconds.push_back(Now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

struct Limits {
  double flops = 0, bytes = 0;  // per second, all threads
};
Limits Probe(CpuDevice& device, const AlignedMemory& memory) {
  const auto threads = static_cast<size_t>(device.pool().threads());
  Limits limits;
#ifdef BATON_X86_KERNELS
  constexpr int kRounds = 2'000'000;
  std::vector<float> sinks(threads * 64);
  const Times fma = Measure(5, [&] {
    device.pool().ParallelFor(threads, 0, [&](size_t b, size_t, int) { FmaFlopsAvx2(kRounds, &sinks[b * 64]); });
  });
  limits.flops = 12.0 * 16 * kRounds * static_cast<double>(threads) / fma.best;
#endif
  std::vector<double> sums(threads);
  const size_t share = memory.size() / threads / 256 * 256;
  const Times read = Measure(5, [&] {
    device.pool().ParallelFor(threads, 0,
                              [&](size_t b, size_t, int) { sums[b] += ReadSum(memory.data() + b * share, share); });
  });
  limits.bytes = static_cast<double>(share * threads) / read.best;
  std::printf("probe: fp32 FMA %.1f GFLOP/s, read %.1f GB/s (best of 5, %zu threads)\n", limits.flops * 1e-9,
              limits.bytes * 1e-9, threads);
  return limits;
}

// A random weight of finite values: scales about 2^-6.
PackedMatrix RandomMatrix(CpuDevice& device, Rng& rng, DType dtype, uint32_t n, uint32_t k) {
  std::vector<std::byte> raw(n * BytesOf(dtype, k));
  for (size_t i = 0; i + 8 <= raw.size(); i += 8) {
    const uint64_t v = rng.Next() & 0x2fff2fff2fff2fffull;
    std::memcpy(&raw[i], &v, 8);
  }
  auto packed = PackedMatrix::Pack(device.pool(), TensorView{dtype, {n, k}, raw.data(), raw.size()});
  if (!packed.ok()) {
    std::fprintf(stderr, "%s\n", packed.status().message().c_str());
    std::exit(1);
  }
  return *std::move(packed);
}

struct Shape {
  const char* name;
  uint32_t n, k;
  int per_model;  // how often a model pass runs it
};
// SmolLM2-135M: 30 layers of width 576, 9 heads and 3 KV heads of 64, MLP 1536, vocabulary 49152.
constexpr Shape kShapes[] = {{"qkv", 960, 576, 30},
                             {"o", 576, 576, 30},
                             {"gate_up", 3072, 576, 30},
                             {"down", 576, 1536, 30},
                             {"lm_head", 49152, 576, 1}};
constexpr uint32_t kRows[] = {1, 2, 4, 8, 16, 32, 512};

GemmParams Gemm(const PackedMatrix& w, uint32_t rows, const float* x, float* out) {
  GemmParams p;
  p.w = w.view();
  p.x = x;
  p.x_stride = p.w.k;
  p.rows = rows;
  p.out = out;
  p.out_stride = p.w.n;
  return p;
}

void GemmRates(CpuDevice& device, const Flags& flags, const Limits& limits) {
  Rng rng(1);
  std::vector<std::vector<PackedMatrix>> weights;
  for (const Shape& s : kShapes) {
    weights.emplace_back();
    for (int i = 0; i < s.per_model; ++i) weights.back().push_back(RandomMatrix(device, rng, flags.dtype, s.n, s.k));
  }
  auto x = *AlignedMemory::Allocate(size_t{512} * 1536 * 4);
  auto out = *AlignedMemory::Allocate(size_t{512} * 49152 * 4);
  for (size_t i = 0; i < x.size() / 4; ++i) x.as<float>()[i] = static_cast<float>(rng.Unit() - 0.5);
  std::printf("\n%-8s %6s %6s %5s %12s %12s %7s %9s %7s\n", "gemm", "N", "K", "rows", "GFLOP/s med", "best", "% FMA",
              "GB/s best", "% read");
  for (const uint32_t rows : kRows) {
    for (size_t i = 0; i < std::size(kShapes); ++i) {
      const Shape& s = kShapes[i];
      if (rows == 512 && s.n > 10000) continue;
      const Times t = Measure(flags.repetitions, [&] {
        for (const PackedMatrix& w : weights[i]) device.Gemm(Gemm(w, rows, x.as<float>(), out.as<float>()));
      });
      const double flops = 2.0 * rows * s.n * s.k * s.per_model;
      const double bytes = static_cast<double>(weights[i][0].bytes()) * s.per_model;
      std::printf("%-8s %6u %6u %5u %12.1f %12.1f %6.1f%% %9.1f %6.1f%%\n", s.name, s.n, s.k, rows,
                  flops / t.median * 1e-9, flops / t.best * 1e-9, 100 * flops / t.best / limits.flops,
                  bytes / t.best * 1e-9, 100 * bytes / t.best / limits.bytes);
    }
  }
  std::printf("\nall matrices of one pass, no attention; lm_head for one row of a 512-row pass, else for all\n");
  for (const uint32_t rows : kRows) {
    const Times t = Measure(flags.repetitions, [&] {
      for (int layer = 0; layer < 30; ++layer) {
        for (size_t i = 0; i < 4; ++i) {
          device.Gemm(Gemm(weights[i][static_cast<size_t>(layer)], rows, x.as<float>(), out.as<float>()));
        }
      }
      device.Gemm(Gemm(weights[4][0], rows == 512 ? 1 : rows, x.as<float>(), out.as<float>()));
    });
    std::printf("  %3u rows: %8.2f ms median, %8.2f best: %7.0f, %7.0f tokens/s\n", rows, t.median * 1e3, t.best * 1e3,
                rows / t.median, rows / t.best);
  }
}

// One layer of `sequences` sequences: rows new tokens each after `context` cached ones.
void AttentionRate(CpuDevice& device, const Flags& flags, uint32_t sequences, uint32_t context, uint32_t rows) {
  KvLayout layout;
  layout.groups = {{KvKind::kFull, 30, 3, 64, DType::kBF16}};
  const uint32_t blocks = layout.BlocksFor(context + rows);
  auto pool = *AlignedMemory::Allocate(size_t{sequences} * blocks * layout.BlockBytes(0));
  Rng rng(2);
  for (size_t i = 0; i < pool.size() / 8; ++i) pool.as<uint64_t>()[i] = rng.Next() & 0xbf7fbf7fbf7fbf7full;
  std::vector<BlockId> order;
  for (uint32_t i = 0; i < sequences * blocks; ++i) order.push_back(BlockId{i});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  std::vector<RowSpan> spans;
  for (uint32_t s = 0; s < sequences; ++s) spans.push_back({&order[size_t{s} * blocks], s * rows, rows, context});
  std::vector<float> q(size_t{sequences} * rows * 576), out(q.size());
  for (float& v : q) v = static_cast<float>(rng.Unit() - 0.5);
  AttentionParams p;
  p.q = q.data();
  p.q_stride = p.out_stride = 576;
  p.num_heads = 9;
  p.scale = 0.125f;
  p.out = out.data();
  p.rows = sequences * rows;
  p.spans = spans.data();
  p.num_spans = sequences;
  const Times t = Measure(flags.repetitions, [&] {
    for (uint32_t layer = 0; layer < 30; ++layer) {
      p.kv = MakeKvTiles(layout, 0, layer, pool.data());
      device.Attention(p);
    }
  });
  double seen = 0;  // tokens, over all rows of a sequence
  for (uint32_t r = 0; r < rows; ++r) seen += context + r + 1;
  const double flops = seen * sequences * 9 * 64 * 4 * 30;
  std::printf("  %2u x %4u rows after %4u: %8.2f ms median, %8.2f best for 30 layers: %6.1f GFLOP/s best\n", sequences,
              rows, context, t.median * 1e3, t.best * 1e3, flops / t.best * 1e-9);
}

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--threads") {
      flags->threads = std::atoi(value.c_str());
    } else if (name == "--kernels") {
      flags->kernels = value;
    } else if (name == "--repetitions") {
      flags->repetitions = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--dtype") {
      bool known = false;
      for (int d = 0; d <= static_cast<int>(DType::kQ4_1); ++d) {
        if (Traits(static_cast<DType>(d)).name != value) continue;
        flags->dtype = static_cast<DType>(d);
        known = true;
      }
      if (!known) return false;
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, &flags)) {
    std::fprintf(stderr,
                 "usage: %s [--threads N] [--kernels NAME] [--dtype F32|F16|BF16|Q8_0|Q4_0|Q4_1] "
                 "[--repetitions N]\n",
                 argv[0]);
    return 2;
  }
  auto device = CpuDevice::Create({flags.threads, {}, flags.kernels});
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 2;
  }
  by_cpu_time = flags.threads == 1;
  auto memory = *AlignedMemory::Allocate(size_t{256} << 20);
  std::memset(memory.data(), 1, memory.size());
  std::printf("kernels %s, %d threads, weights %s, %s time\n", (*device)->kernels().name, (*device)->pool().threads(),
              std::string(Traits(flags.dtype).name).c_str(), by_cpu_time ? "CPU" : "wall");
  const Limits limits = Probe(**device, memory);
  GemmRates(**device, flags, limits);
  std::printf("\nattention, 9 heads over 3 KV heads of 64\n");
  AttentionRate(**device, flags, 1, 512, 1);
  AttentionRate(**device, flags, 1, 4096, 1);
  AttentionRate(**device, flags, 16, 512, 1);
  AttentionRate(**device, flags, 1, 0, 512);
  AttentionRate(**device, flags, 1, 0, 2048);
  std::printf("\n");
  Probe(**device, memory);
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
