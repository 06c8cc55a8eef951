#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_checkpoint.h"

namespace baton {
namespace {

using test::Bytes;
using test::GgufWriter;
using testing::HasSubstr;

GgufWriter Small() {
  GgufWriter w;
  w.Text("general.architecture", "llama");
  w.U32("a.number", 7);
  w.F32("a.real", 0.5f);
  w.Bool("a.flag", true);
  w.Texts("a.texts", {"one", "", "three"});
  w.Ints("a.ints", {1, -2, 3});
  w.tensors().push_back({"x", {3, 32}, 2, Bytes(3 * 18), -1});
  w.tensors().push_back({"y", {4}, 0, Bytes(16), -1});
  return w;
}

TEST(Gguf, ReadsEveryKindOfValueAndPlacesTensorsOutermostFirst) {
  const Bytes bytes = Small().Finish();
  auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*file->Unsigned("a.number"), 7u);
  EXPECT_EQ(*file->Real("a.real"), 0.5);
  EXPECT_EQ(*file->Bool("a.flag", false), true);
  EXPECT_EQ(*file->Texts("a.texts"), (std::vector<std::string_view>{"one", "", "three"}));
  EXPECT_EQ(*file->Ints("a.ints"), (std::vector<int32_t>{1, -2, 3}));
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].view.shape, (std::vector<uint64_t>{3, 32}));
  EXPECT_EQ(file->tensors()[0].view.dtype, DType::kQ4_0);
  EXPECT_EQ(file->tensors()[0].view.bytes, 54u);
  EXPECT_EQ(file->tensors()[1].view.data + 16, bytes.data() + bytes.size());
}

TEST(Gguf, AValueOfAnotherTypeOrAMissingKeyIsNamed) {
  const Bytes bytes = Small().Finish();
  auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->Unsigned("a.real").status().message(), HasSubstr("'a.real' is f32"));
  EXPECT_THAT(file->Texts("a.ints").status().message(), HasSubstr("array of i32"));
  EXPECT_EQ(file->Unsigned("nowhere").status().code(), Code::kNotFound);
  EXPECT_EQ(*file->Unsigned("nowhere", 9), 9u);
}

// FF-143
TEST(Gguf, AFileCutAtAnyByteIsRefused) {
  const Bytes bytes = Small().Finish();
  for (size_t n = 0; n < bytes.size(); ++n) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));  // its own memory: overreads show
    EXPECT_FALSE(GgufFile::Parse(cut).ok()) << n;
  }
}

TEST(Gguf, ARealFileCutAtAnyByteIsRefused) {
  const Bytes bytes = test::ReadBytes(std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/tiny-q4_0.gguf");
  ASSERT_GT(bytes.size(), 1000u);
  for (size_t n = 0; n + 32 < bytes.size(); n += n < 12000 ? 1 : 997) {  // padding may follow the last tensor
    EXPECT_FALSE(GgufFile::Parse(std::span(bytes).first(n)).ok()) << n;
  }
}

TEST(Gguf, AnyByteOfTheHeaderMayBeAnythingWithoutACrash) {
  const Bytes good = Small().Finish();
  size_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Bytes bad = good;
      bad[i] = static_cast<std::byte>(value);
      auto file = GgufFile::Parse(bad);
      refused += file.ok() ? 0 : 1;
      if (!file.ok()) continue;
      for (const auto& [key, v] : file->metadata()) {  // whatever was read can be read again
        (void)file->Texts(key);
        (void)file->Ints(key);
        (void)file->Floats(key);
      }
    }
  }
  EXPECT_GT(refused, good.size() / 4);
}

TEST(Gguf, CountsThatTheFileCannotHoldAreRefusedBeforeAnythingIsAllocated) {
  const Bytes good = Small().Finish();
  for (const size_t at : {size_t{8}, size_t{16}}) {  // tensor count, metadata count
    Bytes bad = good;
    const uint64_t huge = uint64_t{1} << 60;
    std::memcpy(bad.data() + at, &huge, 8);
    EXPECT_THAT(GgufFile::Parse(bad).status().message(), HasSubstr("cannot lie in the"));
  }
}

TEST(Gguf, TensorsThatOverlapOrLeaveTheFileOrAreUnalignedAreRefused) {
  struct Case {
    int64_t offset;
    const char* message;
  };
  for (const Case& c : {Case{0, "overlap"}, Case{1 << 20, "outside"}, Case{33, "not a multiple of 32"}}) {
    GgufWriter w = Small();
    w.tensors()[1].offset = c.offset;
    EXPECT_THAT(GgufFile::Parse(w.Finish()).status().message(), HasSubstr(c.message));
  }
}

TEST(Gguf, ShapesThatOverflowAndTypesThatAreNotReadAreRefusedByName) {
  GgufWriter overflow = Small();
  overflow.tensors()[0].shape = {uint64_t{1} << 33, uint64_t{1} << 33};
  EXPECT_THAT(GgufFile::Parse(overflow.Finish()).status().message(), HasSubstr("'x'"));
  GgufWriter type = Small();
  type.tensors()[0].type = 12;
  EXPECT_THAT(GgufFile::Parse(type.Finish()).status().message(), HasSubstr("type Q4_K is not supported"));
  GgufWriter rows = Small();
  rows.tensors()[0].shape = {3, 33};
  EXPECT_THAT(GgufFile::Parse(rows.Finish()).status().message(), HasSubstr("blocks of 32"));
}

TEST(Gguf, TheSameNameTwiceIsRefused) {
  GgufWriter tensors = Small();
  tensors.tensors()[1].name = "x";
  EXPECT_THAT(GgufFile::Parse(tensors.Finish()).status().message(), HasSubstr("'x' twice"));
  GgufWriter keys = Small();
  keys.U32("a.number", 8);
  EXPECT_THAT(GgufFile::Parse(keys.Finish()).status().message(), HasSubstr("'a.number' twice"));
}

TEST(Gguf, OtherVersionsAndOtherFilesAreNamed) {
  Bytes bytes = Small().Finish();
  bytes[4] = std::byte{2};
  EXPECT_THAT(GgufFile::Parse(bytes).status().message(), HasSubstr("version: 2; only 3"));
  bytes[0] = std::byte{'X'};
  EXPECT_THAT(GgufFile::Parse(bytes).status().message(), HasSubstr("not a GGUF file"));
}

}  // namespace
}  // namespace baton
