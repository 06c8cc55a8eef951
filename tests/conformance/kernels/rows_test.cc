// The row-wise entries of every table against kernels/reference, bit for bit, and against float64.
#include <gtest/gtest.h>

#include "tests/conformance/kernels/tables_under_test.h"
#include "tests/conformance/kernels/worlds.h"

namespace baton::testing {
namespace {

class RowsOfTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
};

TEST_P(RowsOfTable, NormalisesAtAnyWidthAndPerHead) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const auto n = 1 + static_cast<uint32_t>(rng.Below(700));
    const auto vectors = 1 + static_cast<uint32_t>(rng.Below(3));
    const auto rows = 1 + static_cast<uint32_t>(rng.Below(4));
    const size_t stride = size_t{n} * vectors + rng.Below(9);
    const std::vector<float> x = Floats(rng, rows * stride);
    const std::vector<float> weight = Floats(rng, n);
    std::vector<float> expected = x, out = x;  // in place
    RmsNormParams p{.x = expected.data(), .x_stride = stride, .weight = weight.data(), .eps = 1e-5f, .n = n,
                    .vectors = vectors, .out = expected.data(), .out_stride = stride};
    kReferenceKernels.rms_norm(p, 0, rows);
    p.x = p.out = out.data();
    table().rms_norm(p, 0, rows);
    ASSERT_TRUE(SameBits(expected, out)) << "n " << n << " vectors " << vectors;
    double squares = 0;
    for (uint32_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
    const double inverse = 1 / std::sqrt(squares / n + 1e-5);
    for (uint32_t i = 0; i < n; ++i) ASSERT_NEAR(out[i], x[i] * inverse * weight[i], 2e-6);
  }
}

TEST_P(RowsOfTable, RotatesBothKindsOfPairsAndLeavesTheRestOfAHead) {
  Rng rng(2);
  for (int round = 0; round < 100; ++round) {
    const uint32_t half = 1 + static_cast<uint32_t>(rng.Below(40));
    const uint32_t dim = 2 * half + 2 * static_cast<uint32_t>(rng.Below(10));
    const uint32_t heads = 1 + static_cast<uint32_t>(rng.Below(4));
    const uint32_t rows = 3;
    const std::vector<uint32_t> positions = {5, 0, 9};
    const std::vector<float> cos = Floats(rng, 10 * half), sin = Floats(rng, 10 * half);
    const std::vector<float> x = Floats(rng, size_t{rows} * heads * dim);
    for (const RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalves}) {
      std::vector<float> expected = x, out = x;
      RopeParams p{.pairs = pairs, .x = expected.data(), .x_stride = size_t{heads} * dim, .heads = heads,
                   .head_dim = dim, .rotary_dim = 2 * half, .positions = positions.data(),
                   .cos_table = cos.data(), .sin_table = sin.data()};
      kReferenceKernels.rope(p, 0, rows);
      p.x = out.data();
      table().rope(p, 0, rows);
      ASSERT_TRUE(SameBits(expected, out)) << "half " << half << " dim " << dim;
      for (uint32_t i = 0; i < dim; ++i) {  // row 0, head 0, in doubles
        double want = x[i];
        if (i < 2 * half) {
          const bool halves = pairs == RopePairs::kHalves;
          const uint32_t j = halves ? i % half : i / 2;
          const bool second = halves ? i >= half : i % 2 == 1;
          const double a = x[halves ? j : 2 * j], b = x[halves ? j + half : 2 * j + 1];
          const double c = cos[5 * half + j], s = sin[5 * half + j];
          want = second ? b * c + a * s : a * c - b * s;
        }
        ASSERT_NEAR(out[i], want, 1e-6);
      }
    }
  }
}

TEST_P(RowsOfTable, GatesWithSilu) {
  Rng rng(3);
  for (uint32_t n = 1; n < 80; ++n) {
    std::vector<float> in = Floats(rng, size_t{n} * 4);  // 2 rows of [gate, up]
    for (float& v : in) v *= 30;
    in[0] = 200;
    in[2 * n] = -200;
    std::vector<float> expected(size_t{n} * 2), out(size_t{n} * 2);
    SiluMulParams p{.gate = in.data(), .up = in.data() + n, .in_stride = 2 * n, .n = n,
                    .out = expected.data(), .out_stride = n};
    kReferenceKernels.silu_mul(p, 0, 2);
    p.out = out.data();
    table().silu_mul(p, 0, 2);
    ASSERT_TRUE(SameBits(expected, out)) << n;
    for (uint32_t i = 0; i < n; ++i) {
      const double want = in[i] / (1 + std::exp(-double{in[i]})) * in[n + i];
      ASSERT_NEAR(out[i], want, std::abs(want) * 1e-6 + 1e-30);
    }
  }
}

TEST_P(RowsOfTable, AddsARange) {
  Rng rng(4);
  const std::vector<float> a = Floats(rng, 100), b = Floats(rng, 100);
  for (size_t begin = 0; begin < 40; ++begin) {
    const size_t end = begin + rng.Below(60);
    std::vector<float> out(100, 7);
    table().add({a.data(), b.data(), out.data()}, begin, end);
    for (size_t i = 0; i < 100; ++i) ASSERT_EQ(out[i], i >= begin && i < end ? a[i] + b[i] : 7);
  }
}

TEST_P(RowsOfTable, FindsTheFirstGreatestValueAndNeverNaN) {
  Rng rng(5);
  for (int round = 0; round < 400; ++round) {
    const auto n = 1 + static_cast<uint32_t>(rng.Below(round % 8 == 0 ? 5000 : 50));
    std::vector<float> x(n);
    const uint64_t kinds = 1 + rng.Below(4);  // few values: many ties
    for (float& v : x) {
      const uint64_t kind = rng.Below(6);
      v = kind == 0 ? NAN : kind == 1 ? -INFINITY : static_cast<float>(rng.Below(kinds * 2)) - static_cast<float>(kinds);
    }
    if (round % 10 == 0) std::fill(x.begin(), x.end(), round % 20 == 0 ? NAN : -INFINITY);
    uint32_t want = 0;
    bool any = false;
    for (uint32_t i = 0; i < n; ++i) {
      if (!std::isnan(x[i]) && (!any || x[i] > x[want])) want = i, any = true;
    }
    for (const KernelTable* t : {&kReferenceKernels, &table()}) {
      uint32_t found = 1u << 31;
      t->argmax({.x = x.data(), .x_stride = n, .n = n, .out = &found}, 0, 1);
      ASSERT_EQ(found, want) << t->name << " n " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, RowsOfTable, ::testing::ValuesIn(TablesUnderTest()), TableName);

}  // namespace
}  // namespace baton::testing
