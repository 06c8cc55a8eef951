#include "model/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/loaded_model.h"
#include "model/memory_plan.h"
#include "support/tiny_checkpoint.h"

namespace baton {
namespace {

using nlohmann::json;
using test::GgufWriter;
using test::TempFolder;
using test::TinyCheckpoint;
using testing::AllOf;
using testing::HasSubstr;

const std::string kTiny = std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/";

std::string GgufRefusal(const GgufWriter& writer) {
  TempFolder folder;
  test::WriteFile(folder / "m.gguf", writer.Finish());
  auto file = ModelFile::Open(folder / "m.gguf");
  return file.ok() ? "" : file.status().message();
}

std::string HfRefusal(const std::function<void(json*)>& change) {
  TempFolder folder;
  const TinyCheckpoint checkpoint;
  json config = checkpoint.HfConfig();
  change(&config);
  checkpoint.WriteHf(folder.path(), config);
  auto file = ModelFile::Open(folder.path());
  return file.ok() ? "" : file.status().message();
}

TEST(ModelFile, EveryTinyModelOpensWithItsDescription) {
  for (const char* name : {"tiny-f32.gguf", "tiny-f16.gguf", "tiny-bf16.gguf", "tiny-q8_0.gguf", "tiny-q4_0.gguf",
                           "tiny-q4_1.gguf", "hf-mixed"}) {
    auto file = ModelFile::Open(kTiny + name);
    ASSERT_TRUE(file.ok()) << name << ": " << file.status().message();
    const DecoderDescription& d = (*file)->decoder();
    EXPECT_EQ(d.family, "llama");
    EXPECT_EQ(d.hidden, 64u);
    EXPECT_EQ(d.num_heads, 4u);
    EXPECT_EQ(d.num_kv_heads, 2u);
    EXPECT_EQ(d.head_dim, 32u);
    EXPECT_EQ(d.mlp_hidden, 96u);
    EXPECT_EQ(d.vocab_size, 290u);
    EXPECT_EQ(d.context_tokens, 512u);
    EXPECT_EQ(d.rope_theta, 50000.0f);
    EXPECT_EQ(d.norm_eps, 1e-6f);
    EXPECT_EQ((*file)->tokenizer().eos_ids, std::vector<TokenId>{2});
    EXPECT_EQ((*file)->layers().size(), d.num_layers);
    EXPECT_THAT(DescribeModel(**file), HasSubstr("4 heads over 2 KV heads of 32"));
  }
}

TEST(ModelFile, MissingMisshapenAndLeftOverTensorsAreListedByName) {
  GgufWriter missing = TinyCheckpoint().Gguf();
  std::erase_if(missing.tensors(), [](const auto& t) { return t.name == "blk.1.ffn_up.weight"; });
  EXPECT_THAT(GgufRefusal(missing), HasSubstr("missing tensors: blk.1.ffn_up.weight"));

  GgufWriter left = TinyCheckpoint().Gguf();
  left.tensors().push_back({"blk.0.attn_q.bias", {96}, 0, test::Bytes(96 * 4), -1});
  EXPECT_THAT(GgufRefusal(left), HasSubstr("does not use: blk.0.attn_q.bias"));

  GgufWriter shape = TinyCheckpoint().Gguf();
  for (auto& t : shape.tensors()) {
    if (t.name == "blk.0.ffn_down.weight") t.shape = {96, 64};
  }
  EXPECT_THAT(GgufRefusal(shape), HasSubstr("blk.0.ffn_down.weight is [96, 64], the description says [64, 96]"));
}

TEST(ModelFile, AnUnknownFamilyIsRefusedWithTheOnesThatAreThere) {
  GgufWriter w;
  w.Text("general.architecture", "mamba");
  EXPECT_THAT(GgufRefusal(w), AllOf(HasSubstr("'mamba'"), HasSubstr("these are: llama")));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["model_type"] = "qwen3"; }), HasSubstr("'qwen3'"));
}

// FF-144
TEST(ModelFile, FeaturesThatWouldChangeTheAnswerAreRefusedByName) {
  struct Case {
    std::function<void(GgufWriter*)> add;
    const char* name;
  };
  for (const Case& c : {Case{[](GgufWriter* w) { w->Text("llama.rope.scaling.type", "yarn"); }, "rope scaling 'yarn'"},
                        Case{[](GgufWriter* w) { w->U32("llama.expert_count", 8); }, "8 experts"},
                        Case{[](GgufWriter* w) { w->U32("llama.attention.sliding_window", 64); }, "sliding window"},
                        Case{[](GgufWriter* w) { w->U32("llama.rope.dimension_count", 16); }, "rope over 16"},
                        Case{[](GgufWriter* w) { w->F32("llama.logit_scale", 2); }, "'llama.logit_scale'"}}) {
    GgufWriter w = TinyCheckpoint().Gguf();
    c.add(&w);
    EXPECT_THAT(GgufRefusal(w), HasSubstr(c.name));
  }
  EXPECT_THAT(HfRefusal([](json* c) {
                (*c)["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
              }),
              HasSubstr("rope scaling \"llama3\""));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["attention_bias"] = true; }), HasSubstr("attention_bias"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["sliding_window"] = 4096; }), HasSubstr("sliding_window"));
  EXPECT_THAT(HfRefusal([](json* c) {
                (*c)["quantization_config"] = {{"bits", 4}};
              }),
              HasSubstr("quantization_config"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["hidden_act"] = "gelu"; }), HasSubstr("gelu"));
}

TEST(ModelFile, NumbersThatCannotBeAreRefused) {
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["num_hidden_layers"] = 4000000000u; }), HasSubstr("layer count"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["num_attention_heads"] = 0; }), HasSubstr("'num_attention_heads' is 0"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["num_key_value_heads"] = 2; }), HasSubstr("do not divide"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["head_dim"] = 33; }), HasSubstr("must be even"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["hidden_size"] = -64; }), HasSubstr("'hidden_size' is -64"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["rms_norm_eps"] = "small"; }), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["eos_token_id"] = 1000; }), HasSubstr("end token 1000"));
  EXPECT_THAT(HfRefusal([](json* c) { (*c)["eos_token_id"] = {1, -4}; }), HasSubstr("-4"));
}

// FF-091, FF-147
TEST(ModelFile, EndTokensComeFromBothConfigs) {
  TempFolder folder;
  const TinyCheckpoint checkpoint;
  checkpoint.WriteHf(folder.path(), checkpoint.HfConfig());
  test::WriteText(folder / "generation_config.json", R"({"eos_token_id": 9})");
  auto file = ModelFile::Open(folder.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->tokenizer().eos_ids, (std::vector<TokenId>{2, 7, 9}));
}

TEST(ModelFile, AnIndexMayNotReachOutsideItsFolderOrNameWhatIsNotThere) {
  TempFolder folder;
  const TinyCheckpoint checkpoint;
  checkpoint.WriteHf(folder.path(), checkpoint.HfConfig());
  const auto open_with = [&](const json& index) {
    test::WriteText(folder / "model.safetensors.index.json", index.dump());
    auto file = ModelFile::Open(folder.path());
    return file.ok() ? std::string() : file.status().message();
  };
  EXPECT_THAT(open_with({{"weight_map", {{"x", "../model.safetensors"}}}}), HasSubstr("not the name of a file"));
  EXPECT_THAT(open_with({{"weight_map", {{"x", "model.safetensors"}}}}), HasSubstr("'x' is not in"));
  EXPECT_THAT(open_with({{"weight_map", {{"x", "gone.safetensors"}}}}), HasSubstr("gone.safetensors"));
  EXPECT_THAT(open_with({{"metadata", 1}}), HasSubstr("weight_map"));
}

TEST(ModelFile, TheSameNumbersHaveTheSameIdentityInEitherContainer) {
  TempFolder folder;
  const TinyCheckpoint checkpoint(5), other(6);
  test::WriteFile(folder / "f32.gguf", checkpoint.Gguf(false).Finish());
  test::WriteFile(folder / "bf16.gguf", checkpoint.Gguf(true).Finish());
  test::WriteFile(folder / "other.gguf", other.Gguf(false).Finish());
  checkpoint.WriteHf(folder.path(), checkpoint.HfConfig());
  const auto identity = [](const std::filesystem::path& path) {
    auto file = ModelFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return (*file)->identity().weights;
  };
  EXPECT_EQ(identity(folder / "f32.gguf"), identity(folder / "bf16.gguf"));
  EXPECT_EQ(identity(folder / "f32.gguf"), identity(folder.path()));
  EXPECT_NE(identity(folder / "f32.gguf"), identity(folder / "other.gguf"));
}

TEST(ModelFile, ATiedHeadThatIsStoredTooMustRepeatTheEmbedding) {
  const auto open_with = [](bool equal) {
    TempFolder folder;
    TinyCheckpoint checkpoint(1, /*tied_head=*/false);
    if (equal) checkpoint.matrices[2].values = checkpoint.matrices[0].values;
    json config = checkpoint.HfConfig();
    config["tie_word_embeddings"] = true;
    checkpoint.WriteHf(folder.path(), config);
    auto file = ModelFile::Open(folder.path());
    return file.ok() ? std::string() : file.status().message();
  };
  EXPECT_EQ(open_with(true), "");
  EXPECT_THAT(open_with(false), HasSubstr("lm_head.weight differs"));
}

TEST(LoadedModel, HoldsExactlyWhatTheHeaderPromisedAndReportsProgressToTheEnd) {
  for (const char* name : {"tiny-q4_1.gguf", "tiny-bf16.gguf", "hf-mixed"}) {
    auto file = ModelFile::Open(kTiny + name);
    ASSERT_TRUE(file.ok());
    auto pool = CpuPool::Create({});
    uint64_t last = 0, total = 1;
    auto model = LoadedModel::Load(**file, **pool, [&](uint64_t done, uint64_t all) {
      EXPECT_GE(done, last);
      last = done;
      total = all;
    });
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ((*model)->bytes(), PackedBytes(**file)) << name;
    EXPECT_EQ(last, total) << name;
  }
}

TEST(LoadedModel, EmbeddingRowsComeBackFromThePackedHeadByteForByte) {
  for (const char* name : {"tiny-f32.gguf", "tiny-f16.gguf", "tiny-bf16.gguf", "tiny-q8_0.gguf", "tiny-q4_0.gguf",
                           "tiny-q4_1.gguf", "hf-mixed"}) {
    auto file = ModelFile::Open(kTiny + name);
    ASSERT_TRUE(file.ok());
    auto pool = CpuPool::Create({});
    auto model = LoadedModel::Load(**file, **pool);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const EmbeddingRows& rows = (*model)->embedding();
    const TensorView& table = (*file)->embedding().view;
    for (TokenId id = 0; id < 290; ++id) {
      std::vector<std::byte> row(rows.row_bytes());
      rows.Gather({&id, 1}, row.data());
      ASSERT_EQ(std::memcmp(row.data(), table.data + static_cast<size_t>(id) * row.size(), row.size()), 0)
          << name << id;
      const TensorView& head = (*file)->head().view;  // whether tied or not: the packer's inverse
      std::vector<std::byte> back(BytesOf(head.dtype, 64));
      UnpackRow((*model)->head(), static_cast<uint32_t>(id), back.data());
      ASSERT_EQ(std::memcmp(back.data(), head.data + static_cast<size_t>(id) * back.size(), back.size()), 0) << name;
    }
  }
}

TEST(MemoryPlan, FitsTheBudgetAndSaysSoInWords) {
  auto file = ModelFile::Open(kTiny + "tiny-q4_1.gguf");
  ASSERT_TRUE(file.ok());
  for (const uint64_t budget : {uint64_t{1} << 20, uint64_t{5} << 20, uint64_t{300} << 20}) {
    auto plan =
        PlanMemory(**file, {.budget_bytes = budget, .available_bytes = uint64_t{1} << 40, .workspace_bytes = 1000});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan->total_bytes(), budget);
    EXPECT_EQ(plan->kv_tokens, uint64_t{plan->pool.num_blocks[0]} * 32);
    EXPECT_GT(plan->total_bytes() + 2 * plan->layout.BlockBytes(0) + 8192, budget);  // no block more would fit
    EXPECT_THAT(plan->Words(), AllOf(HasSubstr("weights"), HasSubstr("KV"), HasSubstr("blocks of 32")));
  }
}

// A head of 64: 64 bytes and a scale of 4 instead of 128.
TEST(MemoryPlan, OfAnInt8CacheCountsItsScalesAndNothingElse) {
  DecoderDescription d;
  d.num_layers = 30, d.num_kv_heads = 3, d.head_dim = 64;
  for (const uint32_t block_tokens : {16u, 128u}) {
    const KvLayout layout = MakeKvLayout(d, block_tokens, DType::kI8);
    EXPECT_EQ(layout.BytesPerToken(), 30u * 3 * 2 * (64 + 4));
    EXPECT_EQ(layout.BlockBytes(0), layout.BytesPerToken() * block_tokens);
    EXPECT_EQ(layout.TileOffset(0, 1, 2, true), (30u + 2) * 2 * layout.TileBytes(0) + layout.TileBytes(0));
  }
  EXPECT_EQ(MakeKvLayout(d, 16).BytesPerToken(), 30u * 3 * 2 * 128);
  EXPECT_THAT(MakeKvLayout(d, 16, DType::kI8).Describe(), HasSubstr("64 INT8 with a scale a head and token"));

  auto file = ModelFile::Open(kTiny + "tiny-f32.gguf");
  ASSERT_TRUE(file.ok());
  const auto plan = PlanMemory(**file, {.budget_bytes = uint64_t{1} << 30,
                                        .available_bytes = uint64_t{1} << 40,
                                        .kv_tokens = 1024,
                                        .kv_dtype = DType::kI8});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->kv_tokens, 1024u);
  EXPECT_EQ(plan->pool.total_bytes, (1024 * plan->layout.BytesPerToken() + 4095) / 4096 * 4096);
}

TEST(MemoryPlan, WhatCannotFitIsRefusedWithTheNumbers) {
  auto file = ModelFile::Open(kTiny + "tiny-q4_1.gguf");
  ASSERT_TRUE(file.ok());
  auto plan = PlanMemory(**file, {.budget_bytes = 60000, .available_bytes = uint64_t{1} << 40});
  EXPECT_EQ(plan.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(plan.status().message(), AllOf(HasSubstr("weights"), HasSubstr("the limit is 58.6 KiB")));
  plan = PlanMemory(**file, {.budget_bytes = uint64_t{1} << 40, .available_bytes = 1 << 20, .kv_tokens = 1 << 20});
  EXPECT_EQ(plan.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(plan.status().message(), HasSubstr("free now"));
  EXPECT_EQ(PlanMemory(**file, {.block_tokens = 48}).status().code(), Code::kInvalidArgument);
}

TEST(MemoryPlan, AskedForTokensAreGivenInWholeBlocks) {
  auto file = ModelFile::Open(kTiny + "tiny-f32.gguf");
  ASSERT_TRUE(file.ok());
  auto plan = PlanMemory(
      **file,
      {.budget_bytes = uint64_t{1} << 30, .available_bytes = uint64_t{1} << 40, .kv_tokens = 1000, .block_tokens = 64});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->pool.num_blocks[0], 16u);
  EXPECT_EQ(plan->kv_tokens, 1024u);
}

}  // namespace
}  // namespace baton
