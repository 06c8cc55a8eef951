// Every table's gemm and embed against kernels/reference, bit for bit, and the reference against float64.
#include <gtest/gtest.h>

#include "tests/conformance/kernels/tables_under_test.h"
#include "tests/conformance/kernels/worlds.h"

namespace baton::testing {
namespace {

std::unique_ptr<CpuPool> Pool(int threads) { return std::move(*CpuPool::Create({threads, {}})); }

TEST(Gemm, ReferenceIsTheProductOfTheRawWeight) {
  Rng rng(1);
  const Scratch scratch;
  const auto pool = Pool(2);
  for (const DType dtype : kAllTypes) {
    for (int round = 0; round < 6; ++round) {
      const uint32_t n = 1 + static_cast<uint32_t>(rng.Below(70));
      const uint32_t k = IsQuantised(dtype) ? 32 * (1 + static_cast<uint32_t>(rng.Below(9)))
                                            : 1 + static_cast<uint32_t>(rng.Below(200));
      const uint32_t rows = 1 + static_cast<uint32_t>(rng.Below(5));
      const RawWeight raw = RandomWeight(rng, dtype, n, k);
      const auto packed = PackedMatrix::Pack(*pool, raw.view());
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      const std::vector<float> x = Floats(rng, size_t{rows} * k);
      const std::vector<float> out = RunGemm(kReferenceKernels, packed->view(), x, rows, k, scratch);
      for (uint32_t m = 0; m < rows; ++m) {
        for (uint32_t c = 0; c < n; ++c) {
          double sum = 0, magnitude = 0;
          for (uint32_t i = 0; i < k; ++i) {
            const double term = double{raw.At(c, i)} * double{x[m * k + i]};
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(out[m * n + c], sum, magnitude * k * 0x1p-24 + 1e-30)
              << Traits(dtype).name << " n " << n << " k " << k << " row " << m << " column " << c;
        }
      }
    }
  }
}

class GemmOfTable : public ::testing::TestWithParam<const KernelTable*> {};
class GemmOfFastTable : public GemmOfTable {};

TEST_P(GemmOfFastTable, EqualsTheReferenceBitForBitAtAnyShape) {
  Rng rng(2);
  const Scratch scratch;
  const auto pool = Pool(2);
  for (const DType dtype : kAllTypes) {
    for (uint32_t rows = 1; rows <= 33; ++rows) {
      const uint32_t n = 1 + static_cast<uint32_t>(rng.Below(90));
      const uint32_t k = IsQuantised(dtype) ? 32 * (1 + static_cast<uint32_t>(rng.Below(7)))
                                            : 1 + static_cast<uint32_t>(rng.Below(150));
      const RawWeight raw = RandomWeight(rng, dtype, n, k);
      const auto packed = PackedMatrix::Pack(*pool, raw.view());
      ASSERT_TRUE(packed.ok());
      const size_t stride = k + rng.Below(5);
      const std::vector<float> x = Floats(rng, rows * stride);
      ASSERT_TRUE(SameBits(RunGemm(kReferenceKernels, packed->view(), x, rows, stride, scratch),
                           RunGemm(*GetParam(), packed->view(), x, rows, stride, scratch)))
          << Traits(dtype).name << " rows " << rows << " n " << n << " k " << k;
    }
  }
}

TEST_P(GemmOfFastTable, EqualsTheReferenceAtLargeShapes) {
  Rng rng(3);
  const Scratch scratch;
  const auto pool = Pool(2);
  const struct {
    DType dtype;
    uint32_t rows, n, k;
  } cases[] = {{DType::kQ4_1, 512, 64, 576},   {DType::kQ8_0, 512, 40, 1536}, {DType::kQ4_0, 7, 100, 4128},
               {DType::kBF16, 1030, 33, 2100}, {DType::kF16, 4, 70, 5000},    {DType::kF32, 13, 130, 2049}};
  for (const auto& c : cases) {
    const RawWeight raw = RandomWeight(rng, c.dtype, c.n, c.k);
    const auto packed = PackedMatrix::Pack(*pool, raw.view());
    ASSERT_TRUE(packed.ok());
    const std::vector<float> x = Floats(rng, size_t{c.rows} * c.k);
    ASSERT_TRUE(SameBits(RunGemm(kReferenceKernels, packed->view(), x, c.rows, c.k, scratch),
                         RunGemm(*GetParam(), packed->view(), x, c.rows, c.k, scratch)))
        << Traits(c.dtype).name << " " << c.rows << " x " << c.n << " x " << c.k;
  }
}

TEST_P(GemmOfTable, GivesARowTheSameBitsAloneInABatchAndInAnySplitOfPanels) {
  Rng rng(4);
  const Scratch scratch;
  const auto pool = Pool(1);
  for (const DType dtype : kAllTypes) {
    const uint32_t n = 150, k = 96, rows = 40;
    const RawWeight raw = RandomWeight(rng, dtype, n, k);
    const auto packed = PackedMatrix::Pack(*pool, raw.view());
    ASSERT_TRUE(packed.ok());
    const std::vector<float> x = Floats(rng, size_t{rows} * k);
    const std::vector<float> all = RunGemm(*GetParam(), packed->view(), x, rows, k, scratch);
    for (uint32_t first = 0; first < rows;) {
      const uint32_t count = std::min<uint32_t>(rows - first, 1 + static_cast<uint32_t>(rng.Below(9)));
      const std::vector<float> some(x.begin() + first * k, x.begin() + (first + count) * k);
      std::vector<float> out(size_t{count} * n, NAN);
      GemmParams p{.w = packed->view(), .x = some.data(), .x_stride = k, .rows = count,
                   .out = out.data(), .out_stride = n};
      for (size_t panel = 0; panel < p.w.num_panels();) {
        const size_t end = std::min<size_t>(p.w.num_panels(), panel + 1 + rng.Below(5));
        GetParam()->gemm(p, panel, end, scratch.get());
        panel = end;
      }
      ASSERT_EQ(0, std::memcmp(out.data(), &all[size_t{first} * n], out.size() * sizeof(float)))
          << Traits(dtype).name << " rows " << first << " + " << count;
      first += count;
    }
  }
}

TEST_P(GemmOfTable, AddsBiasAndResidualInPlaceAndTouchesNothingElse) {
  Rng rng(5);
  const Scratch scratch;
  const auto pool = Pool(1);
  for (const uint32_t rows : {1u, 3u, 20u}) {
    const uint32_t n = 37, k = 64;
    const size_t stride = n + 11;
    const RawWeight raw = RandomWeight(rng, DType::kQ4_1, n, k);
    const auto packed = PackedMatrix::Pack(*pool, raw.view());
    ASSERT_TRUE(packed.ok());
    const std::vector<float> x = Floats(rng, size_t{rows} * k);
    const std::vector<float> bias = Floats(rng, n);
    const std::vector<float> before = Floats(rng, rows * stride);
    const std::vector<float> plain = RunGemm(kReferenceKernels, packed->view(), x, rows, k, scratch);
    std::vector<float> expected = before;
    for (uint32_t m = 0; m < rows; ++m) {
      for (uint32_t c = 0; c < n; ++c) expected[m * stride + c] = (plain[m * n + c] + bias[c]) + before[m * stride + c];
    }
    std::vector<float> out = before;
    GemmParams p{.w = packed->view(), .x = x.data(), .x_stride = k, .rows = rows, .bias = bias.data(),
                 .residual = out.data(), .residual_stride = stride, .out = out.data(), .out_stride = stride};
    GetParam()->gemm(p, 0, p.w.num_panels(), scratch.get());
    ASSERT_TRUE(SameBits(expected, out)) << rows;
  }
}

TEST_P(GemmOfTable, EmbedsRowsOfEveryType) {
  Rng rng(6);
  for (const DType dtype : kAllTypes) {
    const RawWeight raw = RandomWeight(rng, dtype, 23, 96);
    const std::vector<TokenId> ids = {0, 22, 7, 7, 1};
    for (const KernelTable* table : {&kReferenceKernels, GetParam()}) {
      std::vector<float> out(ids.size() * 100, -5);
      const EmbedParams p{.dtype = dtype, .table = raw.bytes.data(), .row_bytes = raw.row_bytes(), .n = 96,
                          .ids = ids.data(), .out = out.data(), .out_stride = 100};
      table->embed(p, 1, 4);
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool in_range = i >= 1 && i < 4;
        for (uint32_t c = 0; c < 100; ++c) {
          const float expected = in_range && c < 96 ? raw.At(static_cast<uint32_t>(ids[i]), c) : -5;
          ASSERT_EQ(out[i * 100 + c], expected) << Traits(dtype).name << " row " << i << " column " << c;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, GemmOfTable, ::testing::ValuesIn(TablesUnderTest()), TableName);
INSTANTIATE_TEST_SUITE_P(Tables, GemmOfFastTable, ::testing::ValuesIn(FastTables()), TableName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmOfFastTable);

TEST(Pack, StacksPartsAsIfTheyWereOneWeight) {
  Rng rng(7);
  const auto pool = Pool(2);
  for (const DType dtype : kAllTypes) {
    const RawWeight whole = RandomWeight(rng, dtype, 77, 64);
    const std::vector<TensorView> parts = {
        {dtype, {40, 64}, whole.bytes.data(), 40 * whole.row_bytes()},
        {dtype, {1, 64}, whole.bytes.data() + 40 * whole.row_bytes(), whole.row_bytes()},
        {dtype, {36, 64}, whole.bytes.data() + 41 * whole.row_bytes(), 36 * whole.row_bytes()}};
    const auto stacked = PackedMatrix::Pack(*pool, parts);
    const auto one = PackedMatrix::Pack(*pool, whole.view());
    ASSERT_TRUE(stacked.ok() && one.ok());
    EXPECT_EQ(stacked->view().n, 77u);
    ASSERT_EQ(stacked->bytes(), one->bytes());
    EXPECT_EQ(0, std::memcmp(stacked->view().panels, one->view().panels, one->bytes())) << Traits(dtype).name;
  }
}

TEST(Pack, KeepsAQuantisedWeightAtItsSize) {
  Rng rng(8);
  const auto pool = Pool(1);
  const auto packed = PackedMatrix::Pack(*pool, RandomWeight(rng, DType::kQ4_1, 64, 576).view());
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->bytes(), BytesOf(DType::kQ4_1, 64 * 576));
}

TEST(Pack, RefusesWhatItCannotPackInWords) {
  Rng rng(9);
  const auto pool = Pool(1);
  const RawWeight w = RandomWeight(rng, DType::kQ8_0, 4, 64);
  const RawWeight other = RandomWeight(rng, DType::kF16, 4, 64);
  auto refused = [&](std::vector<TensorView> parts, const char* words) {
    const auto packed = PackedMatrix::Pack(*pool, parts);
    ASSERT_FALSE(packed.ok()) << words;
    EXPECT_EQ(packed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(packed.status().message().find(words), std::string::npos) << packed.status().message();
  };
  refused({}, "no weight");
  refused({w.view(), other.view()}, "pack them apart");
  TensorView bad = w.view();
  bad.shape = {4, 64, 1};
  refused({bad}, "dimensions");
  bad.shape = {4, 50};
  refused({bad}, "no multiple");
  bad.shape = {5, 64};
  refused({bad}, "needs");
  bad.shape = {0, 64};
  refused({bad}, "shape");
}

TEST(Formats, Bf16RoundsToNearestEvenAndKeepsSpecialValues) {
  const struct {
    uint32_t in;
    uint16_t out;
  } cases[] = {{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},
               {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
               {0x80000000, 0x8000}, {0x00000001, 0x0000}, {0x7f800001, 0x7fc0}, {0xffc12345, 0xffc1}};
  for (const auto& c : cases) EXPECT_EQ(FloatToBf16(BitsToFloat(c.in)), c.out) << std::hex << c.in;
}

TEST(Formats, Fp16IsExactForEveryFiniteValue) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    const float value = Fp16ToFloat(static_cast<uint16_t>(h));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), mantissa != 0);
      continue;
    }
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, int(exponent) - 25);
    ASSERT_EQ(double{value}, h & 0x8000 ? -magnitude : magnitude) << h;
    ASSERT_EQ(std::signbit(value), (h & 0x8000) != 0);
  }
}

TEST(Formats, ExpIsCloseToExpAndZeroBelowItsRange) {
  for (double x = -87.3; x <= 88; x += 0.0017) {
    const auto f = static_cast<float>(x);
    ASSERT_NEAR(ExpOf(f) / std::exp(double{f}), 1.0, 2e-7) << x;
  }
  EXPECT_EQ(ExpOf(0), 1.0f);
  EXPECT_EQ(ExpOf(-87.4f), 0.0f);
  EXPECT_EQ(ExpOf(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(ExpOf(NAN)));
  EXPECT_TRUE(std::isfinite(ExpOf(1e30f)));
}

}  // namespace
}  // namespace baton::testing
