// Who is let in: certificates between the processes of a cluster, keys at the front door. Real gRPC on free loopback
// ports.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "rpc/front_thread.h"
#include "rpc/inference_client.h"
#include "rpc/router_server.h"
#include "scripted_worker.h"
#include "support/certificates.h"

namespace baton {
namespace {

using test::TestAuthority;
using testing::AnswerText;
using ::testing::AnyOf;
using testing::ByteTokenizer;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::ScriptedWorker;

const std::string kKey = "0123456789abcdef0123456789abcdef";

const TestAuthority& Ours() {
  static const TestAuthority authority;
  return authority;
}
const TestAuthority& Theirs() {
  static const TestAuthority authority;
  return authority;
}

class SecurityTest : public ::testing::Test {
 protected:
  void StartRouter(TlsPems tls, const std::string& keys = "") {
    RouterServerOptions options;
    options.front.self = {"router", {1, 1}};
    options.front.model = testing::TestModel();
    options.front.served_name = "tiny";
    options.front.max_context_tokens = 4096;
    options.model.max_context_tokens = 4096;
    options.tokenizer = &tokenizer_;
    options.tls = std::move(tls);
    if (!keys.empty()) options.api_keys = *ApiKeys::Parse(keys);
    auto started = RouterServer::Start(std::move(options), &clock_);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    router_ = *std::move(started);
  }
  std::unique_ptr<ScriptedWorker> Worker(const std::string& name, TlsPems tls, RoleMask roles = {}) {
    ScriptedWorker::Options options;
    options.name = name;
    options.routers = {{router_->address(), nullptr}};
    options.tls = std::move(tls);
    options.roles = roles;
    return std::make_unique<ScriptedWorker>(options);
  }
  std::unique_ptr<InferenceClient> Client(TlsPems tls, const std::string& key = "") {
    InferenceClient::Options options;
    options.tls = std::move(tls);
    options.api_key = key;
    return InferenceClient::Create({router_->address(), nullptr}, options);
  }
  static ClientRequest Prompt() {
    ClientRequest request;
    request.prompt = TextPrompt{"hello"};
    request.max_tokens = 12;
    request.temperature = 0;
    request.deadline = std::chrono::seconds(10);
    return request;
  }
  static Status Ask(InferenceClient* client, std::string* text = nullptr) {
    return client
        ->Generate(Prompt(),
                   [&](const ClientEvent& event) {
                     if (const auto* delta = std::get_if<Delta>(&event); delta != nullptr && text) *text += delta->text;
                     return true;
                   })
        .status;
  }
  bool ServesSoon() {
    return Eventually([&] { return router_->front().serving(); });
  }

  SteadyClock clock_;
  ByteTokenizer tokenizer_;
  std::unique_ptr<RouterServer> router_;
};

TEST_F(SecurityTest, AClusterWithCertificatesAndKeysAnswersAsOneWithout) {
  StartRouter(Ours().Issue(CertifiedRole::kRouter, "router"), kKey);
  const auto worker = Worker("unified-0", Ours().Issue(CertifiedRole::kUnified, "unified-0"));
  ASSERT_TRUE(ServesSoon());
  std::string text;
  EXPECT_EQ(Ask(Client(Ours().client(), kKey).get(), &text), OkStatus());
  EXPECT_EQ(text, AnswerText(5, 12));
}

TEST_F(SecurityTest, AClientIsRefusedInWordsThatSayWhy) {
  StartRouter(Ours().Issue(CertifiedRole::kRouter, "router"));
  const auto worker = Worker("unified-0", Ours().Issue(CertifiedRole::kUnified, "unified-0"));
  ASSERT_TRUE(ServesSoon());
  EXPECT_EQ(Ask(Client(Ours().client()).get()), OkStatus()) << "no client certificate, no key: none is asked for";
  const auto refusal = [&](TlsPems tls) {
    const Status status = Ask(Client(std::move(tls)).get());
    EXPECT_EQ(status.code(), Code::kUnavailable);
    return status.message();
  };
  EXPECT_THAT(refusal(Theirs().client()), HasSubstr("not of the CA"));
  EXPECT_THAT(refusal({}), HasSubstr("TLS"));
  EXPECT_THAT(refusal(Theirs().Issue(CertifiedRole::kUnified, "unified-0")), HasSubstr("not of the CA"));
}

TEST_F(SecurityTest, AServerThatSpeaksNoTlsIsCalledThat) {
  StartRouter({});
  const Status status = Ask(Client(Ours().client()).get());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("does not speak TLS"));
}

// FF-156
TEST_F(SecurityTest, EveryMethodOfInferenceAndClusterWantsAKeyAndHealthDoesNot) {
  StartRouter({}, kKey);
  const auto worker = Worker("unified-0", {});
  ASSERT_TRUE(ServesSoon());
  for (const std::string& key : {std::string(), std::string("not-the-key-of-this-server")}) {
    const auto client = Client({}, key);
    ClientRequest prompt = Prompt();
    const std::vector<std::pair<const char*, Status>> calls = {
        {"Generate", Ask(client.get())},
        {"Complete", client->Complete(prompt).status()},
        {"Tokenize", client->Tokenize(prompt).status()},
        {"Detokenize", client->Detokenize({1}, false).status()},
        {"Cancel", client->Cancel("x")},
        {"ListModels", client->ListModels().status()},
        {"GetModel", client->GetModel("tiny").status()},
        {"GetCluster", client->GetCluster().status()},
        {"WatchCluster",
         client->WatchCluster(std::chrono::seconds(1), [](const ClusterDescription&) { return false; })},
        {"Drain", client->Drain({.worker = "unified-0"}, {}).status()},
        {"SetRole", client->SetRole({.worker = "unified-0"}).status()},
    };
    for (const auto& [method, status] : calls) {
      EXPECT_EQ(status.code(), Code::kUnauthenticated) << method << ": " << status.ToString();
      EXPECT_THAT(status.message(), HasSubstr(key.empty() ? "an API key is needed" : "not known here")) << method;
    }
  }
  EXPECT_TRUE(Client({}, kKey)->GetCluster().ok());

  grpc::GenericStub stub(grpc::CreateChannel(router_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::ByteBuffer nothing, answer;
  grpc::Slice empty;
  nothing = grpc::ByteBuffer(&empty, 1);
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", nothing, &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(SecurityTest, AClientsKeyAsksAndAnOperatorsKeyAlsoOperates) {
  const std::string operators = "of-an-operator-of-this-cluster";
  StartRouter({}, kKey + "\noperator " + operators);
  const auto worker = Worker("unified-0", {});
  ASSERT_TRUE(ServesSoon());
  const auto asks = Client({}, kKey), operates = Client({}, operators);
  EXPECT_EQ(Ask(asks.get()), OkStatus());
  EXPECT_EQ(Ask(operates.get()), OkStatus());
  EXPECT_TRUE(operates->GetCluster().ok());
  EXPECT_EQ(asks->GetCluster().status().code(), Code::kPermissionDenied);
  EXPECT_EQ(asks->Drain({.worker = "unified-0"}, {}).status().code(), Code::kPermissionDenied);
  EXPECT_FALSE(operates->GetCluster()->workers[0].draining);
}

TEST_F(SecurityTest, NoOrderMakesAWorkerMoreThanItsCertificateAllows) {
  StartRouter(Ours().Issue(CertifiedRole::kRouter, "router"));
  const auto decode = Worker("decode-0", Ours().Issue(CertifiedRole::kDecode, "decode-0"), {false, true});
  ASSERT_TRUE(ServesSoon());
  const auto client = Client(Ours().client());
  for (const RoleMask roles : {RoleMask{true, true}, RoleMask{true, false}}) {
    const Status status = client->SetRole({.worker = "decode-0", .roles = roles, .force = true}).status();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("its certificate is that of a decode worker"));
  }
  EXPECT_TRUE(router_->front().serving());
}

TEST_F(SecurityTest, AWorkerOfAnotherCaOrAnotherTimeNeverReachesTheRouter) {
  StartRouter(Ours().Issue(CertifiedRole::kRouter, "router"));
  // Each trusts the router, so that it is the router that refuses.
  TlsPems foreign = Theirs().Issue(CertifiedRole::kUnified, "unified-0");
  foreign.ca = Ours().client().ca;
  const auto stranger = Worker("unified-0", foreign);
  const auto expired = Worker("unified-1", Ours().Issue(CertifiedRole::kUnified, "unified-1", test::Expired()));
  const auto plain = Worker("unified-2", {});
  const auto distrustful = Worker("unified-3", Theirs().Issue(CertifiedRole::kUnified, "unified-3"));
  const auto member = Worker("unified-4", Ours().Issue(CertifiedRole::kUnified, "unified-4"));
  ASSERT_TRUE(ServesSoon());
  const auto cluster = Client(Ours().client())->GetCluster();
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  ASSERT_EQ(cluster->workers.size(), 1u);
  EXPECT_EQ(cluster->workers[0].name, "unified-4");
  for (const ScriptedWorker* worker : {stranger.get(), expired.get(), plain.get(), distrustful.get()}) {
    EXPECT_EQ(worker->links_up(), 0u);
  }
}

TEST_F(SecurityTest, AWorkerIsRefusedForGoodUnderANameOrInARoleThatIsNotItsCertificates) {
  StartRouter(Ours().Issue(CertifiedRole::kRouter, "router"));
  const auto other_name = Worker("unified-0", Ours().Issue(CertifiedRole::kUnified, "unified-7"));
  const auto more_roles = Worker("decode-0", Ours().Issue(CertifiedRole::kDecode, "decode-0"), {true, true});
  const auto a_router = Worker("router", Ours().Issue(CertifiedRole::kRouter, "router"));
  ASSERT_TRUE(Eventually(
      [&] { return !other_name->refused().ok() && !more_roles->refused().ok() && !a_router->refused().ok(); }));
  EXPECT_THAT(other_name->refused().message(),
              HasSubstr("unified-0, but its certificate is that of unified unified-7"));
  EXPECT_THAT(more_roles->refused().message(),
              HasSubstr("prefill is not for decode-0: its certificate is that of decode decode-0"));
  EXPECT_THAT(a_router->refused().message(), HasSubstr("prefill is not for router"));
  EXPECT_FALSE(router_->front().serving());
}

// What is logged while it lives.
class LogWatch {
 public:
  LogWatch() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("watched", sink_));
  }
  ~LogWatch() { spdlog::set_default_logger(before_); }
  bool Has(const std::string& text) { return sink_->Has(text); }

 private:
  class Sink : public spdlog::sinks::base_sink<std::mutex> {
   public:
    bool Has(const std::string& text) {
      const std::lock_guard lock(mutex_);
      return lines_.find(text) != std::string::npos;
    }

   protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
      lines_.append(message.payload.data(), message.payload.size()).push_back('\n');
    }
    void flush_() override {}

   private:
    std::string lines_;
  };
  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  const std::shared_ptr<spdlog::logger> before_;
};

TEST_F(SecurityTest, AWorkerServesNoRouterWhoseCertificateIsNotARouters) {
  LogWatch log;
  StartRouter(Ours().Issue(CertifiedRole::kDecode, "router"));
  const auto worker = Worker("unified-0", Ours().Issue(CertifiedRole::kUnified, "unified-0"));
  EXPECT_TRUE(
      Eventually([&] { return log.Has("a router is expected, but the certificate is that of decode router"); }));
  EXPECT_EQ(worker->links_up(), 0u);
}

TEST_F(SecurityTest, AWorkerLeavesARouterThatSaysAnotherNameThanItsCertificate) {
  StartRouter(Ours().Issue(CertifiedRole::kRouter, "router-9"));  // in its hello it is "router"
  const auto worker = Worker("unified-0", Ours().Issue(CertifiedRole::kUnified, "unified-0"));
  EXPECT_TRUE(Eventually([&] { return worker->links_down() > 0; }));
}

TEST_F(SecurityTest, WithoutACaAServerWithTlsTakesNoWorkerFromOutside) {
  TlsPems server = Ours().Issue(CertifiedRole::kRouter, "router");
  server.ca.clear();
  StartRouter(server);
  const auto worker = Worker("unified-0", Ours().Issue(CertifiedRole::kUnified, "unified-0"));
  ScriptedWorker::Options inside;
  inside.name = "unified-1";
  inside.routers = {{"", router_->InProcess()}};
  const ScriptedWorker own(inside);
  ASSERT_TRUE(ServesSoon());
  std::string text;
  EXPECT_EQ(Ask(Client(Ours().client()).get(), &text), OkStatus());
  EXPECT_EQ(text, AnswerText(5, 12));
  EXPECT_EQ(Client(Ours().client())->GetCluster()->workers.size(), 1u);
}

// ---- pair sessions ----------------------------------------------------------------------------------------

struct Node {
  explicit Node(TlsPems tls) : mailbox(1000, 1000) {
    WorkerNetworkOptions options;
    options.tls = std::move(tls);
    auto listening = WorkerNetwork::Listen(std::move(options));
    BATON_CHECK(listening.ok(), listening.status().message());
    network = *std::move(listening);
    network->Start(&mailbox, {});
  }
  template <typename T>
  std::vector<T> Got() {
    mailbox.Drain(&got, std::chrono::nanoseconds(0));
    std::vector<T> out;
    for (const EngineCommand& command : got) {
      if (const auto* value = std::get_if<T>(&command)) out.push_back(*value);
    }
    return out;
  }
  void Dial(const Node& peer, const std::string& name) {
    Outbox out;
    out.dial.push_back({LinkId{1}, {{name, {1, 1}}, peer.network->pair_address()}});
    network->Deliver(std::move(out));
  }
  void Hello(const std::string& writer, const std::string& reader) {
    PairHello hello;
    hello.writer = {writer, {1, 1}};
    hello.reader = {reader, {1, 1}};
    hello.model = testing::TestModel();
    hello.layout = testing::TestLayout();
    Say(hello);
  }
  void Say(PairMessage message) {
    Outbox out;
    out.to_peers.emplace_back(LinkId{1}, std::move(message));
    network->Deliver(std::move(out));
  }
  Status WhyDown() {
    EXPECT_TRUE(Eventually([&] { return !Got<LinkDown>().empty(); }));
    const auto down = Got<LinkDown>();
    return down.empty() ? OkStatus() : down[0].why;
  }

  Mailbox<EngineCommand> mailbox;
  std::vector<EngineCommand> got;
  std::unique_ptr<WorkerNetwork> network;
};

TEST(PairSecurityTest, AWriterOfTheClusterSaysHelloUnderItsOwnNameAlone) {
  Node reader(Ours().Issue(CertifiedRole::kDecode, "decode-0"));
  Node writer(Ours().Issue(CertifiedRole::kPrefill, "prefill-0"));
  writer.Dial(reader, "decode-0");
  ASSERT_TRUE(Eventually([&] { return !writer.Got<LinkUp>().empty(); }));
  writer.Hello("prefill-0", "decode-0");
  ASSERT_TRUE(Eventually([&] { return reader.Got<FromPeer>().size() == 1; }));
  EXPECT_TRUE(std::holds_alternative<PairHello>(reader.Got<FromPeer>()[0].message));

  writer.Hello("prefill-1", "decode-0");
  const Status why = writer.WhyDown();
  EXPECT_EQ(why.code(), Code::kPermissionDenied);
  EXPECT_THAT(why.message(),
              HasSubstr("writer prefill-1 is expected, but the certificate is that of prefill prefill-0"));
  EXPECT_EQ(reader.Got<FromPeer>().size(), 1u) << "the engine never saw it";
}

Reserve SomeReserve(bool migration) {
  Reserve reserve;
  auto request = std::make_shared<Request>();
  request->id = {1, 2, 0};
  request->prompt = {1, 2, 3};
  reserve.child = request->id;
  reserve.epoch = 2;
  reserve.request = std::move(request);
  reserve.num_tokens = 3;
  reserve.migration = migration;
  return reserve;
}

TEST(PairSecurityTest, ADecodeCertificateHandsOverWhatItDecodesAndNoPrompt) {
  Node reader(Ours().Issue(CertifiedRole::kDecode, "decode-0"));
  Node decode(Ours().Issue(CertifiedRole::kDecode, "decode-1"));
  decode.Dial(reader, "decode-0");
  ASSERT_TRUE(Eventually([&] { return decode.Got<LinkUp>().size() == 1; }));
  decode.Hello("decode-1", "decode-0");
  decode.Say(SomeReserve(/*migration=*/true));
  ASSERT_TRUE(Eventually([&] { return reader.Got<FromPeer>().size() == 2; }));
  EXPECT_TRUE(std::get<Reserve>(reader.Got<FromPeer>()[1].message).migration);

  decode.Say(SomeReserve(/*migration=*/false));
  const Status why = decode.WhyDown();
  EXPECT_EQ(why.code(), Code::kPermissionDenied);
  EXPECT_THAT(why.message(),
              HasSubstr("a writer of prompts is expected, but the certificate is that of decode decode-1"));
  EXPECT_EQ(reader.Got<FromPeer>().size(), 2u) << "the engine never saw it";
}

TEST(PairSecurityTest, ARouterWritesToNobodyAndAnyWorkerMay) {
  Node reader(Ours().Issue(CertifiedRole::kDecode, "decode-0"));
  Node router(Ours().Issue(CertifiedRole::kRouter, "router"));
  Node unified(Ours().Issue(CertifiedRole::kUnified, "unified-0"));
  router.Dial(reader, "decode-0");
  unified.Dial(reader, "decode-0");
  const Status why = router.WhyDown();
  EXPECT_EQ(why.code(), Code::kPermissionDenied);
  EXPECT_THAT(why.message(), HasSubstr("a writer is expected, but the certificate is that of router router"));
  EXPECT_TRUE(Eventually([&] { return unified.Got<LinkUp>().size() == 1 && reader.Got<LinkUp>().size() == 1; }));
  EXPECT_TRUE(router.Got<LinkUp>().empty());
  unified.Hello("unified-0", "decode-0");
  unified.Say(SomeReserve(/*migration=*/false));
  EXPECT_TRUE(Eventually([&] { return reader.Got<FromPeer>().size() == 2; }));
}

TEST(PairSecurityTest, AWriterGivesItsKvToTheWorkerThatItWasToldAndToNoOther) {
  Node prefill(Ours().Issue(CertifiedRole::kPrefill, "prefill-1"));
  Node reader(Ours().Issue(CertifiedRole::kDecode, "decode-0"));
  for (const auto& [peer, name] : {std::pair{&reader, "decode-7"}, std::pair{&prefill, "prefill-1"}}) {
    Node writer(Ours().Issue(CertifiedRole::kPrefill, "prefill-0"));
    writer.Dial(*peer, name);
    const Status why = writer.WhyDown();
    EXPECT_THAT(why.message(), AnyOf(HasSubstr("does not name"), HasSubstr("decode worker prefill-1 is expected")));
    EXPECT_TRUE(writer.Got<LinkUp>().empty());
  }
}

// FF-148
TEST(PairSecurityTest, WhoIsNotOfTheClusterOpensNoPairSession) {
  Node reader(Ours().Issue(CertifiedRole::kDecode, "decode-0"));
  TlsPems foreign = Theirs().Issue(CertifiedRole::kPrefill, "prefill-0");
  foreign.ca = Ours().client().ca;
  Node stranger(foreign);
  Node expired(Ours().Issue(CertifiedRole::kPrefill, "prefill-1", test::Expired()));
  Node nameless(Ours().client());
  Node plain(TlsPems{});
  for (Node* node : {&stranger, &expired, &nameless, &plain}) {
    node->Dial(reader, "decode-0");
    EXPECT_FALSE(node->WhyDown().ok());
    EXPECT_TRUE(node->Got<LinkUp>().empty());
  }
  EXPECT_TRUE(reader.Got<LinkUp>().empty());
}

}  // namespace
}  // namespace baton
