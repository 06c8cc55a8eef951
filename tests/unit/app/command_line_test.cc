// The binary as a user meets it: exit codes, and one clear line for what is wrong.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "app/tls.h"
#include "credentials/issue.h"
#include "support/process.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using test::Process;
using test::ScratchFolder;
using ::testing::HasSubstr;

const std::string kTiny = std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/tiny-f32.gguf";

struct Outcome {
  int code = -1;
  std::string out, err;
};
using Variables = std::vector<std::pair<std::string, std::string>>;

class CommandLineTest : public ::testing::Test {
 protected:
  Outcome Run(std::vector<std::string> arguments, const Variables& environment = {}, const std::string& input = "") {
    arguments.insert(arguments.begin(), BATON_BINARY);
    Process process(folder_, arguments, environment, input);
    const auto code = process.Wait(milliseconds(30'000));
    return {code.value_or(-1), process.out(), process.err()};
  }
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << content;
    return folder_.path() + "/" + name;
  }
  void ExpectRefused(const Outcome& outcome, const std::string& message) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  ScratchFolder folder_;
};

TEST_F(CommandLineTest, HelpNamesEverySubcommandAndEndsWithZero) {
  const Outcome help = Run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"up", "router", "prefill", "decode", "unified", "chat", "complete", "tokenize", "detokenize",
                           "model", "certs", "doctor"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + name));
  }
  const Outcome up = Run({"up", "--help"});
  EXPECT_EQ(up.code, 0);
  for (const char* text : {"--listen", "--kv-memory", "default 32", "--insecure-listen"})
    EXPECT_THAT(up.out, HasSubstr(text));
  EXPECT_EQ(up.out.find("--status-fd"), std::string::npos);
}

TEST_F(CommandLineTest, BadUsageEndsWithTwoAndOneClearLine) {
  ExpectRefused(Run({"up", kTiny, "--no-such-flag"}), "--no-such-flag");
  ExpectRefused(Run({"no-such-command"}), "no-such-command");
  ExpectRefused(Run({}), "subcommand");
  ExpectRefused(Run({"up"}), "a MODEL is needed");
  ExpectRefused(Run({"up", kTiny, "--threads", "x"}), "--threads: 'x' is not a whole number");
  ExpectRefused(Run({"up", kTiny, "--listen", "nonsense"}), "--listen");
  ExpectRefused(Run({"up", kTiny, "--listen", "0.0.0.0:1"}), "--insecure-listen");
  ExpectRefused(Run({"up", kTiny, "--config", folder_.path() + "/none.toml"}), "cannot be read");
  ExpectRefused(Run({"up", kTiny}, {{"BATON_THREADS", "x"}}), "BATON_THREADS: 'x' is not a whole number");
  ExpectRefused(Run({"bench"}), "bench does not exist yet");
  ExpectRefused(Run({"up", kTiny, "--max-context", "100000", "--state-dir", folder_.path()}),
                "the model's own limit is 512");
  ExpectRefused(Run({"up", kTiny, "--max-context", "1"}), "2 is the least");
  ExpectRefused(Run({"up", kTiny, "--config", folder_.path()}), "cannot be read");
  ExpectRefused(Run({"tokenize", kTiny, "--batch", folder_.path()}), "cannot be read");
  ExpectRefused(Run({"complete", "text", "--ids", "5,6"}), "not both");
  ExpectRefused(Run({"complete", "--ids", ""}), "--ids");
  ExpectRefused(Run({"complete", "--ids", "5,,6"}), "--ids");
  ExpectRefused(Run({"up", kTiny, "--memory", "1MiB", "--state-dir", folder_.path()}), "does not fit");
}

// FF-146
TEST_F(CommandLineTest, AMissingOrCorruptModelEndsWithTwoAndNamesTheFile) {
  const std::string corrupt = Write("corrupt.gguf", "GGUF this is not");
  const std::string cut = Write("cut.gguf", test::ReadWhole(kTiny).substr(0, 100'000));
  for (const std::string& path : {folder_.path() + "/none.gguf", corrupt, cut}) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"up", path},
                                                    {"up", path, "--prefill", "1", "--decode", "1"},
                                                    {"router", path},
                                                    {"decode", path},
                                                    {"tokenize", path, "x"},
                                                    {"model", "inspect", path}}) {
      ExpectRefused(Run(command), path);
    }
  }
}

TEST_F(CommandLineTest, APortInUseEndsWithTwo) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  ExpectRefused(Run({"up", kTiny, "--listen", where, "--state-dir", folder_.path()}), where);
  ExpectRefused(Run({"router", kTiny, "--listen", where, "--state-dir", folder_.path()}), where);
  ExpectRefused(Run({"decode", kTiny, "--listen", where, "--state-dir", folder_.path()}), where);
  const Outcome up =
      Run({"up", kTiny, "--prefill", "1", "--decode", "1", "--listen", where, "--state-dir", folder_.path()});
  EXPECT_EQ(up.code, 2);
  EXPECT_THAT(up.err, HasSubstr(where));
  close(taken);
}

TEST_F(CommandLineTest, AServerThatIsNotThereEndsWithOne) {
  const Outcome outcome = Run({"chat", "--server", "127.0.0.1:1", "--message", "hello", "--timeout", "2s"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(outcome.err, HasSubstr("`baton up MODEL` starts one"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(Run({"complete", "x", "--server", "127.0.0.1:1", "--timeout", "2s"}).err, HasSubstr("baton up MODEL"));
}

TEST_F(CommandLineTest, ACacheOfFewerThanFourBlocksIsRefusedWithTheLeast) {
  const Outcome outcome =
      Run({"up", kTiny, "--kv-memory", "1KiB", "--listen", "127.0.0.1:0", "--state-dir", folder_.path()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("bytes is the least, 4 blocks of 32 tokens"));
}

TEST_F(CommandLineTest, OutputThatCannotBeWrittenEndsWithOneAndSaysSo) {
  for (const std::string& command : {"tokenize '" + kTiny + "' x", "detokenize '" + kTiny + "' 5",
                                     "model inspect '" + kTiny + "'", std::string("--help"), std::string("--version"),
                                     std::string("up --help"), "up '" + kTiny + "' --print-config"}) {
    Process process(folder_, {"/bin/sh", "-c", "exec '" BATON_BINARY "' " + command + " > /dev/full"});
    EXPECT_EQ(process.Wait(milliseconds(30'000)).value_or(-1), 1) << command;
    EXPECT_THAT(process.err(), HasSubstr("cannot write to standard output")) << command;
  }
}

TEST_F(CommandLineTest, AnEmptyMessageIsAMessage) {
  const Outcome outcome = Run({"chat", "--server", "127.0.0.1:1", "--message", "", "--timeout", "2s"}, {}, "");
  EXPECT_EQ(outcome.code, 1) << "standard input, which is empty, would have ended with 0";
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1:1"));
}

TEST_F(CommandLineTest, AWorkerSaysThatItsRouterIsNotThereAndDrainsAtTheFirstSignal) {
  Process process(folder_, {BATON_BINARY, "unified", kTiny, "--router", "127.0.0.1:1", "--state-dir", folder_.path(),
                            "--kv-memory", "16MiB", "--threads", "1"});
  ASSERT_TRUE(test::Eventually(milliseconds(20'000), [&] {
    return process.err().find("127.0.0.1:1 cannot be reached") != std::string::npos;
  })) << process.err();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(milliseconds(20'000)).value_or(-1), 0);
  EXPECT_THAT(process.err(), HasSubstr("draining, at most 5 s; a second signal ends it at once"));
}

TEST_F(CommandLineTest, PrintConfigShowsEveryValueWithItsOriginAndReadsBack) {
  const std::string file = Write("baton.toml", "max-running = 9\nthreads = 2\n");
  const Outcome printed =
      Run({"up", kTiny, "--config", file, "--max-queue", "3", "--print-config"}, {{"BATON_THREADS", "1"}});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, ::testing::ContainsRegex("max-running = 9 +# .*baton.toml\n"));
  EXPECT_THAT(printed.out, ::testing::ContainsRegex("threads = 1 +# environment: BATON_THREADS\n"));
  EXPECT_THAT(printed.out, ::testing::ContainsRegex("max-queue = 3 +# flag\n"));
  EXPECT_THAT(printed.out, ::testing::ContainsRegex("block-tokens = .32. +# default\n"));
  const Outcome again = Run({"up", "--config", Write("again.toml", printed.out), "--print-config"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("max-queue = 3 "));
}

TEST_F(CommandLineTest, PrintConfigIsAnActionInTheEnvironmentTooAndNoKeyOfAFile) {
  const Outcome printed = Run({"up", kTiny}, {{"BATON_PRINT_CONFIG", "1"}});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("max-running = 64 "));
  EXPECT_EQ(Run({"up", kTiny, "--print-config"}, {{"BATON_PRINT_CONFIG", "false"}}).out, printed.out);
  ExpectRefused(Run({"up", kTiny}, {{"BATON_PRINT_CONFIG", "maybe"}}), "BATON_PRINT_CONFIG: 'maybe'");
  ExpectRefused(Run({"up", kTiny, "--config", Write("a.toml", "print-config = true\n")}),
                "print-config is no key of a file; give it as --print-config or BATON_PRINT_CONFIG");
}

TEST_F(CommandLineTest, CertsMakesOneCaAndACertificateForEachProcessWithKeysForTheOwnerAlone) {
  const std::string folder = folder_.path() + "/certs";
  const Outcome made = Run({"certs", folder, "--hosts", "10.1.2.3,gpu.example", "--names",
                            "router,cluster.prefill-0,decode-12,alpha=unified", "--days", "7"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::vector<std::pair<const char*, CertifiedRole>> processes = {{"router", CertifiedRole::kRouter},
                                                                        {"cluster.prefill-0", CertifiedRole::kPrefill},
                                                                        {"decode-12", CertifiedRole::kDecode},
                                                                        {"alpha", CertifiedRole::kUnified}};
  const std::string ca = test::ReadWhole(folder + "/ca.crt");
  const std::time_t now = std::time(nullptr);
  for (const auto& [name, role] : processes) {
    const std::string certificate = test::ReadWhole(folder + "/" + name + ".crt");
    EXPECT_EQ(CheckCertificate(certificate, now), OkStatus()) << name;
    EXPECT_EQ(CheckIssuer(certificate, ca, now), OkStatus()) << name;
    EXPECT_EQ(CheckKey(test::ReadWhole(folder + "/" + name + ".key"), certificate), OkStatus()) << name;
    EXPECT_EQ(*IdentityOf(certificate), (CertifiedProcess{role, name}));
    EXPECT_LE(*NotAfter(certificate), now + 7 * 24 * 3600);
    EXPECT_THAT(made.out, HasSubstr(name));
  }
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const auto mode = file.status().permissions() & std::filesystem::perms::mask;
    if (file.path().extension() != ".key") continue;
    EXPECT_EQ(mode, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write) << file.path();
  }

  // Again: nothing is overwritten, nothing half done; with another name the same CA signs.
  ExpectRefused(Run({"certs", folder, "--names", "decode-13,router"}), folder + "/router.crt is there already");
  EXPECT_FALSE(std::filesystem::exists(folder + "/decode-13.crt"));
  EXPECT_EQ(Run({"certs", folder, "--names", "decode-13"}).code, 0);
  EXPECT_EQ(test::ReadWhole(folder + "/ca.crt"), ca);
  EXPECT_EQ(CheckIssuer(test::ReadWhole(folder + "/decode-13.crt"), ca, now), OkStatus());

  ExpectRefused(Run({"certs", folder, "--names", "gpu7"}), "which role has 'gpu7'? gpu7=prefill");
  ExpectRefused(Run({"certs", folder, "--names", "gpu7=king"}), "which role has 'gpu7'?");
  ExpectRefused(Run({"certs", folder, "--names", "a/b=decode"}), "'a/b'");
  ExpectRefused(Run({"certs", folder, "--names", "ca=router"}), "'ca' is taken");
  ExpectRefused(Run({"certs", folder, "--names", "decode-20", "--hosts", "a b"}), "'a b' is neither");
  ExpectRefused(Run({"certs", folder, "--days", "0"}), "--days");
  ExpectRefused(Run({"certs"}), "folder is required");
  std::filesystem::remove(folder + "/ca.key");
  ExpectRefused(Run({"certs", folder, "--names", "decode-21"}), "ca.crt but no " + folder + "/ca.key");
}

TEST_F(CommandLineTest, CertificatesAndKeysThatCannotWorkEndWithTwoBeforeAPortIsOpened) {
  const std::string certs = folder_.path() + "/certs", other = folder_.path() + "/other";
  ASSERT_EQ(Run({"certs", certs}).code, 0);
  ASSERT_EQ(Run({"certs", other}).code, 0);
  const auto expect = [&](const std::string& command, std::vector<std::string> options, const std::string& message) {
    std::vector<std::string> arguments = {command, kTiny, "--listen", "127.0.0.1:0", "--state-dir", folder_.path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    ExpectRefused(Run(arguments), message);
  };
  const std::string ca = certs + "/ca.crt", mine = certs + "/{name}.crt", key = certs + "/{name}.key";
  expect("decode", {"--tls-ca", ca, "--tls-cert", certs + "/none.crt", "--tls-key", key},
         certs + "/none.crt: cannot be");
  expect("decode", {"--tls-ca", ca, "--tls-cert", mine, "--tls-key", key, "--name", "decode-7"},
         "decode-7.crt: cannot be");
  expect("decode",
         {"--tls-ca", ca, "--tls-cert", certs + "/decode-0.crt", "--tls-key", certs + "/decode-0.key", "--name",
          "decode-7"},
         "the certificate is that of decode decode-0, but this process is decode-7");
  expect("prefill", {"--tls-ca", ca, "--tls-cert", mine, "--tls-key", key, "--name", "decode-0"},
         "that of decode decode-0, which may not run as prefill");
  expect("router", {"--tls-ca", ca, "--tls-cert", mine, "--tls-key", key, "--name", "unified-0"},
         "which may not run as router");
  expect("decode", {"--tls-ca", other + "/ca.crt", "--tls-cert", mine, "--tls-key", key, "--name", "decode-0"},
         "not one of this CA's");
  expect("decode", {"--tls-ca", ca, "--tls-cert", mine, "--tls-key", other + "/{name}.key", "--name", "decode-0"},
         "not that of the certificate");
  expect("up", {"--tls-cert", kTiny, "--tls-key", kTiny}, "holds no PEM certificate");
  expect("up", {"--api-keys", folder_.path() + "/none"}, "api-keys " + folder_.path() + "/none: cannot be read");
  const std::string keys = Write("keys", "tooshort\n");
  expect("up", {"--api-keys", keys}, "api-keys " + keys + ": line 1: a key of 8 characters");
  ExpectRefused(Run({"chat", "--message", "x", "--tls-ca", kTiny}), "holds no PEM certificate");
}

TEST(TlsTest, ANameTakesItsPlaceInAPath) {
  EXPECT_EQ(WithName("certs/{name}.crt", "decode-0"), "certs/decode-0.crt");
  EXPECT_EQ(WithName("{name}/{name}.key", "{name}"), "{name}/{name}.key");
  EXPECT_EQ(WithName("plain.crt", "decode-0"), "plain.crt");
}

TEST_F(CommandLineTest, TokenizeTakesAndGivesOneJsonValueALine) {
  const std::string lines = "\"\"\n\"The town\"\n\"<|im_start|>user\\n\\u00e9\"\n";
  const Outcome batch = Run({"tokenize", kTiny, "--batch", Write("texts.jsonl", lines)});
  ASSERT_EQ(batch.code, 0) << batch.err;
  EXPECT_EQ(std::count(batch.out.begin(), batch.out.end(), '\n'), 3);
  EXPECT_EQ(batch.out.substr(0, 3), "[]\n");
  EXPECT_THAT(batch.out, HasSubstr("\n[1, "));  // <|im_start|> is a control token: the text is trusted
  EXPECT_EQ(Run({"tokenize", kTiny, "--batch", "-"}, {}, lines).out, batch.out);
  EXPECT_EQ(Run({"tokenize", kTiny, "The town"}).out, Run({"tokenize", kTiny}, {}, "The town").out);
  ExpectRefused(Run({"tokenize", kTiny, "--batch", Write("bad.jsonl", "not json\n")}),
                "bad.jsonl, line 1: not a JSON string");
}

TEST_F(CommandLineTest, AnEmptyTextIsATextAndStandardInputStaysUnread) {
  EXPECT_EQ(Run({"tokenize", kTiny, ""}, {}, "The town").out, "[]\n");
  EXPECT_NE(Run({"tokenize", kTiny}, {}, "The town").out, "[]\n");
  EXPECT_EQ(Run({"tokenize", kTiny}, {}, "").out, "[]\n");
  ExpectRefused(Run({"tokenize", kTiny, "x", "--batch", "-"}, {}, "\"y\"\n"), "--batch");
}

TEST_F(CommandLineTest, DetokenizeUndoesTokenize) {
  const std::string text = "In 1734 the toll was 12 pence.";
  std::string ids = Run({"tokenize", kTiny, text}).out;
  ids = ids.substr(1, ids.find(']') - 1);
  EXPECT_EQ(Run({"detokenize", kTiny, ids}).out, text + "\n");
  ExpectRefused(Run({"detokenize", kTiny, "99999"}), "token 99999 is not in the vocabulary of 290");
}

TEST_F(CommandLineTest, ModelInspectDescribesTheModel) {
  const Outcome outcome = Run({"model", "inspect", kTiny});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("GGUF"));
}

TEST_F(CommandLineTest, DoctorSaysWhetherAWorkerWouldStartHereAndWhyNot) {
  const std::string state = "--state-dir=" + folder_.path();
  const Outcome good = Run({"doctor", kTiny, "--kv-memory", "1MiB", "--transport", "ucx-tcp", "--json", state});
  EXPECT_EQ(good.code, 0) << good.out << good.err;
  const auto json = nlohmann::json::parse(good.out);
  EXPECT_EQ(json["would_start"], true);
  std::set<std::string> lanes;
  for (const auto& lane : json["lanes"]) lanes.insert(lane["transport"].get<std::string>());
  EXPECT_TRUE(lanes.contains("tcp")) << good.out;
  for (const int path : {1, 2}) EXPECT_GT(json["transports"][path]["bytes_per_second"], 0) << good.out;  // TCP, grpc
  EXPECT_THAT(json["model"]["plan"].get<std::string>(), HasSubstr("weights"));

  const Outcome bad = Run({"doctor", kTiny, "--memory", "1MiB", state});
  EXPECT_EQ(bad.code, 1) << bad.out << bad.err;
  EXPECT_THAT(bad.out, HasSubstr("the model does not fit"));
  EXPECT_THAT(bad.out, HasSubstr("refuse to start"));
  ExpectRefused(Run({"doctor", "--transport", "local"}), "local joins workers of one process");
}

}  // namespace
}  // namespace baton
