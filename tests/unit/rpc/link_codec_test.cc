#include "rpc/link_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "baton/internal/v1/handoff.pb.h"
#include "baton/internal/v1/worker.pb.h"
#include "random_values.h"

namespace baton {
namespace {

using testing::Filler;
using ::testing::HasSubstr;
using testing::Same;

template <typename Value, typename Wire>
void ExpectLossless(uint64_t seed, std::set<size_t>* kinds) {
  const Value value = Filler(seed).Message<Value>();
  kinds->insert(value.index());
  Wire wire, parsed;
  Encode(value, &wire);
  ASSERT_TRUE(parsed.ParseFromString(wire.SerializeAsString())) << "seed " << seed;
  StatusOr<Value> decoded = Decode(parsed);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString() << " seed " << seed;
  EXPECT_TRUE(Same(value, *decoded)) << "seed " << seed << "\n" << wire.DebugString();
}

TEST(LinkCodec, EveryMessageComesBackAsItWas) {
  std::set<size_t> worker, front, pair;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    ExpectLossless<WorkerMessage, wire::WorkerMessage>(seed, &worker);
    ExpectLossless<FrontCommand, wire::FrontCommand>(seed, &front);
    ExpectLossless<PairMessage, wire::PairMessage>(seed, &pair);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(worker.size(), std::variant_size_v<WorkerMessage>);
  EXPECT_EQ(front.size(), std::variant_size_v<FrontCommand>);
  EXPECT_EQ(pair.size(), std::variant_size_v<PairMessage>);
}

TEST(LinkCodec, EqualityInTheseTestsSeesEveryField) {
  // Two messages of unlike seeds are almost never equal; a blind comparison would say they are.
  int equal = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    equal += Same(Filler(seed).Message<PairMessage>(), Filler(seed + 1).Message<PairMessage>());
  }
  EXPECT_LT(equal, 5);
}

// Bytes that a broken or hostile peer could send either do not parse, or are refused in words, or decode to
// something that encodes again.
template <typename Value, typename Wire>
void Survive(const std::string& bytes, int* refused, int* accepted) {
  Wire wire;
  if (!wire.ParseFromString(bytes)) return;
  StatusOr<Value> decoded = Decode(wire);
  if (!decoded.ok()) {
    EXPECT_EQ(decoded.status().code(), Code::kInvalidArgument);
    EXPECT_FALSE(decoded.status().message().empty());
    ++*refused;
    return;
  }
  Wire again;
  Encode(*decoded, &again);
  ++*accepted;
}

// FF-148
TEST(LinkCodec, BrokenBytesAreRefusedAndNeverCrash) {
  int refused = 0, accepted = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    std::string bytes;
    if (seed % 3 == 0) {
      bytes.resize(rng.Below(64));
      for (char& c : bytes) c = static_cast<char>(rng.Next());
    } else {
      wire::PairMessage pair;
      wire::WorkerMessage worker;
      Encode(Filler(seed).Message<PairMessage>(), &pair);
      Encode(Filler(seed).Message<WorkerMessage>(), &worker);
      bytes = seed % 3 == 1 ? pair.SerializeAsString() : worker.SerializeAsString();
      for (uint64_t i = 0; i < 1 + seed % 4 && !bytes.empty(); ++i) {
        bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Next());
      }
    }
    Survive<PairMessage, wire::PairMessage>(bytes, &refused, &accepted);
    Survive<WorkerMessage, wire::WorkerMessage>(bytes, &refused, &accepted);
    Survive<FrontCommand, wire::FrontCommand>(bytes, &refused, &accepted);
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 1000);
}

wire::FrontCommand GoodDecode() {
  auto request = std::make_shared<Request>();
  request->id = {1, 2, 0};
  request->prompt = {1, 2, 3};
  request->sampling.logit_bias = {{4, 1.0f}, {5, -1.0f}};
  wire::FrontCommand out;
  Encode(FrontCommand(DecodeCommand{request, {}, 1}), &out);
  return out;
}

void ExpectRefused(const wire::FrontCommand& in, const std::string& field) {
  StatusOr<FrontCommand> decoded = Decode(in);
  ASSERT_FALSE(decoded.ok()) << field;
  EXPECT_THAT(decoded.status().message(), HasSubstr(field));
}

TEST(LinkCodec, NamesAndAddressesThatWouldBreakALogLineAreRefused) {
  for (const char* odd : {"a b", "a\nb", "\x1b[31m", "\xc3\xa9"}) {
    for (const bool name : {true, false}) {
      wire::WorkerMessage in;
      for (uint64_t seed = 0; !in.has_hello(); ++seed) Encode(Filler(seed).Message<WorkerMessage>(), &in);
      wire::PeerAddress* self = in.mutable_hello()->mutable_self();
      if (name) self->mutable_process()->set_name(odd);
      if (!name) self->set_address(odd);
      const StatusOr<WorkerMessage> decoded = Decode(in);
      ASSERT_FALSE(decoded.ok());
      EXPECT_THAT(decoded.status().message(),
                  HasSubstr(name ? "process.name: is not printable" : "address: is not printable"));
    }
  }
}

TEST(LinkCodec, WhatAnEngineReliesOnIsCheckedAndNamed) {
  ASSERT_TRUE(Decode(GoodDecode()).ok());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  wire::FrontCommand in = GoodDecode();
  in.mutable_decode()->mutable_request()->mutable_sampling()->set_temperature(nan);
  ExpectRefused(in, "temperature");
  in = GoodDecode();
  in.mutable_decode()->mutable_request()->mutable_sampling()->set_bias_values(0, nan);
  ExpectRefused(in, "logit_bias");
  in = GoodDecode();
  in.mutable_decode()->mutable_request()->mutable_sampling()->set_bias_ids(0, 5);
  ExpectRefused(in, "logit_bias");
  in = GoodDecode();
  in.mutable_decode()->mutable_request()->clear_prompt();
  ExpectRefused(in, "prompt");
  in = GoodDecode();
  in.mutable_decode()->mutable_request()->set_prompt(0, -1);
  ExpectRefused(in, "prompt");
  in = GoodDecode();
  in.mutable_decode()->mutable_request()->mutable_stop()->set_max_tokens(0);
  ExpectRefused(in, "max_tokens");
  in = GoodDecode();
  in.mutable_decode()->mutable_progress()->set_delivered(1);
  ExpectRefused(in, "delivered");
  in = GoodDecode();
  in.mutable_decode()->clear_request();
  ExpectRefused(in, "request");
  in = GoodDecode();
  in.mutable_decode()->set_epoch(0);
  ExpectRefused(in, "epoch");
  ExpectRefused(wire::FrontCommand(), "kind");
}

TEST(LinkCodec, ALongFailureTextIsCutAndTheLinkLives) {
  WorkerBatch batch;
  batch.events.push_back(ChildFailed{{1, 2, 0}, 1, InternalError(std::string(100000, 'x'))});
  wire::WorkerMessage wire;
  Encode(WorkerMessage(batch), &wire);
  StatusOr<WorkerMessage> decoded = Decode(wire);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(std::get<ChildFailed>(std::get<WorkerBatch>(*decoded).events[0]).why.message().size(), kMaxWireText);
}

TEST(LinkCodec, ANameThatIsNotPlainAsciiIsRefused) {
  WorkerHello hello;
  hello.layout.groups = {{KvKind::kFull, 30, 3, 64, DType::kBF16}};
  hello.num_blocks = {100};
  for (const auto& [name, good] : std::vector<std::pair<std::string, bool>>{
           {"decode-0", true}, {"", false}, {"a b", false}, {"a\nb", false}, {"\x1b[2J", false}, {"\u00e9", false}}) {
    hello.self.process.name = name;
    wire::WorkerMessage wire;
    Encode(WorkerMessage(hello), &wire);
    EXPECT_EQ(Decode(wire).ok(), good) << name;
  }
}

TEST(LinkCodec, ALayoutThatOverflowsItsArithmeticIsRefused) {
  WorkerHello hello;
  hello.self.process.name = "p";
  hello.layout.groups = {{KvKind::kFull, 30, 3, 64, DType::kBF16}};
  hello.num_blocks = {100};
  wire::WorkerMessage wire;
  Encode(WorkerMessage(hello), &wire);
  ASSERT_TRUE(Decode(wire).ok());
  wire.mutable_hello()->mutable_layout()->mutable_groups(0)->set_num_layers(0xffffffffu);
  EXPECT_FALSE(Decode(wire).ok());
  wire.mutable_hello()->mutable_layout()->mutable_groups(0)->set_num_layers(30);
  wire.mutable_hello()->mutable_layout()->mutable_groups(0)->set_dtype(4);  // a type of weights
  EXPECT_FALSE(Decode(wire).ok());
  wire.mutable_hello()->mutable_layout()->mutable_groups(0)->set_dtype(7);
  EXPECT_FALSE(Decode(wire).ok());
  wire.mutable_hello()->mutable_layout()->mutable_groups(0)->set_dtype(6);  // int8 with its scales
  EXPECT_TRUE(Decode(wire).ok());
  wire.mutable_hello()->mutable_layout()->mutable_groups(0)->set_dtype(2);
  wire.mutable_hello()->add_num_blocks(7);  // more numbers than groups
  EXPECT_FALSE(Decode(wire).ok());
}

}  // namespace
}  // namespace baton
