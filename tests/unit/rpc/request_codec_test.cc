#include "rpc/request_codec.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/rng.h"
#include "baton/v1/cluster.pb.h"
#include "baton/v1/inference.pb.h"
#include "rpc/inference_client.h"

namespace baton {
namespace {

std::string Word(Rng* rng) {
  std::string word(rng->Below(8), ' ');
  for (char& c : word) c = static_cast<char>('a' + rng->Below(26));
  return word;
}

ClientRequest RandomRequest(uint64_t seed) {
  Rng rng(seed);
  const auto maybe = [&](auto* field, auto value) {
    if (rng.Chance(0.5)) *field = value;
  };
  ClientRequest r;
  r.request_id = Word(&rng);
  r.model = Word(&rng);
  switch (rng.Below(4)) {
    case 0:
      r.prompt = TextPrompt{Word(&rng)};
      break;
    case 1:
      r.prompt = TokenPrompt{{1, 2, static_cast<int64_t>(rng.Below(1000))}};
      break;
    case 2:
      r.prompt = ChatPrompt{{{"user", Word(&rng), ""}, {"assistant", "", ""}}, rng.Chance(0.5)};
      break;
    default:
      break;
  }
  maybe(&r.temperature, 0.0);
  maybe(&r.top_p, 0.5);
  maybe(&r.top_k, int64_t{0});
  maybe(&r.seed, rng.Next());
  maybe(&r.n, int64_t{0});
  maybe(&r.max_tokens, int64_t{0});
  maybe(&r.min_tokens, int64_t{0});
  maybe(&r.logprobs, int64_t{0});
  for (uint64_t i = rng.Below(4); i > 0; --i) r.logit_bias.emplace_back(static_cast<int64_t>(10 - i), 0.25);
  for (uint64_t i = rng.Below(3); i > 0; --i) r.stop.push_back(Word(&rng));
  for (uint64_t i = rng.Below(3); i > 0; --i) r.stop_token_ids.push_back(static_cast<int64_t>(rng.Below(100)));
  r.ignore_eos = rng.Chance(0.5);
  r.include_stop_text = rng.Chance(0.5);
  r.want_text = rng.Chance(0.5);
  r.want_token_ids = rng.Chance(0.5);
  r.skip_special_tokens = rng.Chance(0.5);
  r.timings = rng.Chance(0.5);
  r.priority = static_cast<int64_t>(rng.Below(7)) - 3;
  r.cache_salt = Word(&rng);
  r.placement = static_cast<PlacementHint>(rng.Below(3));
  r.prefill_worker = Word(&rng);
  r.decode_worker = Word(&rng);
  return r;
}

TEST(RequestCodec, ARequestComesBackAsItWasAndAbsentIsNotZero) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const ClientRequest a = RandomRequest(seed);
    v1::GenerateRequest wire, parsed;
    ToWire(a, &wire);
    ASSERT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
    const StatusOr<ClientRequest> back = FromWire(parsed);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    const ClientRequest& b = *back;
    EXPECT_EQ(a.prompt.index(), b.prompt.index());
    if (const auto* text = std::get_if<TextPrompt>(&a.prompt))
      EXPECT_EQ(text->text, std::get<TextPrompt>(b.prompt).text);
    if (const auto* ids = std::get_if<TokenPrompt>(&a.prompt)) EXPECT_EQ(ids->ids, std::get<TokenPrompt>(b.prompt).ids);
    if (const auto* chat = std::get_if<ChatPrompt>(&a.prompt)) {
      const auto& other = std::get<ChatPrompt>(b.prompt);
      ASSERT_EQ(chat->messages.size(), other.messages.size());
      EXPECT_EQ(chat->messages[0].content, other.messages[0].content);
      EXPECT_EQ(chat->messages[1].role, other.messages[1].role);
      EXPECT_EQ(chat->add_generation_prompt, other.add_generation_prompt);
    }
    const auto fields = [](const ClientRequest& r) {
      return std::tie(r.request_id, r.model, r.temperature, r.top_p, r.top_k, r.seed, r.n, r.logit_bias, r.max_tokens,
                      r.min_tokens, r.stop, r.stop_token_ids, r.ignore_eos, r.include_stop_text, r.want_text,
                      r.want_token_ids, r.skip_special_tokens, r.timings, r.logprobs, r.priority, r.cache_salt,
                      r.placement, r.prefill_worker, r.decode_worker, r.unsupported);
    };
    EXPECT_TRUE(fields(a) == fields(b)) << "seed " << seed << "\n" << wire.DebugString();
  }
}

// FF-132
TEST(RequestCodec, AnEmptyMessageMeansTheDefaults) {
  const StatusOr<ClientRequest> request = FromWire(v1::GenerateRequest());
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->temperature || request->top_p || request->seed || request->max_tokens || request->logprobs);
  EXPECT_TRUE(request->want_text && request->skip_special_tokens);
  EXPECT_TRUE(request->unsupported.empty());
  EXPECT_FALSE(request->deadline);
}

TEST(RequestCodec, AnEndToEndGoalThatIsNoPositiveNumberIsRefused) {
  for (double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    v1::GenerateRequest wire;
    wire.mutable_slo()->set_e2e_ms(bad);
    EXPECT_EQ(FromWire(wire).status().code(), Code::kInvalidArgument) << bad;
  }
  v1::GenerateRequest wire;
  wire.mutable_slo()->set_e2e_ms(1500);
  EXPECT_EQ(*FromWire(wire)->deadline, Duration(std::chrono::milliseconds(1500)));
}

Delta RandomDelta(Rng* rng, uint32_t choice) {
  Delta delta{choice, Word(rng), {}, {}};
  for (uint64_t i = rng->Below(3); i > 0; --i) {
    delta.token_ids.push_back(static_cast<TokenId>(rng->Below(100)));
    delta.logprobs.push_back({delta.token_ids.back(), -1.5f, {{3, -0.5f}, {4, -2.0f}}});
  }
  return delta;
}

// FF-043
TEST(RequestCodec, MergedDeltasSayWhatTheSingleOnesSaid) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const Delta first = RandomDelta(&rng, 1), second = RandomDelta(&rng, 1), other = RandomDelta(&rng, 2);
    v1::GenerateEvent a, b, c, done;
    ToWire(first, false, &a);
    ToWire(second, false, &b);
    ToWire(other, false, &c);
    ToWire(Done{}, false, &done);
    EXPECT_FALSE(MergeDelta(c, &a));
    EXPECT_FALSE(MergeDelta(a, &done));
    ASSERT_TRUE(MergeDelta(b, &a));
    ClientEvent event;
    ASSERT_TRUE(FromWire(a, &event));
    const auto& merged = std::get<Delta>(event);
    EXPECT_EQ(merged.text, first.text + second.text);
    std::vector<TokenId> ids = first.token_ids;
    ids.insert(ids.end(), second.token_ids.begin(), second.token_ids.end());
    EXPECT_EQ(merged.token_ids, ids);
    EXPECT_EQ(merged.logprobs.size(), ids.size());
  }
}

TEST(RequestCodec, TheAnswerInOnePieceHoldsEveryEventOfTheStream) {
  Rng rng(1);
  v1::GenerateResult result;
  Timings timings;
  timings.first_token = std::chrono::milliseconds(3);
  timings.prefill.transfer_bytes = 77;
  timings.decode.preemptions = 2;
  timings.placement_why = "predicted";
  const std::vector<ClientEvent> events = {Started{"id", "m", 7, 3, "p", "d"},
                                           Delta{1, "ab", {5}, {}},
                                           Delta{0, "x", {}, {}},
                                           Delta{1, "c", {6}, {}},
                                           Finished{1, FinishReason::kStop, "c", -1},
                                           Finished{0, FinishReason::kStop, "", 9},
                                           Done{{7, 3, 2}, timings}};
  for (const ClientEvent& event : events) AddToResult(event, true, &result);
  const std::vector<ClientEvent> back = FromWire(result);
  ASSERT_EQ(back.size(), 6u);
  EXPECT_EQ(std::get<Started>(back[0]).decode_worker, "d");
  EXPECT_EQ(std::get<Delta>(back[1]).text, "x");
  EXPECT_EQ(std::get<Finished>(back[2]).matched_token, 9);
  EXPECT_EQ(std::get<Delta>(back[3]).text, "abc");
  EXPECT_EQ(std::get<Delta>(back[3]).token_ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(std::get<Finished>(back[4]).matched_stop, "c");
  EXPECT_EQ(std::get<Finished>(back[4]).matched_token, -1);
  const auto& done = std::get<Done>(back[5]);
  EXPECT_EQ(done.usage.completion_tokens, 3u);
  EXPECT_EQ(done.timings.first_token, timings.first_token);
  EXPECT_EQ(done.timings.prefill, timings.prefill);
  EXPECT_EQ(done.timings.decode, timings.decode);
  EXPECT_EQ(done.timings.placement_why, "predicted");
}

TEST(RequestCodec, AnErrorDetailSurvivesAndRubbishIsIgnored) {
  const Failed failed{ResourceExhaustedError("full"), "QUEUE_FULL", "id-1", std::chrono::milliseconds(250)};
  Failed back{failed.status, "", "", {}};
  DecodeErrorDetail(EncodeErrorDetail(failed), &back);
  EXPECT_EQ(back.reason, "QUEUE_FULL");
  EXPECT_EQ(back.request_id, "id-1");
  EXPECT_EQ(back.retry_after, failed.retry_after);
  const google::protobuf::LogSilencer silence;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    std::string bytes = EncodeErrorDetail(failed);
    for (int i = 0; i < 3; ++i) bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Next());
    DecodeErrorDetail(bytes, &back);
    EXPECT_GE(back.retry_after.count(), 0);
  }
}

TEST(RequestCodec, ALongMessageIsCutBetweenCharacters) {
  EXPECT_EQ(CutMessage("short", 5), "short");
  EXPECT_EQ(CutMessage("too long", 6), "too...");
  EXPECT_EQ(CutMessage("aa\u00e9\u00e9\u00e9", 6), "aa...");  // byte 3 is inside the first character
}

TEST(RequestCodec, AClusterIsDescribedByNameOrder) {
  ClusterSnapshot snapshot;
  snapshot.front = {"router", {3, 4}};
  for (const char* name : {"z", "a"}) {
    WorkerSnapshot worker;
    worker.process.name = name;
    worker.roles = {true, false};
    worker.layout = {32, TileForm::kPairs, {{KvKind::kFull, 2, 1, 8, DType::kBF16}}};
    worker.num_blocks = {10};
    worker.heartbeat.free_blocks = {7};
    worker.heartbeat.quarantines = {{{"p", {5, 6}}, 1234, 3, std::chrono::seconds(11), true}};
    snapshot.workers.push_back(worker);
  }
  snapshot.counters.tokens = 12;
  v1::ClusterSnapshot wire;
  ToWire(snapshot, true, &wire);
  const ClusterDescription back = FromWire(wire);
  EXPECT_EQ(back.router, "router#3");
  ASSERT_EQ(back.workers.size(), 2u);
  EXPECT_EQ(back.workers[0].name, "a");
  EXPECT_TRUE(back.workers[0].roles.prefill && !back.workers[0].roles.decode);
  EXPECT_EQ(back.workers[1].free_blocks, std::vector<uint32_t>{7});
  ASSERT_EQ(back.workers[1].quarantines.size(), 1u);
  const Quarantine& q = back.workers[1].quarantines[0];
  EXPECT_EQ(q.writer.name, "p");
  EXPECT_EQ(q.writer.incarnation.counter, 5u);
  EXPECT_EQ(q.pid, 1234u);
  EXPECT_EQ(q.blocks, 3u);
  EXPECT_EQ(q.age, std::chrono::seconds(11));
  EXPECT_TRUE(q.stuck);
  EXPECT_TRUE(std::ranges::find(back.counters, std::pair<std::string, uint64_t>{"tokens_delivered", 12}) !=
              back.counters.end());
}

// FF-150: tickets, blocks, addresses, epochs: the API has no field for any of them. What a client sends under other
// numbers, whatever it is, changes nothing.
TEST(RequestCodec, FF150_FieldsThatTheApiDoesNotHaveChangeNothing) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    v1::GenerateRequest wire;
    ToWire(RandomRequest(seed), &wire);
    const std::string known = wire.SerializeAsString();
    std::string more = known;
    Rng rng(seed + 1);
    const auto varint = [&](uint64_t v) {
      for (; v >= 0x80; v >>= 7) more.push_back(static_cast<char>(v | 0x80));
      more.push_back(static_cast<char>(v));
    };
    const auto* descriptor = v1::GenerateRequest::descriptor();
    for (int i = 0; i < 20; ++i) {
      const uint64_t number = 1 + rng.Below(2000);
      if (descriptor->FindFieldByNumber(static_cast<int>(number)) != nullptr) continue;
      const bool text = rng.Chance(0.5);
      varint(number << 3 | (text ? 2 : 0));
      varint(text ? 5 : rng.Next());
      if (text) more += "10.0.";
    }
    v1::GenerateRequest parsed;
    ASSERT_TRUE(parsed.ParseFromString(more));
    StatusOr<ClientRequest> plain = FromWire(wire), odd = FromWire(parsed);
    ASSERT_TRUE(plain.ok() && odd.ok());
    for (auto* bias : {&plain->logit_bias, &odd->logit_bias}) std::sort(bias->begin(), bias->end());
    EXPECT_EQ(std::exchange(plain->logit_bias, {}), std::exchange(odd->logit_bias, {})) << "a map has no order";
    v1::GenerateRequest a, b;
    ToWire(*plain, &a);
    ToWire(*odd, &b);
    EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString());
  }
  const auto* request = v1::GenerateRequest::descriptor();
  for (int i = 0; i < request->field_count(); ++i) {
    for (const char* internal : {"ticket", "block", "epoch", "address", "incarnation", "session"}) {
      EXPECT_EQ(request->field(i)->name().find(internal), std::string::npos) << request->field(i)->name();
    }
  }
}

}  // namespace
}  // namespace baton
