// The life of one request in sentences; what holds over all lives is in front_property_test.cc.
#include "front/front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "unit/front/front_bench.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// A prompt that is worth a hand-off.
const std::string kLong(100, 'p');

struct Pair : FrontBench {
  explicit Pair(FrontOptions o = SmallOptions()) : FrontBench(std::move(o)) {
    p = Up("p", true, false);
    d = Up("d", false, true);
  }
  // Submits and returns the child; it is on (p, d) in epoch 1.
  ChildId Start(int64_t max_tokens = 8) {
    client = Submit(kLong, max_tokens);
    EXPECT_EQ(Sent<PrefillCommand>().size(), 1u);
    return front.ChildOf(client);
  }
  LinkId p{}, d{};
  ClientHandle client{};
};

// ---- the straight way ---------------------------------------------------------------------------

TEST(Front, AWorkerThatArrivesIsGreetedWithTheFrontsName) {
  FrontBench b;
  const LinkId link = b.Up("w", true, true);
  const auto hello = b.Sent<FrontHello>();
  ASSERT_EQ(hello.size(), 1u);
  EXPECT_EQ(hello[0].first, link);
  EXPECT_EQ(hello[0].second.front, SmallOptions().self);
  EXPECT_EQ(hello[0].second.fingerprint, FrontFingerprint(SmallOptions().self));
}

TEST(Front, ARequestGoesToPrefillWithEpochOneAndTheDecodeWorkersAddress) {
  Pair b;
  ClientRequest r;
  r.prompt = TextPrompt{kLong};
  r.max_tokens = 5;
  r.seed = 42;
  r.deadline = seconds(7);
  b.Submit(r);
  const auto sent = b.Sent<PrefillCommand>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, b.p);
  const PrefillCommand& c = sent[0].second;
  EXPECT_EQ(c.epoch, 1u);
  EXPECT_EQ(c.decode, HelloOf("d", false, true).self);
  EXPECT_EQ(c.request->prompt.size(), kLong.size());
  EXPECT_EQ(c.request->sampling.seed, 42u);
  EXPECT_EQ(c.request->stop.max_tokens, 5u);
  EXPECT_EQ(c.request->stop.eos_token_ids, std::vector<TokenId>{ByteTokenizer::kEnd});
  EXPECT_EQ(c.progress.delivered, 0u);
  EXPECT_EQ(c.progress.deadline_remaining, seconds(7));
}

// FF-043
TEST(Front, TheFirstTokenComesFromPrefillAndTheRestFromDecodeEachOnce) {
  Pair b;
  const ChildId child = b.Start(3);
  b.Token(b.p, child, 1, 0, 'a');
  EXPECT_EQ(b.TextOf(b.client), "a");
  b.Say(b.p, ReceiptEvent{child, 1, {.transfer_bytes = 4096, .cached_tokens = 32}});
  b.Say(b.p, HandedOff{child, 1});
  b.Token(b.d, child, 1, 0, 'a');  // D emits from the delivered count of its Progress on
  b.Token(b.d, child, 1, 1, 'b');
  b.Token(b.d, child, 1, 2, 'c', FinishReason::kLength);
  EXPECT_EQ(b.TextOf(b.client), "abc");
  const auto finished = b.Told<Finished>(b.client);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].reason, FinishReason::kLength);
  const auto done = b.Told<Done>(b.client);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].usage.prompt_tokens, kLong.size());
  EXPECT_EQ(done[0].usage.completion_tokens, 3u);
  EXPECT_EQ(done[0].usage.cached_tokens, 32u);
  EXPECT_TRUE(done[0].timings.disaggregated);
  EXPECT_EQ(done[0].timings.prefill.transfer_bytes, 4096u);
  EXPECT_EQ(done[0].timings.prefill_worker, "p");
  EXPECT_EQ(done[0].timings.decode_worker, "d");
  EXPECT_EQ(b.front.live(), 0u);
  EXPECT_EQ(b.front.counters().duplicates, 1u);
  EXPECT_TRUE(b.out.to_workers.empty()) << "the worker ended it by itself";
}

TEST(Front, DoneWaitsAMomentForTheReceiptOfPrefill) {
  Pair b;
  const ChildId child = b.Start(1);
  b.Token(b.d, child, 1, 0, 'a', FinishReason::kLength);
  EXPECT_EQ(b.Told<Finished>(b.client).size(), 1u);
  EXPECT_TRUE(b.Told<Done>(b.client).empty());
  b.Say(b.p, ReceiptEvent{child, 1, {.transfer_blocks = 4}});
  ASSERT_EQ(b.Told<Done>(b.client).size(), 1u);
  EXPECT_EQ(b.Told<Done>(b.client)[0].timings.prefill.transfer_blocks, 4u);

  const ChildId second = b.Start(1);
  b.Token(b.d, second, 1, 0, 'a', FinishReason::kLength);
  b.Pass(milliseconds(25));  // it never comes
  EXPECT_EQ(b.Told<Done>(b.client).size(), 1u);
}

TEST(Front, AnAnswerThatEndsWithItsFirstTokenEndsOnPrefill) {
  Pair b;
  const ChildId child = b.Start(8);
  b.Say(b.p, ReceiptEvent{child, 1, {}});
  b.Token(b.p, child, 1, 0, ByteTokenizer::kEnd, FinishReason::kStop);
  const auto finished = b.Told<Finished>(b.client);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].reason, FinishReason::kStop);
  EXPECT_EQ(finished[0].matched_token, ByteTokenizer::kEnd);
  EXPECT_EQ(b.Told<Done>(b.client).size(), 1u);
  EXPECT_EQ(b.TextOf(b.client), "");
}

// FF-056
TEST(Front, AStopStringEndsTheRequestOnEveryWorkerThatHoldsIt) {
  Pair b;
  ClientRequest r;
  r.prompt = TextPrompt{kLong};
  r.max_tokens = 20;
  r.stop = {"xyz"};
  const ClientHandle client = b.Submit(r);
  const ChildId child = b.front.ChildOf(client);
  const std::string answer = "axyxyz";
  for (uint32_t i = 0; i < answer.size(); ++i) b.Token(b.d, child, 1, i, answer[i]);
  EXPECT_EQ(b.TextOf(client), "axy");
  ASSERT_EQ(b.Told<Finished>(client).size(), 1u);
  EXPECT_EQ(b.Told<Finished>(client)[0].matched_stop, "xyz");
  EXPECT_EQ(b.Told<Finished>(client)[0].reason, FinishReason::kStop);
  const auto cancels = b.Sent<CancelCommand>();
  ASSERT_EQ(cancels.size(), 2u);
  EXPECT_EQ(cancels[0].first, b.p);
  EXPECT_EQ(cancels[1].first, b.d);
  EXPECT_EQ(cancels[1].second.child, child);
  EXPECT_EQ(cancels[1].second.epoch, 1u);
  b.Pass(seconds(1));
  ASSERT_EQ(b.Told<Done>(client).size(), 1u);
  EXPECT_EQ(b.Told<Done>(client)[0].usage.completion_tokens, 6u);
}

// FF-057
TEST(Front, HeldBackTextIsShownAtTheEndAndTokenIdsAreNeverHeldBack) {
  Pair b;
  ClientRequest r;
  r.prompt = TextPrompt{kLong};
  r.max_tokens = 2;
  r.stop = {"bcd"};
  r.want_token_ids = true;
  const ClientHandle client = b.Submit(r);
  const ChildId child = b.front.ChildOf(client);
  b.Token(b.d, child, 1, 0, 'b');
  ASSERT_EQ(b.Told<Delta>(client).size(), 1u);
  EXPECT_EQ(b.Told<Delta>(client)[0].text, "");
  EXPECT_EQ(b.Told<Delta>(client)[0].token_ids, std::vector<TokenId>{'b'});
  b.Token(b.d, child, 1, 1, 0xC3, FinishReason::kLength);  // half a character
  EXPECT_EQ(b.TextOf(client), "b\xEF\xBF\xBD");
}

TEST(Front, AnAnswerStartsWithStartedWhenTimingsAreAskedFor) {
  Pair b;
  ClientRequest r;
  r.request_id = "mine";
  r.prompt = TextPrompt{kLong};
  r.timings = true;
  const ClientHandle client = b.Submit(r);
  const auto started = b.Told<Started>(client);
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].request_id, "mine");
  EXPECT_EQ(started[0].model, "tiny");
  EXPECT_EQ(started[0].prefill_worker, "p");
  EXPECT_EQ(started[0].decode_worker, "d");
  b.Down(b.d);
  b.Up(HelloOf("d", false, true, 2));
  EXPECT_EQ(b.Told<Started>(client).size(), 1u) << "once, whatever happens later";
}

// FF-065
TEST(Front, AChatIsRenderedByTheModelsTemplateAndABrokenOneIsTheClientsFault) {
  const auto chat = ChatTemplate::Parse(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if "
      "add_generation_prompt %}[assistant]{% endif %}");
  ASSERT_TRUE(chat.ok()) << chat.status().ToString();
  FrontBench b(SmallOptions(), &*chat);
  b.Up("w", true, true);
  ClientRequest r;
  r.prompt = ChatPrompt{{{"user", "hi", ""}}};
  b.Submit(r);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  const std::vector<TokenId> ids = b.Sent<DecodeCommand>()[0].second.request->prompt;
  EXPECT_EQ(std::string(ids.begin(), ids.end()), "[user]hi[assistant]");
  r.prompt = ChatPrompt{{{"user", "hi", "{broken"}}};
  const ClientHandle client = b.Submit(r);
  ASSERT_EQ(b.Told<Failed>(client).size(), 1u);
  EXPECT_EQ(b.Told<Failed>(client)[0].status.code(), Code::kInvalidArgument);
}

TEST(Front, DefaultMaxTokensReachesAsFarAsContextAndPoolsDo) {
  FrontBench b;
  WorkerHello small = HelloOf("w", true, true);
  small.num_blocks = {5};  // 160 tokens of KV, and the last token needs none
  b.Up(small);
  ClientRequest r;
  r.prompt = TextPrompt{kLong};
  b.Submit(r);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.request->stop.max_tokens, 61u);
}

// ---- refusals -----------------------------------------------------------------------------------

Failed OnlyFailure(const FrontBench& b, ClientHandle client) {
  const auto failed = b.Told<Failed>(client);
  EXPECT_EQ(failed.size(), 1u);
  return failed.empty() ? Failed{} : failed[0];
}

// FF-047, FF-069, FF-076, FF-086, FF-089, FF-104, FF-141, FF-152, FF-155
TEST(Front, EveryWrongFieldIsRefusedWithItsNameItsValueAndTheLimit) {
  struct Case {
    const char* names;
    const char* value;
    Code code;
    std::function<void(ClientRequest*)> spoil;
  };
  const std::vector<Case> cases = {
      {"sampling.temperature", "-0.5", Code::kInvalidArgument, [](auto* r) { r->temperature = -0.5; }},
      {"sampling.temperature", "nan", Code::kInvalidArgument, [](auto* r) { r->temperature = NAN; }},
      {"sampling.temperature", "inf", Code::kInvalidArgument, [](auto* r) { r->temperature = INFINITY; }},
      {"sampling.top_p", "0", Code::kInvalidArgument, [](auto* r) { r->top_p = 0; }},
      {"sampling.top_p", "1.5", Code::kInvalidArgument, [](auto* r) { r->top_p = 1.5; }},
      {"sampling.top_k", "-1", Code::kInvalidArgument, [](auto* r) { r->top_k = -1; }},
      {"sampling.n", "0", Code::kInvalidArgument, [](auto* r) { r->n = 0; }},
      {"sampling.n", "above 1", Code::kUnimplemented, [](auto* r) { r->n = 2; }},
      {"sampling.logit_bias", "258", Code::kInvalidArgument,
       [](auto* r) {
         r->logit_bias = {{258, 1.0}};
       }},
      {"sampling.logit_bias", "-1", Code::kInvalidArgument,
       [](auto* r) {
         r->logit_bias = {{-1, 1.0}};
       }},
      {"sampling.logit_bias", "nan", Code::kInvalidArgument,
       [](auto* r) {
         r->logit_bias = {{1, NAN}};
       }},
      {"sampling.logit_bias", "twice", Code::kInvalidArgument,
       [](auto* r) {
         r->logit_bias = {{1, 1.0}, {1, 2.0}};
       }},
      {"output.logprobs", "21", Code::kInvalidArgument, [](auto* r) { r->logprobs = 21; }},
      {"stopping.max_tokens", "0", Code::kInvalidArgument, [](auto* r) { r->max_tokens = 0; }},
      {"stopping.max_tokens", "1000000", Code::kInvalidArgument, [](auto* r) { r->max_tokens = 1000000; }},
      {"stopping.min_tokens", "-3", Code::kInvalidArgument, [](auto* r) { r->min_tokens = -3; }},
      {"stopping.min_tokens", "9", Code::kInvalidArgument, [](auto* r) { r->min_tokens = 9; }},
      {"stopping.stop", "", Code::kInvalidArgument, [](auto* r) { r->stop = {""}; }},
      {"stopping.stop", "17", Code::kInvalidArgument, [](auto* r) { r->stop.assign(17, "x"); }},
      {"stopping.stop_token_ids", "999", Code::kInvalidArgument, [](auto* r) { r->stop_token_ids = {999}; }},
      {"token_ids[1]", "258", Code::kInvalidArgument,
       [](auto* r) {
         r->prompt = TokenPrompt{{1, 258}};
       }},
      {"token_ids[0]", "-1", Code::kInvalidArgument, [](auto* r) { r->prompt = TokenPrompt{{-1}}; }},
      {"token_ids", "empty", Code::kInvalidArgument, [](auto* r) { r->prompt = TokenPrompt{}; }},
      {"prompt", "empty", Code::kInvalidArgument, [](auto* r) { r->prompt = TextPrompt{}; }},
      {"prompt", "one of", Code::kInvalidArgument, [](auto* r) { r->prompt = std::monostate{}; }},
      {"prompt", "1024", Code::kInvalidArgument, [](auto* r) { r->prompt = TextPrompt{std::string(1024, 'x')}; }},
      {"text", "", Code::kInvalidArgument, [](auto* r) { r->prompt = TextPrompt{"\xff"}; }},
      {"chat", "no chat template", Code::kFailedPrecondition,
       [](auto* r) {
         r->prompt = ChatPrompt{{{"user", "x", ""}}};
       }},
      {"model", "\"tiny\"", Code::kNotFound, [](auto* r) { r->model = "huge"; }},
      {"request_id", "129", Code::kInvalidArgument, [](auto* r) { r->request_id.assign(129, 'i'); }},
      {"cache.salt", "257", Code::kInvalidArgument, [](auto* r) { r->cache_salt.assign(257, 's'); }},
      {"priority", "1001", Code::kInvalidArgument, [](auto* r) { r->priority = 1001; }},
      {"deadline", "", Code::kDeadlineExceeded, [](auto* r) { r->deadline = Duration(-1); }},
      {"sampling.min_p, media", "", Code::kUnimplemented,
       [](auto* r) {
         r->unsupported = {"sampling.min_p", "media"};
       }},
  };
  for (const Case& c : cases) {
    FrontBench b;
    b.Up("w", true, true);
    ClientRequest r;
    r.prompt = TextPrompt{"hello"};
    r.max_tokens = 8;
    c.spoil(&r);
    const Failed failed = OnlyFailure(b, b.Submit(r));
    EXPECT_EQ(failed.status.code(), c.code) << failed.status.ToString();
    EXPECT_THAT(failed.status.message(), HasSubstr(c.names));
    EXPECT_THAT(failed.status.message(), HasSubstr(c.value));
    EXPECT_FALSE(failed.reason.empty());
    EXPECT_TRUE(b.out.to_workers.empty());
    EXPECT_EQ(b.front.live(), 0u);
  }
}

// FF-052
TEST(Front, ARequestThatNoPoolCouldEverHoldIsRefusedAtOnceAsNeverFits) {
  FrontBench b;
  WorkerHello small = HelloOf("w", true, true);
  small.num_blocks = {2};
  b.Up(small);
  const Failed failed = OnlyFailure(b, b.Submit(kLong, 10));
  EXPECT_EQ(failed.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(failed.reason, "NEVER_FITS");
  EXPECT_THAT(failed.status.message(), HasSubstr("65"));
}

TEST(Front, WithoutAWorkerARequestIsUnavailableWithAHint) {
  FrontBench b;
  const Failed failed = OnlyFailure(b, b.Submit("hello"));
  EXPECT_EQ(failed.status.code(), Code::kUnavailable);
  EXPECT_EQ(failed.reason, "NO_WORKER");
  EXPECT_GT(failed.retry_after, Duration::zero());
}

TEST(Front, TheSameRequestIdTwiceWhileLiveIsRefusedAndFreeAgainAfterwards) {
  FrontBench b;
  b.Up("w", true, true);
  ClientRequest r;
  r.request_id = "same";
  r.prompt = TextPrompt{"hello"};
  const ClientHandle first = b.Submit(r);
  EXPECT_TRUE(b.front.Knows("same"));
  const Failed failed = OnlyFailure(b, b.Submit(r));
  EXPECT_EQ(failed.status.code(), Code::kAlreadyExists);
  EXPECT_TRUE(b.Told<Failed>(first).empty());
  b.Do(ClientCancel{{}, "same"});
  EXPECT_EQ(b.Told<Failed>(first).size(), 1u);
  EXPECT_FALSE(b.front.Knows("same"));
  EXPECT_TRUE(b.Told<Failed>(b.Submit(r)).empty());
}

// FF-095, FF-098
TEST(Front, BeyondTheCreditsRequestsWaitAndBeyondTheQueueTheyAreRefused) {
  FrontOptions o = SmallOptions();
  o.limits.max_queued = 2;
  FrontBench b(o);
  WorkerHello h = HelloOf("w", true, true);
  h.submit_credits = 1;
  const LinkId w = b.Up(h);
  const ClientHandle first = b.Submit("one", 1);
  const ChildId child = b.front.ChildOf(first);
  b.Submit("two", 1);
  EXPECT_TRUE(b.Sent<DecodeCommand>().empty());
  b.Submit("three", 1);
  EXPECT_EQ(b.front.queued(), 2u);
  const Failed failed = OnlyFailure(b, b.Submit("four", 1));
  EXPECT_EQ(failed.status.code(), Code::kResourceExhausted);
  EXPECT_EQ(failed.reason, "QUEUE_FULL");
  EXPECT_GT(failed.retry_after, Duration::zero());
  b.Token(w, child, 1, 0, 'x', FinishReason::kLength);  // its credit returns
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.request->prompt.size(), 3u) << "the older one first";
  EXPECT_EQ(b.front.queued(), 1u);
}

// FF-104
TEST(Front, AHigherPriorityLeavesTheQueueFirst) {
  FrontBench b;
  WorkerHello h = HelloOf("w", true, true);
  h.submit_credits = 1;
  const LinkId w = b.Up(h);
  const ChildId child = b.front.ChildOf(b.Submit("one", 1));
  b.Submit("low", 1);
  ClientRequest r;
  r.prompt = TextPrompt{"important"};
  r.max_tokens = 1;
  r.priority = 5;
  b.Submit(r);
  b.Token(w, child, 1, 0, 'x', FinishReason::kLength);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.request->prompt.size(), 9u);
}

TEST(Front, ADrainingFrontAdmitsNothingAndFinishesWhatLives) {
  FrontBench b;
  const LinkId w = b.Up("w", true, true);
  const ClientHandle old = b.Submit("old", 1);
  b.Do(FrontDrain{});
  EXPECT_EQ(OnlyFailure(b, b.Submit("new")).reason, "DRAINING");
  b.Token(w, b.front.ChildOf(old), 1, 0, 'x', FinishReason::kLength);
  EXPECT_EQ(b.Told<Done>(old).size(), 1u);
}

// ---- cancel, deadline ---------------------------------------------------------------------------

// FF-005
TEST(Front, ACancelReachesBothWorkersAndTheClientHearsItOnce) {
  Pair b;
  const ChildId child = b.Start();
  b.Token(b.p, child, 1, 0, 'a');
  b.Do(ClientCancel{b.client, ""});
  EXPECT_EQ(b.Sent<CancelCommand>().size(), 2u);
  EXPECT_EQ(OnlyFailure(b, b.client).status.code(), Code::kCancelled);
  b.Do(ClientCancel{b.client, ""});
  EXPECT_EQ(b.Told<Failed>(b.client).size(), 1u);
  EXPECT_EQ(b.front.live(), 0u);
}

TEST(Front, AClientThatIsGoneIsToldNothingAndItsWorkersAreFreed) {
  Pair b;
  const ChildId child = b.Start();
  b.Do(ClientGone{b.client});
  EXPECT_EQ(b.Sent<CancelCommand>().size(), 2u);
  EXPECT_TRUE(b.Told<Failed>(b.client).empty());
  b.Token(b.p, child, 1, 0, 'a');
  EXPECT_TRUE(b.Told<Delta>(b.client).empty());
}

TEST(Front, ADeadlineEndsTheRequestEverywhere) {
  Pair b;
  ClientRequest r;
  r.prompt = TextPrompt{kLong};
  r.deadline = milliseconds(300);
  b.client = b.Submit(r);
  b.Pass(milliseconds(301));
  EXPECT_EQ(OnlyFailure(b, b.client).status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(b.Sent<CancelCommand>().size(), 2u);
}

TEST(Front, ADeadlineAlsoEndsARequestThatWaitsForACredit) {
  FrontBench b;
  WorkerHello h = HelloOf("w", true, true);
  h.submit_credits = 1;
  b.Up(h);
  b.Submit("one");
  ClientRequest r;
  r.prompt = TextPrompt{"two"};
  r.deadline = milliseconds(300);
  const ClientHandle client = b.Submit(r);
  b.Pass(milliseconds(301));
  EXPECT_EQ(OnlyFailure(b, client).status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(b.front.queued(), 0u);
}

// ---- epochs -------------------------------------------------------------------------------------

TEST(FrontS5, AnEventOfAnUnknownChildIsAnsweredWithCancelAndAnswersAreNot) {
  Pair b;
  const ChildId stranger{b.front.fingerprint(), 77, 0};
  b.Token(b.d, stranger, 3, 0, 'x');
  ASSERT_EQ(b.Sent<CancelCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<CancelCommand>()[0].second.epoch, 3u);
  b.Say(b.d, NotHeld{stranger, 3});
  b.Say(b.p, HandedOff{stranger, 3});
  b.Say(b.p, HandoffFailed{stranger, 3, HandoffFailure::kTransfer, ""});
  b.Say(b.p, ReceiptEvent{stranger, 3, {}});
  b.Token(b.d, ChildId{b.front.fingerprint() + 1, 77, 0}, 3, 0, 'x');  // another front's
  EXPECT_EQ(b.front.counters().stray_events, 1u);
}

TEST(FrontS6, AnIndexBeyondTheNextEndsTheEpoch) {
  Pair b;
  const ChildId child = b.Start();
  b.Token(b.p, child, 1, 0, 'a');
  b.Token(b.d, child, 1, 2, 'c');
  EXPECT_EQ(b.front.counters().index_gaps, 1u);
  ASSERT_EQ(b.Sent<PrefillCommand>().size(), 1u);
  const PrefillCommand again = b.Sent<PrefillCommand>()[0].second;
  EXPECT_EQ(again.epoch, 2u);
  ASSERT_EQ(again.progress.tokens.size(), 1u);
  EXPECT_EQ(again.progress.tokens[0].id, 'a');
  EXPECT_EQ(again.progress.delivered, 1u);
  EXPECT_EQ(b.Sent<CancelCommand>().size(), 2u);
  // The next placement is told before the old epoch is cancelled, so that its blocks can be taken over.
  EXPECT_TRUE(std::holds_alternative<PrefillCommand>(b.out.to_workers.front().second));
  b.Token(b.d, child, 1, 1, 'b');  // from the ended epoch
  EXPECT_EQ(b.TextOf(b.client), "a");
  EXPECT_EQ(b.front.counters().stray_events, 1u);
}

TEST(FrontS7, AReplayedTokenThatDiffersIsNeverDeliveredAndEndsTheEpoch) {
  Pair b;
  const ChildId child = b.Start();
  b.Token(b.p, child, 1, 0, 'a');
  b.Token(b.d, child, 1, 0, 'z');
  EXPECT_EQ(b.front.counters().replay_faults, 1u);
  EXPECT_EQ(b.TextOf(b.client), "a");
  ASSERT_EQ(b.Sent<PrefillCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<PrefillCommand>()[0].second.progress.tokens[0].id, 'a');
}

TEST(FrontS6, LosingDecodeEndsTheEpochAndTheAnswerGoesOnElsewhere) {
  Pair b;
  const LinkId d2 = b.Up("d2", false, true);
  const ChildId child = b.Start(4);
  const LinkId first = b.Sent<PrefillCommand>()[0].second.decode.process.name == "d" ? b.d : d2;
  const LinkId other = first == b.d ? d2 : b.d;
  b.Token(b.p, child, 1, 0, 'a');
  b.Say(b.p, HandedOff{child, 1});
  b.Token(first, child, 1, 1, 'b');
  b.Down(first);
  ASSERT_EQ(b.Sent<PrefillCommand>().size() + b.Sent<DecodeCommand>().size(), 1u);
  b.Token(other, child, 2, 2, 'c');
  b.Token(other, child, 2, 3, 'd', FinishReason::kLength);
  b.Pass(seconds(1));
  EXPECT_EQ(b.TextOf(b.client), "abcd");
  ASSERT_EQ(b.Told<Done>(b.client).size(), 1u);
  EXPECT_EQ(b.Told<Done>(b.client)[0].timings.retries, 1u);
}

TEST(FrontS6, LosingPrefillAfterTheHandOffChangesNothing) {
  Pair b;
  const ChildId child = b.Start(2);
  b.Token(b.p, child, 1, 0, 'a');
  b.Say(b.p, HandedOff{child, 1});
  b.Down(b.p);
  EXPECT_TRUE(b.out.to_workers.empty());
  b.Token(b.d, child, 1, 1, 'b', FinishReason::kLength);
  EXPECT_EQ(b.TextOf(b.client), "ab");
  EXPECT_EQ(b.Told<Done>(b.client).size(), 1u);
}

TEST(FrontL7, LosingPrefillBeforeTheHandOffAsksDecodeWhetherItHoldsTheRequest) {
  for (const bool held : {false, true}) {
    Pair b;
    const ChildId child = b.Start(2);
    b.Token(b.p, child, 1, 0, 'a');
    b.Down(b.p);
    ASSERT_EQ(b.Sent<AdoptCommand>().size(), 1u);
    EXPECT_EQ(b.Sent<AdoptCommand>()[0].first, b.d);
    EXPECT_EQ(b.Sent<AdoptCommand>()[0].second.epoch, 1u);
    EXPECT_TRUE(b.Sent<DecodeCommand>().empty()) << "nothing is placed before the answer";
    if (held) {
      b.Say(b.d, Running{child, 1});
      EXPECT_TRUE(b.out.to_workers.empty());
      b.Token(b.d, child, 1, 1, 'b', FinishReason::kLength);
    } else {
      b.Say(b.d, NotHeld{child, 1});
      ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u) << "no prefill worker is left";
      EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.epoch, 2u);
      b.Token(b.d, child, 2, 1, 'b', FinishReason::kLength);
    }
    EXPECT_EQ(b.TextOf(b.client), "ab");
    EXPECT_EQ(b.Told<Done>(b.client).size(), 1u);
  }
}

TEST(FrontL7, AnUndecidedHandOffAsksDecodeToo) {
  Pair b;
  const ChildId child = b.Start(2);
  b.Token(b.p, child, 1, 0, 'a');
  b.Say(b.p, HandoffFailed{child, 1, HandoffFailure::kUndecided, ""});
  ASSERT_EQ(b.Sent<AdoptCommand>().size(), 1u);
  b.Token(b.d, child, 1, 1, 'b', FinishReason::kLength);  // D's first event answers as well
  EXPECT_EQ(b.TextOf(b.client), "ab");
}

TEST(FrontL7, AnAdoptWithoutAnAnswerEndsTheEpochAtItsDeadline) {
  Pair b;
  const ChildId child = b.Start(2);
  b.Down(b.p);
  for (int i = 0; i < 4; ++i) {
    b.Pass(milliseconds(900));
    b.Beat(b.d);  // alive, and mute about the request
    if (!b.Sent<DecodeCommand>().empty()) break;
  }
  b.Token(b.d, child, 2, 0, 'a');
  EXPECT_EQ(b.TextOf(b.client), "a");
}

TEST(FrontL6, ABusyHandOffComesBackOnceAndIsThenDecodedWhereItIs) {
  Pair b;
  const LinkId d2 = b.Up("d2", false, true);
  const ChildId child = b.Start(4);
  const std::string first = b.Sent<PrefillCommand>()[0].second.decode.process.name;
  b.Token(b.p, child, 1, 0, 'a');
  b.Say(b.p, HandoffFailed{child, 1, HandoffFailure::kBusyTooLong, ""});
  ASSERT_EQ(b.Sent<PrefillCommand>().size(), 1u);
  EXPECT_NE(b.Sent<PrefillCommand>()[0].second.decode.process.name, first);
  b.Say(b.p, HandoffFailed{child, 2, HandoffFailure::kBusyTooLong, ""});
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].first, b.p);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.epoch, 3u);
  (void)d2;
}

TEST(FrontL8, RetriesBeyondTheFreeOnesAreTwo) {
  Pair b;
  const ChildId child = b.Start(8);
  b.Token(b.p, child, 1, 0, 'a');
  for (Epoch epoch = 1; epoch <= 2; ++epoch) {
    b.Say(b.p, HandoffFailed{child, epoch, HandoffFailure::kTransfer, "corrupt"});
    b.Say(b.d, ChildFailed{child, epoch + 1, AbortedError("no")});  // where it decodes locally
    if (!b.Told<Failed>(b.client).empty()) break;
  }
  const Failed failed = OnlyFailure(b, b.client);
  EXPECT_EQ(failed.status.code(), Code::kAborted) << "the client has a token already";
  EXPECT_EQ(failed.reason, "GENERATION_LOST");
}

TEST(FrontL8, OneIncarnationsLossIsFreeOnceForEachRequest) {
  FrontOptions o = SmallOptions();
  o.limits.retry_budget = 0;
  FrontBench b(o);
  // Sessions of one living process break: the first loss is free, the second costs and none is left.
  LinkId w = b.Up("w", true, true);
  const ClientHandle client = b.Submit("hello", 4);
  b.Down(w);
  EXPECT_TRUE(b.Told<Failed>(client).empty());
  w = b.Up("w", true, true);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u) << "it waited for a worker";
  b.Down(w);
  EXPECT_EQ(OnlyFailure(b, client).status.code(), Code::kUnavailable);
}

TEST(FrontL8, ARequestThatRanOnTwoWorkersThatDiedIsPoisonAndNotTriedAgain) {
  for (const bool same_host : {false, true}) {
    FrontBench b;
    std::vector<LinkId> links;
    for (const char* name : {"a", "b", "c"}) {
      WorkerHello h = HelloOf(name, true, true);
      if (same_host) h.self.address = "one.host:1";
      links.push_back(b.Up(h));
    }
    const ClientHandle client = b.Submit("hello", 8);
    const ChildId child = b.front.ChildOf(client);
    for (Epoch epoch = 1; epoch <= 2; ++epoch) {
      const LinkId on = b.Sent<DecodeCommand>().at(0).first;
      b.Token(on, child, epoch, epoch - 1, 'a');
      b.Down(on);
    }
    if (same_host) {  // deaths on one host within seconds count once
      EXPECT_TRUE(b.Told<Failed>(client).empty());
    } else {
      EXPECT_EQ(OnlyFailure(b, client).reason, "POISON");
    }
  }
}

TEST(FrontL8, AWorkerThatIsStartedAgainAndDiesAgainCountsTwiceHoweverSoon) {
  FrontBench b;
  LinkId w = b.Up(HelloOf("w", true, true, 1));
  const ClientHandle client = b.Submit("hello", 8);
  const ChildId child = b.front.ChildOf(client);
  b.Token(w, child, 1, 0, 'a');
  b.Down(w);
  w = b.Up(HelloOf("w", true, true, 2));
  b.Token(w, child, 2, 1, 'b');
  b.Down(w);
  EXPECT_EQ(OnlyFailure(b, client).reason, "POISON");
  EXPECT_EQ(OnlyFailure(b, client).status.code(), Code::kInternal);
}

TEST(FrontL8, ADeathIsTakenBackWhenTheSameIncarnationReturns) {
  FrontBench b;
  const LinkId a = b.Up("a", true, true);
  const ClientHandle client = b.Submit("hello", 8);
  const ChildId child = b.front.ChildOf(client);
  b.Token(a, child, 1, 0, 'x');
  b.Down(a);
  const LinkId again = b.Up("a", true, true);
  b.Token(again, child, 2, 1, 'y');
  b.Up("b", true, true);
  b.Down(again);
  EXPECT_TRUE(b.Told<Failed>(client).empty()) << "only a cut session before, so this is its first death";
}

TEST(FrontL8, AfterAHitItsPlacementsSayThatItRunsApart) {
  FrontBench b;
  b.Up("a", true, true);
  b.Up("b", true, true);
  const ClientHandle client = b.Submit("hello", 8);
  const auto first = b.Sent<DecodeCommand>();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_FALSE(first[0].second.progress.once_hit);
  b.Token(first[0].first, b.front.ChildOf(client), 1, 0, 'x');
  b.Down(first[0].first);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_TRUE(b.Sent<DecodeCommand>()[0].second.progress.once_hit);

  Pair pair;
  const ChildId child = pair.Start();
  pair.Beat(pair.p);  // its steps have risen: the prompt may be in one
  pair.Down(pair.p);
  ASSERT_EQ(pair.Sent<AdoptCommand>().size(), 1u);
  EXPECT_EQ(pair.Sent<AdoptCommand>()[0].second.child, child);
  EXPECT_TRUE(pair.Sent<AdoptCommand>()[0].second.once_hit) << "decode may be running it already";
}

TEST(FrontL8, ADeathWhileItWaitedForItsTurnIsNoSecondHit) {
  FrontBench b;
  LinkId w = b.Up(HelloOf("w", true, true, 1));
  const ClientHandle client = b.Submit("hello", 8);
  const ChildId child = b.front.ChildOf(client);
  b.Token(w, child, 1, 0, 'a');
  b.Down(w);
  w = b.Up(HelloOf("w", true, true, 2));
  b.Token(w, child, 2, 1, 'b');
  b.in_step[w] = {ChildId{child.front, 77, 0}};  // another one's turn; steps go on rising
  b.Beat(w);
  b.Down(w);
  EXPECT_TRUE(b.Told<Failed>(client).empty());
  w = b.Up(HelloOf("w", true, true, 3));
  b.Token(w, child, 3, 2, 'c');
  b.Down(w);
  EXPECT_EQ(OnlyFailure(b, client).reason, "POISON") << "now it was in a step";
}

TEST(FrontL8, TheExitOfADrainingWorkerIsNoHit) {
  FrontBench b;
  LinkId w = b.Up(HelloOf("w", true, true, 1));
  const ClientHandle client = b.Submit("hello", 8);
  const ChildId child = b.front.ChildOf(client);
  for (Epoch epoch = 1; epoch <= 3; ++epoch) {
    b.Token(w, child, epoch, epoch - 1, 'a');
    WorkerBatch last = b.BatchOf(w, {});
    last.heartbeat.draining = true;
    b.Do(FromWorker{w, last});
    b.Down(w);
    w = b.Up(HelloOf("w", true, true, epoch + 1));
    EXPECT_TRUE(b.Told<Failed>(client).empty());
    ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
    EXPECT_FALSE(b.Sent<DecodeCommand>()[0].second.progress.once_hit);
  }
}

TEST(FrontL8, TheDeathOfAStuckWriterIsNoHitWhetherItWasNamedBeforeOrAfter) {
  for (const bool before : {true, false}) {
    Pair b;
    const ChildId child = b.Start();
    b.Beat(b.p);
    WorkerBatch names_it = b.BatchOf(b.d, {});
    Quarantine stuck{HelloOf("p", true, false).self.process, 5, 1, seconds(10), true};
    names_it.heartbeat.quarantines = {stuck};
    if (before) b.Do(FromWorker{b.d, names_it});
    b.Down(b.p);
    ASSERT_EQ(b.Sent<AdoptCommand>().size(), 1u);
    EXPECT_EQ(b.Sent<AdoptCommand>()[0].second.once_hit, !before);
    if (!before) b.Do(FromWorker{b.d, names_it});
    b.Say(b.d, NotHeld{child, 1});
    ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
    EXPECT_FALSE(b.Sent<DecodeCommand>()[0].second.progress.once_hit);
  }
}

// A rule that is switched off must be missed, or the tests that look for it prove nothing.
TEST(Front, EachRuleThatATestSwitchesOffIsReallyOff) {
  const auto without = [](Rule rule) {
    FrontOptions o = SmallOptions();
    o.rules = Rules::AllBut(rule);
    return o;
  };
  {
    Pair b(without(Rule::kS5));
    b.Token(b.d, ChildId{b.front.fingerprint(), 77, 0}, 3, 0, 'x');
    EXPECT_TRUE(b.Sent<CancelCommand>().empty());
  }
  {
    Pair b(without(Rule::kS6));
    const ChildId child = b.Start();
    b.Token(b.p, child, 1, 0, 'a');
    b.Token(b.d, child, 1, 0, 'a');
    EXPECT_EQ(b.TextOf(b.client), "aa");
  }
  {
    Pair b(without(Rule::kS7));
    const ChildId child = b.Start();
    b.Token(b.p, child, 1, 0, 'a');
    b.Token(b.d, child, 1, 0, 'z');
    EXPECT_EQ(b.front.counters().replay_faults, 0u);
  }
  {
    Pair b(without(Rule::kL1));
    b.Start();
    EXPECT_EQ(b.front.NextTimer(), b.now + seconds(3)) << "only the workers' heartbeats have a limit";
  }
  {
    Pair b(without(Rule::kL4));
    b.Pass(seconds(60));
    EXPECT_EQ(b.front.Snapshot(b.now).workers.size(), 2u) << "silent, and nobody minds";
  }
  {
    Pair b(without(Rule::kL6));
    const ChildId child = b.Start();
    for (Epoch e = 1; e < 4; ++e) {
      b.Say(b.p, HandoffFailed{child, e, HandoffFailure::kBusyTooLong, ""});
      EXPECT_EQ(b.Sent<PrefillCommand>().size(), 1u);
    }
  }
  {
    Pair b(without(Rule::kL7));
    b.Start();
    b.Down(b.p);
    EXPECT_TRUE(b.Sent<AdoptCommand>().empty());
  }
  {
    FrontBench b(without(Rule::kL8));
    const ClientHandle client = b.Submit("never");
    EXPECT_EQ(b.Told<Failed>(client).size(), 1u);
    LinkId w = b.Up("w", true, true);
    const ClientHandle again = b.Submit("hello", 4);
    for (int i = 0; i < 9; ++i) b.Down(w), w = b.Up("w", true, true);
    EXPECT_TRUE(b.Told<Failed>(again).empty());
  }
}

// ---- workers ------------------------------------------------------------------------------------

TEST(Front, ARestartTakesTheNameAsSoonAsTheOldSessionEndsAndTheOldStartIsRefusedForGood) {
  FrontBench b;
  const LinkId old = b.Up(HelloOf("w", true, true, 1));
  const LinkId young = b.Up(HelloOf("w", true, true, 2));
  EXPECT_TRUE(b.out.empty()) << "it waits";
  b.Down(old);
  ASSERT_EQ(b.Sent<FrontHello>().size(), 1u);
  EXPECT_EQ(b.Sent<FrontHello>()[0].first, young);
  const LinkId late = b.Up(HelloOf("w", true, true, 1));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, late);
  EXPECT_EQ(b.out.close[0].why.code(), Code::kFailedPrecondition);
  EXPECT_THAT(b.out.close[0].why.message(), HasSubstr("superseded"));
  b.Submit("hello");
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].first, young);
}

TEST(Front, ASecondLiveWorkerOfANameIsRefusedInWordsAndTheFirstServesOn) {
  FrontBench b;
  const LinkId first = b.Up(HelloOf("w", true, true, 1));
  WorkerHello twin = HelloOf("w", true, true, 2);
  twin.self.address = "elsewhere:77";
  const LinkId second = b.Up(twin);
  b.Pass(milliseconds(999));
  b.Beat(first);  // may be what a dead process had sent
  EXPECT_TRUE(b.out.close.empty());
  b.Pass(milliseconds(1));
  b.Beat(first);
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, second);
  EXPECT_EQ(b.out.close[0].why.code(), Code::kFailedPrecondition);
  for (const char* part : {"start 1 (w.host:9000)", "start 2 (elsewhere:77)", "--name"}) {
    EXPECT_THAT(b.out.close[0].why.message(), HasSubstr(part));
  }
  b.Submit("hello");
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].first, first);
  b.Down(first);
  EXPECT_TRUE(b.Sent<FrontHello>().empty()) << "the refused one is not remembered";
}

TEST(Front, ANewerStartReplacesOneThatIsSilent) {
  FrontBench b;
  const LinkId old = b.Up(HelloOf("w", true, true, 1));
  const LinkId young = b.Up(HelloOf("w", true, true, 2));
  b.Pass(seconds(3));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, old);
  ASSERT_EQ(b.Sent<FrontHello>().size(), 1u);
  EXPECT_EQ(b.Sent<FrontHello>()[0].first, young);
}

TEST(Front, TheSameProcessDialingAnewEndsItsOlderSessionAtOnce) {
  FrontBench b;
  const LinkId old = b.Up(HelloOf("w", true, true, 1));
  const LinkId again = b.Up(HelloOf("w", true, true, 1));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, old);
  EXPECT_EQ(b.out.close[0].why.code(), Code::kUnavailable) << "it is not refused";
  ASSERT_EQ(b.Sent<FrontHello>().size(), 1u);
  EXPECT_EQ(b.Sent<FrontHello>()[0].first, again);
}

TEST(Front, OfSeveralThatWaitForANameTheHighestStartGetsIt) {
  FrontBench b;
  const LinkId first = b.Up(HelloOf("w", true, true, 1));
  const LinkId second = b.Up(HelloOf("w", true, true, 2));
  const LinkId fourth = b.Up(HelloOf("w", true, true, 4));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, second);
  EXPECT_EQ(b.out.close[0].why.code(), Code::kFailedPrecondition);
  const LinkId third = b.Up(HelloOf("w", true, true, 3));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, third);
  const LinkId redialed = b.Up(HelloOf("w", true, true, 4));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, fourth);
  EXPECT_EQ(b.out.close[0].why.code(), Code::kUnavailable);
  b.Down(fourth);  // closed already: nothing changes for the one that waits now
  b.Down(first);
  ASSERT_EQ(b.Sent<FrontHello>().size(), 1u);
  EXPECT_EQ(b.Sent<FrontHello>()[0].first, redialed);
}

TEST(Front, AWorkerOfAnotherModelIsRefused) {
  FrontBench b;
  WorkerHello h = HelloOf("w", true, true);
  h.model.weights = {9, 9};
  const LinkId link = b.Up(h);
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, link);
  EXPECT_EQ(b.front.Snapshot(b.now).workers.size(), 0u);
}

TEST(Front, ABrokenHelloIsRefusedForGoodWithItsValueAndTheLimitAndNeverReachesArithmetic) {
  struct Case {
    std::function<void(WorkerHello*)> change;
    std::string words;
  };
  const auto address = [](const std::string& a) { return [a](WorkerHello* h) { h->self.address = a; }; };
  const std::vector<Case> cases = {
      {[](WorkerHello* h) { h->layout.block_tokens = 0; }, "blocks of 0 tokens; a multiple of 16 up to 4096"},
      {[](WorkerHello* h) { h->layout.block_tokens = 24; }, "blocks of 24 tokens"},
      {[](WorkerHello* h) { h->layout.block_tokens = 1u << 31; }, "blocks of 2147483648 tokens"},
      {[](WorkerHello* h) { h->num_blocks = {}; }, "1 KV groups and 0 pools"},
      {[](WorkerHello* h) { h->num_blocks = {0}; }, "a KV pool of 0 blocks; 1 to 268435456"},
      {[](WorkerHello* h) { h->num_blocks = {UINT32_MAX}; }, "a KV pool of 4294967295 blocks"},
      {[](WorkerHello* h) { h->layout.groups[0].head_dim = 0; }, "head_dim 0"},
      {[](WorkerHello* h) { h->layout.groups[0].dtype = static_cast<DType>(99); }, "quantised"},
      {[](WorkerHello* h) { h->self.process.name = ""; }, "a worker name of 0 bytes; 1 to 128"},
      {[](WorkerHello* h) { h->self.process.name = "a b"; }, "without spaces"},
      {[](WorkerHello* h) { h->self.process.name = std::string(129, 'n'); }, "a worker name of 129 bytes"},
      {[](WorkerHello* h) {
         h->roles = {false, false};
       },
       "at least one role"},
      {[](WorkerHello* h) { h->max_context_tokens = 1; }, "a context of 1 tokens; 2 to 16777216"},
      {[](WorkerHello* h) { h->max_context_tokens = UINT32_MAX; }, "a context of 4294967295 tokens"},
      {[](WorkerHello* h) { h->submit_credits = 0; }, "room for 0 requests; 1 to 1048576"},
      {[](WorkerHello* h) { h->submit_credits = UINT32_MAX; }, "room for 4294967295 requests"},
      {address("0.0.0.0:9000"), "cannot dial 0.0.0.0:9000"},
      {address("[::]:9000"), "cannot dial [::]:9000"},
      {address("0:9000"), "cannot dial 0:9000"},
      {address("host:0"), "cannot dial host:0"},
      {address("host:65536"), "cannot dial host:65536"},
      {address("host"), "cannot dial host"},
      {address(":9000"), "cannot dial :9000"},
      {address("a\nb:9000"), "control characters"},
      {[](WorkerHello* h) {
         h->self.address = "", h->roles = {true, false};
       },
       "needs an address"},
  };
  for (const Case& c : cases) {
    FrontBench b;
    WorkerHello h = HelloOf("w", true, true);
    c.change(&h);
    b.Up(h);
    ASSERT_EQ(b.out.close.size(), 1u) << c.words;
    EXPECT_EQ(b.out.close[0].why.code(), Code::kFailedPrecondition);
    EXPECT_THAT(b.out.close[0].why.message(), HasSubstr(c.words));
    EXPECT_TRUE(b.out.to_workers.empty()) << c.words;
  }
  FrontBench b;
  WorkerHello alone = HelloOf("w", true, true);
  alone.self.address = "";
  b.Up(alone);
  EXPECT_TRUE(b.out.close.empty()) << "one that does everything needs no peers";
}

// FF-117
TEST(Front, AWorkerWithoutAHeartbeatForThreeSecondsIsHungAndItsEpochsEnd) {
  FrontBench b;
  const LinkId a = b.Up("a", true, true);
  const LinkId c = b.Up("c", true, true);
  const ClientHandle client = b.Submit("hello", 4);
  const LinkId on = b.Sent<DecodeCommand>().at(0).first;
  const LinkId other = on == a ? c : a;
  for (int i = 0; i < 4; ++i) {
    b.Pass(milliseconds(700));
    b.Beat(other);
  }
  EXPECT_TRUE(b.out.close.empty());
  b.Pass(milliseconds(300));
  ASSERT_EQ(b.out.close.size(), 1u);
  EXPECT_EQ(b.out.close[0].link, on);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].first, other);
  b.Token(on, b.front.ChildOf(client), 1, 0, 'x');  // it wakes up: nobody listens
  EXPECT_TRUE(b.Told<Delta>(client).empty());
  EXPECT_TRUE(b.out.to_workers.empty());
}

TEST(Front, AGapInCacheEventsAsksForASnapshotOnce) {
  FrontBench b;
  const LinkId w = b.Up("w", true, true);
  WorkerBatch batch = b.BatchOf(w, {});
  batch.cache = {.sequence = 1, .snapshot = true, .stored = {{1, 1}}, .removed = {}};
  b.Do(FromWorker{w, batch});
  EXPECT_TRUE(b.Sent<CacheResyncCommand>().empty());
  batch.cache = {.sequence = 3, .snapshot = false, .stored = {{2, 2}}, .removed = {}};
  b.Do(FromWorker{w, batch});
  EXPECT_EQ(b.Sent<CacheResyncCommand>().size(), 1u);
  EXPECT_EQ(b.front.Snapshot(b.now).workers[0].cached_pages, 0u);
  batch.cache.sequence = 4;
  b.Do(FromWorker{w, batch});
  EXPECT_TRUE(b.Sent<CacheResyncCommand>().empty());
  batch.cache = {.sequence = 5, .snapshot = true, .stored = {{1, 1}, {2, 2}}, .removed = {}};
  b.Do(FromWorker{w, batch});
  EXPECT_EQ(b.front.Snapshot(b.now).workers[0].cached_pages, 2u);
}

TEST(Front, AFullWorkerIsTriedAgainLaterAtNoCost) {
  FrontBench b;
  const LinkId w = b.Up("w", true, true);
  const ClientHandle client = b.Submit("hello", 4);
  const ChildId child = b.front.ChildOf(client);
  b.Say(w, ChildFailed{child, 1, ResourceExhaustedError("queue full")});
  EXPECT_TRUE(b.Sent<DecodeCommand>().empty());
  b.Pass(milliseconds(100));
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.epoch, 2u);
  EXPECT_TRUE(b.Told<Failed>(client).empty());
}

// ---- what users of other servers saw (tests/field_failures.md) ---------------------------------------

// FF-044: the first token, which P computed, completes a stop string: it stops at once, is counted once, keeps its
// logprob, and nothing of the stop is shown.
TEST(Front, FF044_TheFirstTokenIsHeldToTheStopStringsAndCountedOnce) {
  Pair b;
  ClientRequest r;
  r.prompt = TextPrompt{kLong};
  r.max_tokens = 20;
  r.stop = {"x"};
  r.logprobs = 1;
  const ClientHandle client = b.Submit(r);
  const ChildId child = b.front.ChildOf(client);
  b.Say(b.p, TokenEvent{child, 1, 0, {'x', -0.5f, {{'x', -0.5f}}}, FinishReason::kNone});
  EXPECT_EQ(b.Sent<CancelCommand>().size(), 2u) << "D is told too";
  b.Say(b.d, TokenEvent{child, 1, 0, {'x', -0.5f, {{'x', -0.5f}}}, FinishReason::kNone});
  b.Pass(seconds(1));
  EXPECT_EQ(b.TextOf(client), "");
  ASSERT_EQ(b.Told<Finished>(client).size(), 1u);
  EXPECT_EQ(b.Told<Finished>(client)[0].matched_stop, "x");
  ASSERT_EQ(b.Told<Done>(client).size(), 1u);
  EXPECT_EQ(b.Told<Done>(client)[0].usage.completion_tokens, 1u);
  std::vector<OutputToken> logprobs;
  for (const Delta& d : b.Told<Delta>(client)) logprobs.insert(logprobs.end(), d.logprobs.begin(), d.logprobs.end());
  ASSERT_EQ(logprobs.size(), 1u);
  EXPECT_EQ(logprobs[0].logprob, -0.5f);
}

// FF-049: the true context, the true prompt and what was asked for.
TEST(Front, FF049_ARequestBeyondTheContextIsToldAllThreeNumbers) {
  FrontBench b;
  b.Up("w", true, true);
  const Failed failed = OnlyFailure(b, b.Submit("8 tokens", 1021));
  EXPECT_EQ(failed.status.code(), Code::kInvalidArgument);
  for (const char* part : {"1024", "8", "1021"}) EXPECT_THAT(failed.status.message(), HasSubstr(part));
  EXPECT_TRUE(b.Told<Failed>(b.Submit("8 tokens", 1016)).empty());
}

// FF-051: one token short of the context there is room for one; at it and beyond there is none, and nobody else minds.
TEST(Front, FF051_APromptAtTheEdgeOfTheContextGetsOneTokenOrAClearNo) {
  FrontBench b;
  const LinkId w = b.Up("w", true, true);
  ClientRequest r;
  r.prompt = TextPrompt{std::string(1023, 'x')};
  const ClientHandle edge = b.Submit(r);
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.request->stop.max_tokens, 1u);
  for (const size_t n : {1024, 1025}) {
    r.prompt = TextPrompt{std::string(n, 'x')};
    EXPECT_THAT(OnlyFailure(b, b.Submit(r)).status.message(), HasSubstr(std::to_string(n)));
  }
  b.Token(w, b.front.ChildOf(edge), 1, 0, 'a', FinishReason::kLength);
  EXPECT_EQ(b.Told<Done>(edge).size(), 1u);
}

}  // namespace
}  // namespace baton
