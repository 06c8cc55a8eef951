// TLS and keys on real processes: a cluster that has them answers as one that does not, and whoever lacks them is told
// in one line.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>

#include "cluster.h"
#include "support/certificates.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;

const std::string kKey = "0123456789abcdef0123456789abcdef";

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

// Certificates of one `baton certs`, a key file, and the binary to ask with.
class SecurityProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(Run({"certs", certs_}).code, 0);
    WriteFile(keys_, kKey + "\n");
  }
  struct Outcome {
    int code = -1;
    std::string out, err;
  };
  Outcome Run(std::vector<std::string> arguments,
              const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    arguments.insert(arguments.begin(), BATON_BINARY);
    Process process(folder_, arguments, environment);
    const auto code = process.Wait(milliseconds(60'000));
    return {code.value_or(-1), process.out(), process.err()};
  }
  std::vector<std::string> TlsOptions(const std::string& certs) {
    return {"--tls-ca", certs + "/ca.crt", "--tls-cert", certs + "/{name}.crt", "--tls-key", certs + "/{name}.key"};
  }
  ClusterShape Secured(int prefill, int decode) {
    ClusterShape shape{.prefill = prefill, .decode = decode};
    shape.more = TlsOptions(certs_);
    shape.more.insert(shape.more.end(), {"--api-keys", keys_});
    shape.client.tls.ca = ReadWhole(certs_ + "/ca.crt");
    shape.client.api_key = kKey;
    return shape;
  }
  // One line, which says this.
  static void ExpectOneLine(const Outcome& outcome, int code, const std::string& message) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }

  ScratchFolder folder_;
  const std::string certs_ = folder_.path() + "/certs";
  const std::string keys_ = folder_.path() + "/keys";
};

TEST_F(SecurityProcessTest, AnAnswerIsThatOfAClusterWithoutAndWhoLacksWhatIsNeededIsToldInOneLine) {
  ClientRequest request = GreedyIds(RandomPrompt(31, 100), 24);
  request.placement = PlacementHint::kDisaggregated;
  std::vector<TokenId> expected;
  {
    Cluster open({.prefill = 1, .decode = 1});
    const Answer answer = Ask(open.Client().get(), request);
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    expected = answer.ids;
    open.StopInOrder();
  }
  ClusterShape shape = Secured(1, 1);
  shape.transport = "grpc";
  Cluster cluster(shape);
  const Answer answer = Ask(cluster.Client().get(), request);
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_TRUE(answer.done.timings.disaggregated) << "KV went from one process to the other";
  EXPECT_EQ(answer.done.timings.retries, 0u);

  const std::string ca = certs_ + "/ca.crt", other = folder_.path() + "/other";
  ASSERT_EQ(Run({"certs", other}).code, 0);
  const auto ask = [&](std::vector<std::string> options, const std::string& key) {
    std::vector<std::string> arguments = {"complete", "--ids",    "5,6,7",          "--max-tokens",
                                          "2",        "--server", cluster.address()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return Run(arguments, {{"BATON_API_KEY", key}});
  };
  EXPECT_EQ(ask({"--tls-ca", ca}, kKey).code, 0);
  ExpectOneLine(ask({"--tls-ca", ca}, ""), 1, "UNAUTHENTICATED: an API key is needed");
  ExpectOneLine(ask({"--tls-ca", ca}, "some-other-key-of-somebody"), 1,
                "UNAUTHENTICATED: this API key is not known here");
  ExpectOneLine(ask({}, kKey), 1, "does it speak TLS? --tls-ca FILE asks for it");
  ExpectOneLine(ask({"--tls-ca", other + "/ca.crt"}, kKey), 1, "certificate is not of the CA that is trusted here");

  // Processes that want to join: refused at their own start where they can know, else by the router.
  const auto join = [&](const std::string& role, const std::string& name, const std::vector<std::string>& tls) {
    std::vector<std::string> arguments = {role,          TinyModel(), "--router",    cluster.address(),
                                          "--name",      name,        "--state-dir", folder_.path(),
                                          "--kv-memory", "16MiB",     "--log-level", "warn"};
    arguments.insert(arguments.end(), tls.begin(), tls.end());
    return arguments;
  };
  std::vector<std::string> borrowed = {
      "--tls-ca", ca, "--tls-cert", certs_ + "/decode-0.crt", "--tls-key", certs_ + "/decode-0.key"};
  ExpectOneLine(Run(join("decode", "decode-5", borrowed)), 2, "that of decode decode-0, but this process is decode-5");
  const TestAuthority authority;
  const TlsPems old = authority.Issue(CertifiedRole::kDecode, "decode-5", Expired());
  WriteFile(other + "/old-ca.crt", old.ca);
  WriteFile(other + "/decode-5.crt", old.certificate);
  WriteFile(other + "/decode-5.key", old.key);
  const std::vector<std::string> expired = {"--tls-ca",  other + "/old-ca.crt",  "--tls-cert", other + "/decode-5.crt",
                                            "--tls-key", other + "/decode-5.key"};
  ExpectOneLine(Run(join("decode", "decode-5", expired)), 2, "decode-5.crt: the certificate has expired on ");

  const auto says = [&](const std::vector<std::string>& arguments, const std::string& message) {
    std::vector<std::string> all = arguments;
    all.insert(all.begin(), BATON_BINARY);
    Process worker(folder_, all);
    EXPECT_TRUE(Eventually(milliseconds(30'000), [&] { return worker.err().find(message) != std::string::npos; }))
        << worker.err();
    worker.Signal(SIGTERM);
    EXPECT_EQ(worker.Wait(milliseconds(20'000)).value_or(-1), 0);
    const std::string err = worker.err();
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  };
  says(join("decode", "decode-0", TlsOptions(other)), "certificate is not of the CA that is trusted here");
  std::vector<std::string> foreign = TlsOptions(other);
  WriteFile(other + "/both.crt", ReadWhole(other + "/ca.crt") + ReadWhole(ca));
  foreign[1] = other + "/both.crt";  // trusts the router, and is not trusted by it
  says(join("decode", "decode-0", foreign), "the certificate shown to it may not be of its CA, or out of date");
  says(join("decode", "decode-0", {}), "does it speak TLS?");

  const auto state = cluster.Client()->GetCluster();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->workers.size(), 2u);
  for (const WorkerDescription& worker : state->workers) EXPECT_EQ(worker.transport, "grpc") << worker.name;
  EXPECT_TRUE(cluster.BecomesIdle());
  EXPECT_EQ(cluster.Log().find(kKey), std::string::npos) << "a key was logged";
  cluster.StopInOrder();
}

TEST_F(SecurityProcessTest, OneProcessServesTlsToClientsWithoutACaOfItsOwn) {
  ClusterShape shape;
  shape.more = {"--tls-cert", certs_ + "/{name}.crt", "--tls-key", certs_ + "/{name}.key", "--api-keys", keys_};
  shape.client.tls.ca = ReadWhole(certs_ + "/ca.crt");
  shape.client.api_key = kKey;
  Cluster cluster(shape);
  EXPECT_TRUE(Ask(cluster.Client().get(), GreedyIds({5, 6, 7}, 4)).ok());
  std::vector<std::string> worker = {"unified",     TinyModel(), "--router",    cluster.address(),
                                     "--name",      "unified-0", "--state-dir", folder_.path(),
                                     "--kv-memory", "16MiB",     "--log-level", "warn"};
  const std::vector<std::string> tls = {"--tls-ca",  certs_ + "/ca.crt",       "--tls-cert", certs_ + "/unified-0.crt",
                                        "--tls-key", certs_ + "/unified-0.key"};
  worker.insert(worker.end(), tls.begin(), tls.end());
  worker.insert(worker.begin(), BATON_BINARY);
  Process outside(folder_, worker);
  EXPECT_TRUE(Eventually(milliseconds(30'000), [&] {
    return outside.err().find("that of unified unified-0") != std::string::npos ||
           outside.err().find("a certificate of the cluster's CA is needed here") != std::string::npos;
  })) << outside.err();
  EXPECT_EQ(cluster.Client()->GetCluster()->workers.size(), 1u);
  cluster.StopInOrder();
}

}  // namespace
}  // namespace baton::test
