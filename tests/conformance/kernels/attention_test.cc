// Every table's attention and kv_write against kernels/reference, bit for bit; independence of chunking,
// batching, splits, blocks and garbage; and the reference against float64.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/kernels/tables_under_test.h"
#include "tests/conformance/kernels/worlds.h"

namespace baton::testing {
namespace {

struct Heads {
  uint32_t query, kv, dim;
};

// K, V and Q rows of sequences of the given lengths, one after another.
struct Batch {
  Heads heads;
  std::vector<uint32_t> lengths;
  std::vector<float> q, k, v;
  uint32_t rows = 0;
};
Batch RandomBatch(Rng& rng, Heads heads, std::vector<uint32_t> lengths) {
  Batch b{heads, std::move(lengths), {}, {}, {}, 0};
  for (uint32_t n : b.lengths) b.rows += n;
  b.q = Floats(rng, size_t{b.rows} * heads.query * heads.dim);
  for (float& x : b.q) x *= 4;  // peaked weights
  b.k = Floats(rng, size_t{b.rows} * heads.kv * heads.dim);
  b.v = Floats(rng, size_t{b.rows} * heads.kv * heads.dim);
  return b;
}
std::vector<RowSpan> Spans(const Batch& b, const KvWorld& world) {
  std::vector<RowSpan> spans;
  uint32_t row = 0;
  for (size_t s = 0; s < b.lengths.size(); ++s) {
    spans.push_back({world.blocks[s].data(), row, b.lengths[s], 0});
    row += b.lengths[s];
  }
  return spans;
}
void WriteAll(const KernelTable& table, const Batch& b, KvWorld& world) {
  const std::vector<RowSpan> spans = Spans(b, world);
  const size_t stride = size_t{b.heads.kv} * b.heads.dim;
  const KvWriteParams p{
      world.tiles, b.k.data(), stride, b.v.data(), stride, spans.data(), static_cast<uint32_t>(spans.size())};
  table.kv_write(p, 0, b.rows);
}
AttentionParams Params(const Batch& b, const KvWorld& world, const std::vector<RowSpan>& spans, float* out) {
  AttentionParams p;
  p.kv = world.tiles;
  p.q = b.q.data();
  p.q_stride = size_t{b.heads.query} * b.heads.dim;
  p.num_heads = b.heads.query;
  p.scale = 1.0f / std::sqrt(static_cast<float>(b.heads.dim));
  p.out = out;
  p.out_stride = p.q_stride;
  p.rows = b.rows;
  p.spans = spans.data();
  p.num_spans = static_cast<uint32_t>(spans.size());
  return p;
}
std::vector<float> AttendAll(const KernelTable& table, const Batch& b, const KvWorld& world, const Scratch& scratch) {
  std::vector<float> out(b.q.size(), NAN);
  const std::vector<RowSpan> spans = Spans(b, world);
  const AttentionParams p = Params(b, world, spans, out.data());
  table.attention(p, 0, size_t{b.heads.kv} * b.rows, scratch.get());
  return out;
}

TEST(Attention, ReferenceIsSoftmaxAttentionOverTheRoundedCache) {
  Rng rng(1);
  const Scratch scratch;
  const Batch b = RandomBatch(rng, {6, 2, 34}, {3, 300, 1});
  KvWorld world = MakeKvWorld(rng, 2, 34, 32, b.lengths);
  WriteAll(kReferenceKernels, b, world);
  const std::vector<float> out = AttendAll(kReferenceKernels, b, world, scratch);
  const auto [query, kv, dim] = b.heads;
  uint32_t base = 0;
  for (const uint32_t length : b.lengths) {
    for (uint32_t r = 0; r < length; ++r) {
      for (uint32_t h = 0; h < query; ++h) {
        const uint32_t g = h / (query / kv);
        std::vector<double> weight(r + 1);
        double total = 0, best = -1e300;
        for (uint32_t t = 0; t <= r; ++t) {
          double dot = 0;
          for (uint32_t d = 0; d < dim; ++d) {
            dot += double{b.q[((base + r) * query + h) * dim + d]} *
                   double{Bf16ToFloat(FloatToBf16(b.k[((base + t) * kv + g) * dim + d]))};
          }
          weight[t] = dot / std::sqrt(double(dim));
          best = std::max(best, weight[t]);
        }
        for (double& w : weight) total += (w = std::exp(w - best));
        for (uint32_t d = 0; d < dim; ++d) {
          double value = 0;
          for (uint32_t t = 0; t <= r; ++t) {
            value += weight[t] / total * double{Bf16ToFloat(FloatToBf16(b.v[((base + t) * kv + g) * dim + d]))};
          }
          ASSERT_NEAR(out[((base + r) * query + h) * dim + d], value, 1e-5) << "row " << r << " head " << h;
        }
      }
    }
    base += length;
  }
}

class AttentionOfTable : public ::testing::TestWithParam<const KernelTable*> {};
class AttentionOfFastTable : public AttentionOfTable {};

TEST_P(AttentionOfFastTable, WritesTheSameCacheAsTheReferenceAndNothingBesides) {
  Rng rng(2);
  for (const uint32_t block_tokens : {16u, 32u, 64u, 128u}) {
    Batch b = RandomBatch(rng, {2, 2, 10}, {1, block_tokens, block_tokens + 1, 75});
    b.k[3] = NAN;
    b.k[4] = BitsToFloat(0x3f808000);
    b.v[5] = -INFINITY;
    KvWorld expected = MakeKvWorld(rng, 2, 10, block_tokens, b.lengths);
    KvWorld world = expected;
    world.tiles.pool = world.pool.data();
    WriteAll(kReferenceKernels, b, expected);
    // In two ranges that part a pair of tokens.
    const std::vector<RowSpan> spans = Spans(b, world);
    const KvWriteParams p{
        world.tiles, b.k.data(), 20, b.v.data(), 20, spans.data(), static_cast<uint32_t>(spans.size())};
    GetParam()->kv_write(p, 4, b.rows);
    GetParam()->kv_write(p, 0, 4);
    ASSERT_EQ(expected.pool, world.pool) << block_tokens;
  }
}

TEST_P(AttentionOfFastTable, EqualsTheReferenceBitForBit) {
  Rng rng(3);
  const Scratch scratch;
  const Heads shapes[] = {{9, 3, 64}, {14, 2, 64}, {4, 4, 32},  {1, 1, 2},
                          {7, 1, 82}, {6, 1, 256}, {48, 1, 34}, {8, 2, 128}};
  const uint32_t sizes[] = {16, 32, 64, 128};
  uint32_t i = 0;
  for (const Heads& heads : shapes) {
    const uint32_t block_tokens = sizes[i++ % 4];
    const uint32_t longest = heads.dim >= 128 ? 150 : 280;
    const Batch b = RandomBatch(rng, heads, {1, 127, longest, 2, 17});
    KvWorld world = MakeKvWorld(rng, heads.kv, heads.dim, block_tokens, b.lengths);
    WriteAll(kReferenceKernels, b, world);
    ASSERT_TRUE(SameBits(AttendAll(kReferenceKernels, b, world, scratch), AttendAll(*GetParam(), b, world, scratch)))
        << heads.query << "/" << heads.kv << " heads of " << heads.dim << ", blocks of " << block_tokens;
  }
}

TEST_P(AttentionOfFastTable, OfFp16AndFp32CachesWritesAndReadsWhatTheReferenceDoes) {
  Rng rng(13);
  const Scratch scratch;
  const uint32_t sizes[] = {16, 32, 64, 128};
  uint32_t i = 0;
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    for (const Heads heads : {Heads{9, 3, 64}, Heads{1, 1, 2}, Heads{7, 1, 82}, Heads{6, 1, 256}}) {
      const uint32_t block_tokens = sizes[i++ % 4];
      Batch b = RandomBatch(rng, heads, {1, 127, 150, 2, 17});
      b.k[1] = 1e6f;  // more than fp16 holds
      b.v[1] = -1e6f;
      b.v[0] = 1e-6f;  // a subnormal of fp16
      KvWorld expected = MakeKvWorld(rng, heads.kv, heads.dim, block_tokens, b.lengths, dtype);
      KvWorld world = expected;
      world.tiles.pool = world.pool.data();
      WriteAll(kReferenceKernels, b, expected);
      WriteAll(*GetParam(), b, world);
      ASSERT_EQ(expected.pool, world.pool) << block_tokens;
      ASSERT_TRUE(
          SameBits(AttendAll(kReferenceKernels, b, expected, scratch), AttendAll(*GetParam(), b, world, scratch)))
          << heads.query << "/" << heads.kv << " heads of " << heads.dim << ", blocks of " << block_tokens;
    }
  }
}

TEST_P(AttentionOfFastTable, OfAnInt8CacheWritesAndReadsWhatTheReferenceDoes) {
  Rng rng(14);
  const Scratch scratch;
  const Heads shapes[] = {{9, 3, 64}, {1, 1, 2}, {7, 1, 82}, {4, 1, 256}, {24, 1, 34}, {14, 2, 32}};
  const uint32_t sizes[] = {16, 32, 64, 128};
  uint32_t i = 0;
  for (const Heads& heads : shapes) {
    const uint32_t block_tokens = sizes[i++ % 4];
    Batch b = RandomBatch(rng, heads, {1, 127, 150, 2, 17});
    const size_t width = size_t{heads.kv} * heads.dim;
    std::fill_n(b.k.begin(), heads.dim, 0.0f);  // no scale
    b.k[width * 3] = 1e30f;
    b.v[width * 4 + 1] = -1e-30f;
    std::fill_n(b.v.begin() + static_cast<ptrdiff_t>(width * 5), heads.dim, 1e-40f);
    KvWorld expected = MakeKvWorld(rng, heads.kv, heads.dim, block_tokens, b.lengths, DType::kI8);
    KvWorld world = expected;
    world.tiles.pool = world.pool.data();
    WriteAll(kReferenceKernels, b, expected);
    // In two ranges that part a pair of tokens.
    const std::vector<RowSpan> spans = Spans(b, world);
    const KvWriteParams p{
        world.tiles, b.k.data(), width, b.v.data(), width, spans.data(), static_cast<uint32_t>(spans.size())};
    GetParam()->kv_write(p, 4, b.rows);
    GetParam()->kv_write(p, 0, 4);
    ASSERT_EQ(expected.pool, world.pool) << block_tokens;
    ASSERT_TRUE(SameBits(AttendAll(kReferenceKernels, b, expected, scratch), AttendAll(*GetParam(), b, world, scratch)))
        << heads.query << "/" << heads.kv << " heads of " << heads.dim << ", blocks of " << block_tokens;
  }
}

TEST_P(AttentionOfTable, OfAnInt8CacheIsThatOfTheRowsWithinHalfAStepOfTheirLargest) {
  Rng rng(15);
  const Scratch scratch;
  const Heads heads{6, 2, 34};
  Batch b = RandomBatch(rng, heads, {3, 300, 1});
  for (size_t i = 0; i < b.k.size(); ++i) {  // rows of many sizes
    const float size = std::ldexp(1.0f, static_cast<int>(i / heads.dim % 12) - 10);
    b.k[i] *= size, b.v[i] *= size;
  }
  KvWorld world = MakeKvWorld(rng, heads.kv, heads.dim, 32, b.lengths, DType::kI8);
  WriteAll(*GetParam(), b, world);
  // The cache as it stands, read by position, in an fp32 one: attention over that differs by the order of roundings.
  Batch read = b;
  const size_t elements = size_t{32} * heads.dim;
  uint32_t row = 0;
  double worst = 0;
  for (size_t s = 0; s < b.lengths.size(); ++s) {
    for (uint32_t n = 0; n < b.lengths[s]; ++n, ++row) {
      for (uint32_t h = 0; h < heads.kv; ++h) {
        for (const bool value : {false, true}) {
          const std::byte* tile = world.pool.data() + Index(world.blocks[s][n / 32]) * world.tiles.block_bytes +
                                  (value ? world.tiles.v_offset : world.tiles.k_offset) + h * world.tiles.head_stride;
          const uint32_t t = n % 32;
          float scale;
          std::memcpy(&scale, tile + elements + t * 4, 4);
          const size_t at = (size_t{row} * heads.kv + h) * heads.dim;
          const float* exact = (value ? b.v : b.k).data() + at;
          float* out = (value ? read.v : read.k).data() + at;
          double largest = 0;
          for (uint32_t d = 0; d < heads.dim; ++d) largest = std::max(largest, std::abs(double{exact[d]}));
          for (uint32_t d = 0; d < heads.dim; ++d) {
            const size_t element =
                value ? (size_t{t / 2} * heads.dim + d) * 2 + t % 2 : (size_t{d / 2} * 32 + t) * 2 + d % 2;
            out[d] = static_cast<float>(static_cast<int8_t>(tile[element])) * scale;
            worst = std::max(worst, std::abs(double{out[d]} - exact[d]) / largest * 254);
          }
        }
      }
    }
  }
  EXPECT_LE(worst, 1 + 0x1p-14);
  EXPECT_GT(worst, 0.9);
  KvWorld plain = MakeKvWorld(rng, heads.kv, heads.dim, 32, b.lengths, DType::kF32);
  WriteAll(*GetParam(), read, plain);
  const std::vector<float> got = AttendAll(*GetParam(), b, world, scratch);
  const std::vector<float> same = AttendAll(*GetParam(), read, plain, scratch);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], same[i], 5e-5) << i;
  // What was read is written again as the same bytes.
  KvWorld again = world;
  again.tiles.pool = again.pool.data();
  WriteAll(*GetParam(), read, again);
  EXPECT_EQ(again.pool, world.pool);
}

TEST_P(AttentionOfTable, OfAnInt8CacheARowWithANanOrAnInfinityReadsAsNanAndOneOfZerosAsZeros) {
  Rng rng(16);
  const Scratch scratch;
  const Heads heads{2, 1, 16};
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const bool value : {false, true}) {
      Batch b = RandomBatch(rng, heads, {40});
      (value ? b.v : b.k)[20 * 16 + 5] = bad;
      KvWorld world = MakeKvWorld(rng, 1, 16, 32, b.lengths, DType::kI8);
      WriteAll(*GetParam(), b, world);
      const std::vector<float> out = AttendAll(*GetParam(), b, world, scratch);
      for (uint32_t row = 0; row < 40; ++row) {
        for (uint32_t i = 0; i < 32; ++i) ASSERT_EQ(std::isnan(out[row * 32 + i]), row >= 20) << row;
      }
    }
  }
  Batch zeros = RandomBatch(rng, heads, {40});
  std::fill(zeros.v.begin(), zeros.v.end(), 0.0f);
  KvWorld world = MakeKvWorld(rng, 1, 16, 32, zeros.lengths, DType::kI8);
  WriteAll(*GetParam(), zeros, world);
  for (const float x : AttendAll(*GetParam(), zeros, world, scratch)) ASSERT_EQ(x, 0.0f);
}

// Chunks, splits, block sizes: of bf16 as it ships, and of int8, whose scales are looked up by the same places.
void GivesTheSameBitsInAnyCut(const KernelTable& table, DType dtype, const std::vector<Heads>& shapes) {
  Rng rng(4);
  const Scratch scratch;
  for (const Heads& heads : shapes) {
    const uint32_t length = &table == &kReferenceKernels ? 150 : 391;
    const Batch b = RandomBatch(rng, heads, {length});
    KvWorld whole_world = MakeKvWorld(rng, heads.kv, heads.dim, 32, b.lengths, dtype);
    WriteAll(table, b, whole_world);
    const std::vector<float> whole = AttendAll(table, b, whole_world, scratch);
    const size_t width = size_t{heads.query} * heads.dim;
    for (const uint32_t chunk : {1u, 16u, 64u, 200u}) {
      for (const uint32_t block_tokens : {16u, 128u}) {
        KvWorld world = MakeKvWorld(rng, heads.kv, heads.dim, block_tokens, b.lengths, dtype);
        WriteAll(table, b, world);
        std::vector<float> out(b.q.size(), NAN);
        for (uint32_t first = 0; first < length; first += chunk) {
          const uint32_t count = std::min(chunk, length - first);
          const std::vector<RowSpan> spans = {{world.blocks[0].data(), 0, count, first}};
          AttentionParams p = Params(b, world, spans, out.data() + first * width);
          p.q += first * width;
          p.rows = count;
          const size_t items = size_t{heads.kv} * count;
          for (size_t begin = 0; begin < items;) {
            const size_t end = std::min<size_t>(items, begin + 1 + rng.Below(60));
            table.attention(p, begin, end, scratch.get());
            begin = end;
          }
        }
        ASSERT_TRUE(SameBits(whole, out)) << "chunk " << chunk << ", blocks of " << block_tokens;
      }
    }
  }
}

TEST_P(AttentionOfTable, GivesTheSameBitsInChunksInAnySplitAndInAnyBlockSize) {
  GivesTheSameBitsInAnyCut(*GetParam(), DType::kBF16, {{9, 3, 64}, {4, 1, 48}});
}
TEST_P(AttentionOfTable, OfAnInt8CacheGivesTheSameBitsInChunksInAnySplitAndInAnyBlockSize) {
  GivesTheSameBitsInAnyCut(*GetParam(), DType::kI8, {{9, 3, 64}});
}

TEST_P(AttentionOfTable, GivesASequenceTheSameBitsAloneAndInABatch) {
  Rng rng(5);
  const Scratch scratch;
  const Heads heads{6, 2, 64};
  const Batch b = RandomBatch(rng, heads, {5, 140, 33, 1});
  KvWorld world = MakeKvWorld(rng, heads.kv, heads.dim, 32, b.lengths);
  WriteAll(*GetParam(), b, world);
  const std::vector<float> together = AttendAll(*GetParam(), b, world, scratch);
  const size_t width = size_t{heads.query} * heads.dim;
  uint32_t row = 0;
  for (size_t s = 0; s < b.lengths.size(); ++s) {
    std::vector<float> alone(b.lengths[s] * width, NAN);
    const std::vector<RowSpan> spans = {{world.blocks[s].data(), 0, b.lengths[s], 0}};
    AttentionParams p = Params(b, world, spans, alone.data());
    p.q += row * width;
    p.rows = b.lengths[s];
    GetParam()->attention(p, 0, size_t{heads.kv} * p.rows, scratch.get());
    ASSERT_EQ(0, std::memcmp(alone.data(), &together[row * width], alone.size() * sizeof(float))) << "sequence " << s;
    row += b.lengths[s];
  }
}

TEST_P(AttentionOfTable, IgnoresFiniteGarbageInSlotsPastTheLastToken) {
  Rng rng(6);
  const Scratch scratch;
  const Heads heads{6, 2, 64};
  const Batch b = RandomBatch(rng, heads, {1, 45, 131});
  KvWorld garbage = MakeKvWorld(rng, heads.kv, heads.dim, 32, b.lengths);
  KvWorld clean = garbage;
  clean.tiles.pool = clean.pool.data();
  std::fill(clean.pool.begin(), clean.pool.end(), std::byte{0});
  WriteAll(*GetParam(), b, garbage);
  WriteAll(*GetParam(), b, clean);
  ASSERT_NE(garbage.pool, clean.pool);
  ASSERT_TRUE(SameBits(AttendAll(*GetParam(), b, garbage, scratch), AttendAll(*GetParam(), b, clean, scratch)));
}

INSTANTIATE_TEST_SUITE_P(Tables, AttentionOfTable, ::testing::ValuesIn(TablesUnderTest()), TableName);
INSTANTIATE_TEST_SUITE_P(Tables, AttentionOfFastTable, ::testing::ValuesIn(FastTables()), TableName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttentionOfFastTable);

}  // namespace
}  // namespace baton::testing
