// A router as clients, operators and workers meet it: real gRPC on free loopback ports, a worker by script.
#include "rpc/router_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "rpc/front_thread.h"
#include "rpc/inference_client.h"
#include "scripted_worker.h"
#include "support/tcp_proxy.h"

namespace baton {
namespace {

using testing::AnswerText;
using testing::ByteTokenizer;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::ScriptedWorker;

RouterServerOptions TestOptions(const Tokenizer* tokenizer) {
  RouterServerOptions options;
  options.front.self = {"router", {1, 1}};
  options.front.model = testing::TestModel();
  options.front.served_name = "tiny";
  options.front.max_context_tokens = 4096;
  options.model.max_context_tokens = 4096;
  options.tokenizer = tokenizer;
  return options;
}

ClientRequest Prompt(const std::string& text, int64_t max_tokens) {
  ClientRequest request;
  request.prompt = TextPrompt{text};
  request.max_tokens = max_tokens;
  request.temperature = 0;
  return request;
}

// What a client made of a stream.
struct Answer {
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, FinishReason> finish;
  std::vector<size_t> order;  // the events' kinds
  Usage usage;
  Timings timings;
  Started started;
  CallResult result;
};

Answer Ask(
    InferenceClient* client, const ClientRequest& request,
    const std::function<bool(const Answer&)>& go_on = [](const Answer&) { return true; }) {
  Answer answer;
  answer.result = client->Generate(request, [&](const ClientEvent& event) {
    answer.order.push_back(event.index());
    if (const auto* delta = std::get_if<Delta>(&event)) answer.text[delta->choice] += delta->text;
    if (const auto* finished = std::get_if<Finished>(&event)) answer.finish[finished->choice] = finished->reason;
    if (const auto* started = std::get_if<Started>(&event)) answer.started = *started;
    if (const auto* done = std::get_if<Done>(&event)) {
      answer.usage = done->usage;
      answer.timings = done->timings;
    }
    return go_on(answer);
  });
  return answer;
}

class RouterServerTest : public ::testing::Test {
 protected:
  void StartRouter() { StartRouter(TestOptions(&tokenizer_)); }
  void StartRouter(RouterServerOptions options) {
    auto started = RouterServer::Start(std::move(options), &clock_);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    router_ = *std::move(started);
    client_ = InferenceClient::Create({router_->address(), nullptr});
  }
  void StartWorker(std::chrono::milliseconds token_every = std::chrono::milliseconds(0), uint32_t batch = 1) {
    ScriptedWorker::Options options;
    options.routers = {{router_->address(), nullptr}};
    options.token_every = token_every;
    options.tokens_per_batch = batch;
    worker_ = std::make_unique<ScriptedWorker>(options);
    ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
  }

  SteadyClock clock_;
  ByteTokenizer tokenizer_;
  std::unique_ptr<RouterServer> router_;
  std::unique_ptr<ScriptedWorker> worker_;
  std::unique_ptr<InferenceClient> client_;
};

TEST_F(RouterServerTest, AStreamBringsTheWorkersTokensInOrderAndThenItsReceipt) {
  StartRouter();
  StartWorker();
  ClientRequest request = Prompt("hello", 40);
  request.timings = true;
  const Answer answer = Ask(client_.get(), request);
  ASSERT_TRUE(answer.result.status.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.text.at(0), AnswerText(5, 40));
  EXPECT_EQ(answer.finish.at(0), FinishReason::kLength);
  EXPECT_EQ(answer.usage.prompt_tokens, 5u);
  EXPECT_EQ(answer.usage.completion_tokens, 40u);
  EXPECT_EQ(answer.order.front(), ClientEvent(Started{}).index());
  EXPECT_EQ(answer.order.back(), ClientEvent(Done{}).index());
  EXPECT_EQ(answer.order[answer.order.size() - 2], ClientEvent(Finished{}).index());
  EXPECT_FALSE(answer.started.request_id.empty());
  EXPECT_GT(answer.timings.first_token.count(), 0);
  EXPECT_EQ(answer.timings.placements, 1u);
  EXPECT_EQ(answer.timings.prefill.queue, std::chrono::microseconds(123));
}

// FF-045
TEST_F(RouterServerTest, CompleteGivesInOneAnswerWhatTheStreamGives) {
  StartRouter();
  StartWorker();
  ClientRequest request = Prompt("abc", 20);
  request.logprobs = 0;
  const StatusOr<std::vector<ClientEvent>> events = client_->Complete(request);
  ASSERT_TRUE(events.ok()) << events.status().ToString();
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, size_t> logprobs;
  for (const ClientEvent& event : *events) {
    if (const auto* delta = std::get_if<Delta>(&event)) {
      text[delta->choice] += delta->text;
      logprobs[delta->choice] += delta->logprobs.size();
    }
  }
  EXPECT_EQ(text, Ask(client_.get(), request).text);
  EXPECT_EQ(text.at(0), AnswerText(3, 20));
  EXPECT_EQ(logprobs.at(0), 20u);
}

// FF-004, FF-127
TEST_F(RouterServerTest, AClientThatGoesAwayFreesItsRequestOnTheWorker) {
  StartRouter();
  StartWorker(std::chrono::milliseconds(2));
  const Answer answer = Ask(client_.get(), Prompt("hello", 4000), [](const Answer& so_far) {
    return !so_far.text.contains(0) || so_far.text.at(0).size() < 3;
  });
  EXPECT_EQ(answer.result.status.code(), Code::kCancelled);
  EXPECT_TRUE(Eventually([&] { return worker_->cancels() == 1 && worker_->running() == 0; }));
  EXPECT_TRUE(Eventually([&] { return router_->front().live() == 0; }));
}

// FF-129
TEST_F(RouterServerTest, CancelByIdEndsTheStreamAndFreesTheWorker) {
  StartRouter();
  StartWorker(std::chrono::milliseconds(2));
  ClientRequest request = Prompt("hello", 4000);
  request.request_id = "mine";
  Status cancelled = InternalError("not called");
  const Answer answer = Ask(client_.get(), request, [&](const Answer& so_far) {
    if (so_far.order.size() == 2) cancelled = client_->Cancel("mine");
    return true;
  });
  EXPECT_TRUE(cancelled.ok()) << cancelled.ToString();
  EXPECT_EQ(answer.result.status.code(), Code::kCancelled);
  EXPECT_EQ(answer.result.request_id, "mine");
  EXPECT_TRUE(Eventually([&] { return worker_->running() == 0; }));
  EXPECT_EQ(client_->Cancel("mine").code(), Code::kNotFound);
}

// FF-126
TEST_F(RouterServerTest, TheDeadlineOfTheCallReachesTheWorker) {
  StartRouter();
  StartWorker(std::chrono::milliseconds(5));
  ClientRequest request = Prompt("hello", 4000);
  request.deadline = std::chrono::milliseconds(300);
  const Answer answer = Ask(client_.get(), request);
  EXPECT_EQ(answer.result.status.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Eventually([&] { return worker_->running() == 0 && worker_->cancels() == 1; }));
  EXPECT_TRUE(Eventually([&] { return router_->front().live() == 0; }));
}

// FF-128
TEST_F(RouterServerTest, WhatIsWrongIsSaidWithACodeAWordAndTheRequestsName) {
  StartRouter();
  StartWorker();
  ClientRequest request = Prompt("x", 1);
  request.request_id = "named";
  request.model = "other";
  CallResult result = Ask(client_.get(), request).result;
  EXPECT_EQ(result.status.code(), Code::kNotFound);
  EXPECT_THAT(result.status.message(), HasSubstr("tiny"));
  EXPECT_FALSE(result.reason.empty());
  EXPECT_EQ(result.request_id, "named");

  request = Prompt("x", 1);
  request.temperature = -1;
  result = Ask(client_.get(), request).result;
  EXPECT_EQ(result.status.code(), Code::kInvalidArgument);
  EXPECT_THAT(result.status.message(), HasSubstr("temperature"));
}

// The raw stub, for what the client library does not say.
class RawTest : public RouterServerTest {
 protected:
  std::shared_ptr<grpc::Channel> Channel(int window = 0) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (window > 0) {
      args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
      args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, window);
    }
    return grpc::CreateCustomChannel(router_->address(), grpc::InsecureChannelCredentials(), args);
  }
  // One unary or first-of-stream answer, as bytes.
  std::string Call(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(Channel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    const grpc::ByteBuffer out(&slice, 1);
    auto call = stub.PrepareCall(&context, method, &queue);
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    if (!wait()) return "";
    call->WriteLast(out, grpc::WriteOptions(), nullptr);
    if (!wait()) return "";
    grpc::ByteBuffer in;
    call->Read(&in, nullptr);
    if (!wait()) return "";
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    queue.Shutdown();
    std::vector<grpc::Slice> slices;
    (void)in.Dump(&slices);
    std::string bytes;
    for (const grpc::Slice& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    return bytes;
  }
  // How a call ends whose answer nobody expects.
  grpc::Status End(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(Channel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    auto call = stub.PrepareCall(&context, method, &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    queue.Shutdown();
    return status;
  }
  std::string Health(const std::string& service) {
    std::string request;
    if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    return Call("/grpc.health.v1.Health/Check", request);
  }
};

// FF-088, FF-154
TEST_F(RawTest, OptionsThatDoNotWorkYetAreRefusedByName) {
  StartRouter();
  StartWorker();
  const auto stub = v1::Inference::NewStub(Channel());
  const auto refused = [&](const std::function<void(v1::GenerateRequest*)>& change) {
    v1::GenerateRequest request;
    request.set_text("x");
    request.mutable_stopping()->set_max_tokens(1);
    change(&request);
    grpc::ClientContext context;
    v1::GenerateResult result;
    return stub->Complete(&context, request, &result);
  };
  EXPECT_TRUE(refused([](auto*) {}).ok());
  EXPECT_TRUE(refused([](auto* r) { r->mutable_sampling()->set_min_p(0); }).ok()) << "off is not an option in use";
  const std::vector<std::pair<std::string, std::function<void(v1::GenerateRequest*)>>> options = {
      {"sampling.min_p", [](auto* r) { r->mutable_sampling()->set_min_p(0.1f); }},
      {"sampling.repetition_penalty", [](auto* r) { r->mutable_sampling()->set_repetition_penalty(1.1f); }},
      {"constraint", [](auto* r) { r->mutable_constraint()->set_regex("a+"); }},
      {"media", [](auto* r) { r->add_media()->set_kind("image"); }},
      {"slo.ttft_ms", [](auto* r) { r->mutable_slo()->set_ttft_ms(10); }},
      {"adapter", [](auto* r) { r->set_adapter("mine"); }},
      {"output.prompt_logprobs", [](auto* r) { r->mutable_output()->set_prompt_logprobs(0); }},
  };
  for (const auto& [name, change] : options) {
    const grpc::Status status = refused(change);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
}

// FF-125
TEST_F(RawTest, WhatAClientSentIsNeverEchoedInALengthThatBreaksTheAnswer) {
  StartRouter();
  const auto stub = v1::Inference::NewStub(Channel());
  for (const size_t size : {size_t{129}, size_t{7000}, size_t{20000}}) {
    v1::GenerateRequest request;
    request.set_text("x");
    request.set_request_id(std::string(size, 'i'));
    v1::GenerateResult result;
    grpc::ClientContext complete, stream, cancel, model;
    EXPECT_EQ(stub->Complete(&complete, request, &result).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::GenerateEvent event;
    const auto reader = stub->Generate(&stream, request);
    EXPECT_FALSE(reader->Read(&event));
    const grpc::Status refused = reader->Finish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(refused.error_message(), HasSubstr("at most 128"));
    v1::CancelRequest which;
    which.set_request_id(request.request_id());
    v1::CancelResponse cancelled;
    EXPECT_EQ(stub->Cancel(&cancel, which, &cancelled).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    v1::GetModelRequest name;
    for (size_t i = 0; i < size; ++i) name.mutable_model()->append("\u00e9");
    v1::Model found;
    const grpc::Status unknown = stub->GetModel(&model, name, &found);
    EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(unknown.error_message(), HasSubstr("served: \"tiny\""));
  }
}

TEST_F(RawTest, BytesThatAreNoRequestAreRefusedWithTheFieldThatIsWrong) {
  StartRouter();
  v1::GenerateRequest request;
  request.set_text("PLACE");
  std::string bad_text = request.SerializeAsString();
  bad_text.replace(bad_text.find("PLACE"), 5, "a\xff\xfe\xc3z");
  request.set_text("fine");
  request.mutable_stopping()->add_stop("PLACE");
  std::string bad_stop = request.SerializeAsString();
  bad_stop.replace(bad_stop.find("PLACE"), 5, "\x80\x80\x80\x80\x80");
  for (const char* method : {"/baton.v1.Inference/Generate", "/baton.v1.Inference/Complete"}) {
    for (const auto& [bytes, words] : {std::pair(bad_text, "baton.v1.GenerateRequest.text is not valid UTF-8"),
                                       std::pair(bad_stop, "stop is not valid UTF-8"),
                                       std::pair(std::string("\xff\xff\xff"), "these 3 bytes are no baton.v1."),
                                       std::pair(std::string("\x0a\x7f"), "these 2 bytes are no baton.v1.")}) {
      const grpc::Status status = End(method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method << " " << words;
      EXPECT_THAT(status.error_message(), HasSubstr(words)) << method;
      EXPECT_FALSE(status.error_details().empty()) << method;
    }
  }
}

// FF-043
TEST_F(RawTest, ASlowReaderGetsEverythingInFewerEvents) {
  RouterServerOptions options = TestOptions(&tokenizer_);
  options.stream_queue_events = 8;
  StartRouter(options);
  StartWorker(std::chrono::milliseconds(0), /*batch=*/10);
  const auto stub = v1::Inference::NewStub(Channel(/*window=*/1024));
  v1::GenerateRequest request;
  request.set_text("hello");
  request.mutable_stopping()->set_max_tokens(4000);
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  // Nobody reads; the worker still runs to the end: it waits for no client.
  ASSERT_TRUE(Eventually([&] { return worker_->tokens() >= 4000 && worker_->running() == 0; }));
  ASSERT_TRUE(Eventually([&] { return router_->front().live() == 0; }));
  std::string text;
  size_t deltas = 0;
  v1::GenerateEvent event, last;
  while (stream->Read(&event)) {
    if (event.has_delta()) {
      text += event.delta().text();
      ++deltas;
    }
    last = event;
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(text, AnswerText(5, 4000));
  EXPECT_TRUE(last.has_done());
  EXPECT_LT(deltas, 1000u);
}

// FF-131
TEST_F(RawTest, AClientThatReadsNothingForTheTimeoutIsCancelledAndItsWorkEnds) {
  RouterServerOptions options = TestOptions(&tokenizer_);
  options.stream_queue_events = 4;
  options.slow_client_timeout = std::chrono::milliseconds(200);
  StartRouter(options);
  StartWorker(std::chrono::milliseconds(5));
  const auto stub = v1::Inference::NewStub(Channel(/*window=*/512));
  v1::GenerateRequest request;
  request.set_text("hello");
  request.mutable_stopping()->set_max_tokens(4000);
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  EXPECT_TRUE(Eventually([&] { return worker_->cancels() == 1 && worker_->running() == 0; }));
  v1::GenerateEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// FF-131
TEST_F(RawTest, AClientForWhomTooManyBytesWaitGetsWhatWasWrittenAndThenTheLimit) {
  RouterServerOptions options = TestOptions(&tokenizer_);
  options.stream_queue_events = 8;
  options.stream_queue_bytes = 2000;
  StartRouter(options);
  StartWorker(std::chrono::milliseconds(2), /*batch=*/10);
  const auto stub = v1::Inference::NewStub(Channel(/*window=*/1024));
  v1::GenerateRequest request;
  request.set_text("hello");
  request.mutable_stopping()->set_max_tokens(4000);
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  ASSERT_TRUE(Eventually([&] { return worker_->cancels() == 1 && worker_->running() == 0; }));
  EXPECT_TRUE(Eventually([&] { return router_->front().live() == 0; }));
  std::string text;
  v1::GenerateEvent event;
  while (stream->Read(&event)) text += event.delta().text();
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("bytes of it wait for this client, at most 2000"));
  EXPECT_LT(text.size(), 4000u);
  EXPECT_EQ(text, AnswerText(5, static_cast<uint32_t>(text.size()))) << "a prefix, without a hole";
}

// FF-119
TEST_F(RawTest, HealthFollowsTheWorkersAndTheDrain) {
  const std::string serving = "\x08\x01", not_serving = "\x08\x02";
  StartRouter();
  for (const char* service : {"", "baton.v1.Inference", "baton.v1.Cluster"}) {
    EXPECT_EQ(Health(service), not_serving) << service;
  }
  StartWorker();
  for (const char* service : {"", "baton.v1.Inference", "baton.v1.Cluster"}) {
    EXPECT_TRUE(Eventually([&] { return Health(service) == serving; })) << service;
  }
  worker_.reset();
  EXPECT_TRUE(Eventually([&] { return Health("") == not_serving; }));
  StartWorker();
  EXPECT_TRUE(Eventually([&] { return Health("") == serving; }));
  router_->Drain(std::chrono::seconds(10));
  EXPECT_EQ(Health("baton.v1.Inference"), not_serving);
}

TEST_F(RawTest, ReflectionListsEveryService) {
  StartRouter();
  const std::string services =
      Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x01*"));
  EXPECT_THAT(services, HasSubstr("baton.v1.Inference"));
  EXPECT_THAT(services, HasSubstr("baton.v1.Cluster"));
  EXPECT_THAT(services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(RouterServerTest, ADrainLetsWhatRunsFinishAndRefusesWhatComes) {
  StartRouter();
  StartWorker(std::chrono::milliseconds(5));
  Answer running;
  std::thread asking([&] { running = Ask(client_.get(), Prompt("hello", 60)); });
  ASSERT_TRUE(Eventually([&] { return worker_->running() == 1; }));
  std::thread draining([&] { router_->Drain(std::chrono::seconds(60)); });
  CallResult refused;
  EXPECT_TRUE(Eventually([&] {
    refused = Ask(client_.get(), Prompt("late", 1)).result;
    return refused.status.code() == Code::kUnavailable;
  }));
  asking.join();
  draining.join();
  EXPECT_TRUE(running.result.status.ok()) << running.result.status.ToString();
  EXPECT_EQ(running.text.at(0), AnswerText(5, 60));
  EXPECT_EQ(router_->front().live(), 0u);
}

// FF-130
TEST_F(RouterServerTest, AShutdownEndsOpenStreamsWithUnavailable) {
  StartRouter();
  StartWorker(std::chrono::milliseconds(5));
  CallResult result;
  std::thread asking([&] { result = Ask(client_.get(), Prompt("hello", 4000)).result; });
  ASSERT_TRUE(Eventually([&] { return worker_->running() == 1; }));
  router_->Shutdown();
  asking.join();
  EXPECT_EQ(result.status.code(), Code::kUnavailable) << result.status.ToString();
  EXPECT_TRUE(Eventually([&] { return worker_->links_down() == 1 && worker_->running() == 0; }));
}

TEST_F(RouterServerTest, WorkersComeBackToARouterThatRestartsOnItsPort) {
  StartRouter();
  StartWorker();
  for (int restart = 1; restart <= 3; ++restart) {
    RouterServerOptions options = TestOptions(&tokenizer_);
    options.listen = router_->address();
    options.front.self.incarnation.counter = 1 + static_cast<uint64_t>(restart);
    client_.reset();
    router_.reset();
    ASSERT_TRUE(Eventually([&] { return worker_->links_down() == static_cast<uint32_t>(restart); }));
    StartRouter(options);
    ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
    EXPECT_EQ(Ask(client_.get(), Prompt("again", 5)).text[0], AnswerText(5, 5));
  }
  EXPECT_EQ(worker_->links_up(), 4u);
  EXPECT_EQ(worker_->links_down(), 3u);
  EXPECT_FALSE(worker_->link_down_twice());
}

// FF-124
TEST_F(RouterServerTest, ACutConnectionThatNobodyClosedIsNoticedByPingsAndMadeAnew) {
  StartRouter();
  test::TcpProxy proxy(router_->port());
  ScriptedWorker::Options options;
  options.routers = {{proxy.address(), nullptr}};
  options.keepalive = std::chrono::milliseconds(200);
  ScriptedWorker worker(options);
  ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
  proxy.Swallow(true);
  EXPECT_TRUE(Eventually([&] { return worker.links_down() == 1; }));
  EXPECT_TRUE(Eventually([&] { return !router_->front().serving(); })) << "the front misses its heartbeats";
  proxy.Swallow(false);
  EXPECT_TRUE(Eventually([&] { return worker.links_up() == 2 && router_->front().serving(); }));
  EXPECT_EQ(Ask(client_.get(), Prompt("hello", 5)).text[0], AnswerText(5, 5));
}

TEST_F(RouterServerTest, TwoServersNeverShareAPort) {
  StartRouter();
  RouterServerOptions options = TestOptions(&tokenizer_);
  options.listen = router_->address();
  const auto second = RouterServer::Start(options, &clock_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("in use"));
  EXPECT_THAT(second.status().message(), HasSubstr(router_->address()));
  for (const char* bad : {"", "nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x", "1.2.3.4:0"}) {
    options.listen = bad;
    const auto refused = RouterServer::Start(options, &clock_);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.status().message(), HasSubstr("listen")) << bad;
  }
}

TEST_F(RouterServerTest, AnOlderWorkerOfTheSameNameIsToldThatItIsNotWanted) {
  StartRouter();
  ScriptedWorker::Options options;
  options.routers = {{router_->address(), nullptr}};
  options.incarnation = 5;
  ScriptedWorker newer(options);
  ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
  options.incarnation = 4;
  ScriptedWorker older(options);
  EXPECT_TRUE(Eventually([&] { return older.refused().code() == Code::kFailedPrecondition; }));
  EXPECT_EQ(newer.links_down(), 0u);
}

TEST_F(RouterServerTest, ASecondLiveWorkerOfANameIsRefusedAndARestartIsNot) {
  StartRouter();
  ScriptedWorker::Options options;
  options.routers = {{router_->address(), nullptr}};
  auto first = std::make_unique<ScriptedWorker>(options);
  ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
  options.incarnation = 2;
  {
    ScriptedWorker second(options);
    ASSERT_TRUE(Eventually([&] { return second.refused().code() == Code::kFailedPrecondition; }));
    EXPECT_THAT(second.refused().message(), HasSubstr("the name worker belongs to a worker that lives: start 1"));
    EXPECT_THAT(second.refused().message(), HasSubstr(router_->address()));
  }
  EXPECT_EQ(first->links_down(), 0u);
  EXPECT_EQ(Ask(client_.get(), Prompt("hello", 5)).text[0], AnswerText(5, 5));
  first.reset();
  options.incarnation = 3;
  ScriptedWorker third(options);
  ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
  EXPECT_EQ(Ask(client_.get(), Prompt("hello", 5)).text[0], AnswerText(5, 5));
  EXPECT_TRUE(third.refused().ok());
}

TEST_F(RouterServerTest, AWorkerThatSaysOddThingsOfItselfIsToldWhatAndNotDialedAgain) {
  StartRouter();
  ScriptedWorker::Options broken;  // refused by the codec
  broken.routers = {{router_->address(), nullptr}};
  broken.name = "a b";
  ScriptedWorker::Options odd;  // refused by the front
  odd.routers = broken.routers;
  odd.credits = 0;
  for (const auto& [options, words] : {std::pair(broken, "process.name"), std::pair(odd, "room for 0 requests")}) {
    ScriptedWorker worker(options);
    ASSERT_TRUE(Eventually([&] { return !worker.refused().ok(); })) << words;
    EXPECT_EQ(worker.refused().code(), Code::kFailedPrecondition);
    EXPECT_THAT(worker.refused().message(), HasSubstr(words));
  }
}

TEST_F(RouterServerTest, InsideOneProcessEverythingWorksWithoutASocket) {
  StartRouter();
  ScriptedWorker::Options options;
  options.routers = {{"", router_->InProcess()}};
  worker_ = std::make_unique<ScriptedWorker>(options);
  ASSERT_TRUE(Eventually([&] { return router_->front().serving(); }));
  client_ = InferenceClient::Create({"", router_->InProcess()});
  const Answer answer = Ask(client_.get(), Prompt("hello", 30));
  EXPECT_TRUE(answer.result.status.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.text.at(0), AnswerText(5, 30));
  router_->Shutdown();
  EXPECT_TRUE(Eventually([&] { return worker_->links_down() == 1; }));
  EXPECT_EQ(InferenceClient::Create({"", router_->InProcess()})->Cancel("x").code(), Code::kUnavailable);
}

TEST_F(RouterServerTest, TheClusterTheModelsAndTheTokenizerCanBeAskedFor) {
  StartRouter();
  StartWorker();
  Ask(client_.get(), Prompt("hello", 3));
  const auto cluster = client_->GetCluster();
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  EXPECT_EQ(cluster->router, "router#1");
  EXPECT_TRUE(cluster->serving);
  ASSERT_EQ(cluster->workers.size(), 1u);
  EXPECT_EQ(cluster->workers[0].name, "worker");
  EXPECT_EQ(cluster->workers[0].total_blocks, std::vector<uint32_t>{1000});
  EXPECT_TRUE(std::ranges::any_of(cluster->counters, [](const auto& counter) {
    return counter.first == "tokens_delivered" && counter.second == 3;
  }));

  const auto models = client_->ListModels();
  ASSERT_TRUE(models.ok());
  ASSERT_EQ(models->size(), 1u);
  EXPECT_EQ(models->front().name, "tiny");
  EXPECT_EQ(client_->GetModel("none").status().code(), Code::kNotFound);

  const auto ids = client_->Tokenize(Prompt("abc", 1));
  ASSERT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_EQ(*ids, (std::vector<TokenId>{'a', 'b', 'c'}));
  EXPECT_EQ(*client_->Detokenize({'h', 'i', 256}, true), "hi");
  EXPECT_EQ(client_->Detokenize({257}, true).status().code(), Code::kInvalidArgument);
}

TEST_F(RouterServerTest, ManyClientsAtOnceEachGetTheirOwnAnswer) {
  StartRouter();
  StartWorker();
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (size_t i = 1; i <= 32; ++i) {
    clients.emplace_back([&, i] {
      const auto client = InferenceClient::Create({router_->address(), nullptr});
      for (uint32_t round = 0; round < 4; ++round) {
        const Answer answer = Ask(client.get(), Prompt(std::string(i, 'x'), 50));
        const bool good = answer.result.status.ok() && answer.text.at(0) == AnswerText(i, 50);
        right += good;
        EXPECT_TRUE(good) << answer.result.status.ToString();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right.load(), 32 * 4);
  EXPECT_TRUE(Eventually([&] { return worker_->running() == 0; }));
}

}  // namespace
}  // namespace baton
