#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_checkpoint.h"

namespace baton {
namespace {

using nlohmann::json;
using test::Bytes;
using test::Safetensors;
using testing::HasSubstr;

json Header() {
  return {{"__metadata__", {{"format", "pt"}}},
          {"a", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}},
          {"b", {{"dtype", "BF16"}, {"shape", {4}}, {"data_offsets", {24, 32}}}}};
}

std::string Refusal(const json& header, size_t data_bytes = 32) {
  auto parsed = ParseSafetensors(Safetensors(header, Bytes(data_bytes)));
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(Safetensors, ReadsNamesTypesAndShapes) {
  const Bytes bytes = Safetensors(Header(), Bytes(32));
  auto parsed = ParseSafetensors(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->size(), 2u);
  EXPECT_EQ((*parsed)[0].name, "a");
  EXPECT_EQ((*parsed)[0].view.shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*parsed)[1].view.dtype, DType::kBF16);
  EXPECT_EQ((*parsed)[1].view.data + 8, bytes.data() + bytes.size());
}

// FF-143
TEST(Safetensors, AFileCutAtAnyByteIsRefused) {
  const Bytes bytes = Safetensors(Header(), Bytes(32));
  for (size_t n = 0; n < bytes.size(); ++n) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_FALSE(ParseSafetensors(cut).ok()) << n;
  }
}

// FF-143
TEST(Safetensors, AnyByteOfTheHeaderMayBeAnythingWithoutACrash) {
  const Bytes good = Safetensors(Header(), Bytes(32));
  size_t refused = 0;
  for (size_t i = 0; i < good.size() - 32; ++i) {
    for (const int value : {0x00, 0x22, 0x2d, 0x39, 0x5b, 0x7b, 0xff}) {
      Bytes bad = good;
      bad[i] = static_cast<std::byte>(value);
      refused += ParseSafetensors(bad).ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, good.size());
}

// FF-143
TEST(Safetensors, WhatDoesNotAddUpIsRefusedWithTheTensorsName) {
  json header = Header();
  header["b"]["data_offsets"] = {20, 28};
  EXPECT_THAT(Refusal(header), HasSubstr("overlaps"));
  header = Header();
  header["b"]["data_offsets"] = {24, 33};
  EXPECT_THAT(Refusal(header), HasSubstr("'b': bytes [24, 33) lie outside the 32"));
  header = Header();
  header["b"]["data_offsets"] = {32, 24};
  EXPECT_THAT(Refusal(header), HasSubstr("'b'"));
  header = Header();
  header["a"]["shape"] = {2, 4};
  EXPECT_THAT(Refusal(header), HasSubstr("the shape gives 32"));
  header = Header();
  header["a"]["shape"] = {uint64_t{1} << 40, uint64_t{1} << 40};
  EXPECT_THAT(Refusal(header), HasSubstr("overflows"));
  header = Header();
  header["a"]["shape"] = {-1, 3};
  EXPECT_THAT(Refusal(header), HasSubstr("not a size"));
  header = Header();
  header["a"]["dtype"] = "I8";
  EXPECT_THAT(Refusal(header), HasSubstr("type \"I8\" is not supported"));
  header = Header();
  header["a"].erase("dtype");
  EXPECT_THAT(Refusal(header), HasSubstr("'a'"));
}

TEST(Safetensors, ANameTwiceIsRefused) {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string text = "{\"a\":" + entry + ",\"a\":" + entry + "}";
  Bytes bytes(8 + text.size() + 4);
  const uint64_t n = text.size();
  std::memcpy(bytes.data(), &n, 8);
  std::memcpy(bytes.data() + 8, text.data(), n);
  EXPECT_THAT(ParseSafetensors(bytes).status().message(), HasSubstr("twice"));
}

TEST(Safetensors, AHeaderBeyondTheFileOrTheLimitIsRefused) {
  for (const uint64_t length : {uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{4096}}) {
    Bytes bytes = Safetensors(Header(), Bytes(32));
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_THAT(ParseSafetensors(bytes).status().message(), HasSubstr("a header of"));
  }
}

}  // namespace
}  // namespace baton
