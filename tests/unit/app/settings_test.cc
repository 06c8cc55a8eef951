#include "app/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace baton {
namespace {

using ::testing::HasSubstr;

SettingsInput Input(CommandBit command) {
  SettingsInput input;
  input.command = command;
  if ((command & kServes) != 0) input.flags["model"] = "m.gguf";
  input.config_name = "baton.toml";
  return input;
}

void SetEnvironment(SettingsInput* input, std::map<std::string, std::string> variables) {
  input->environment = [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
}

std::string Refusal(const SettingsInput& input) {
  const auto settings = Settings::Resolve(input);
  return settings.ok() ? "" : settings.status().message();
}

size_t Lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1; }

TEST(SettingsTest, AFlagWinsOverTheEnvironmentWhichWinsOverTheFileWhichWinsOverTheDefault) {
  struct Case {
    bool file, environment, flag;
    int64_t value;
    Origin origin;
  };
  for (const Case& c :
       {Case{false, false, false, 64, Origin::kDefault}, Case{true, false, false, 11, Origin::kFile},
        Case{false, true, false, 22, Origin::kEnvironment}, Case{true, true, false, 22, Origin::kEnvironment},
        Case{false, false, true, 33, Origin::kFlag}, Case{true, false, true, 33, Origin::kFlag},
        Case{false, true, true, 33, Origin::kFlag}, Case{true, true, true, 33, Origin::kFlag}}) {
    SettingsInput input = Input(kUp);
    if (c.file) input.config_text = "max-running = 11\n";
    if (c.environment) SetEnvironment(&input, {{"BATON_MAX_RUNNING", "22"}});
    if (c.flag) input.flags["max-running"] = "33";
    const auto settings = Settings::Resolve(input);
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    EXPECT_EQ(settings->Integer("max-running"), c.value);
    EXPECT_EQ(settings->OriginOf("max-running"), c.origin);
  }
}

TEST(SettingsTest, EveryOptionIsTakenFromEverySourceAndPrintsAsAFileThatReadsBackTheSame) {
  for (const CommandBit command : {kUp, kRouter, kPrefill, kDecode, kUnified, kChat, kComplete}) {
    const auto defaults = Settings::Resolve(Input(command));
    ASSERT_TRUE(defaults.ok()) << defaults.status().message();
    for (const OptionSpec& spec : AllOptions()) {
      if ((spec.commands & command) == 0 || spec.hidden) continue;
      const std::string name(spec.name);
      const std::string value = defaults->Text(name);
      SettingsInput input = Input(command);
      input.flags.erase(name);
      if (name == "model") continue;
      SetEnvironment(&input, {{EnvironmentName(name), value}});
      const auto settings = Settings::Resolve(input);
      ASSERT_TRUE(settings.ok()) << name << ": " << settings.status().message();
      EXPECT_EQ(settings->OriginOf(name), Origin::kEnvironment) << name;
    }
    SettingsInput again = Input(command);
    again.flags.clear();
    again.config_text = defaults->Print();
    const auto read_back = Settings::Resolve(again);
    ASSERT_TRUE(read_back.ok()) << read_back.status().message();
    for (const OptionSpec& spec : AllOptions()) {
      if ((spec.commands & command) == 0 || spec.hidden) continue;
      EXPECT_EQ(read_back->Text(spec.name), defaults->Text(spec.name)) << spec.name;
      EXPECT_EQ(read_back->OriginOf(spec.name), Origin::kFile) << spec.name;
    }
  }
}

TEST(SettingsTest, EveryProblemIsListedAtOnceWithItsPlace) {
  SettingsInput input = Input(kUp);
  input.config_text = "max-runing = 3\nblock-tokens = 48\n";
  SetEnvironment(&input, {{"BATON_THREADS", "many"}});
  input.flags["drain-timeout"] = "6 parsecs";
  const std::string refusal = Refusal(input);
  EXPECT_THAT(refusal, HasSubstr("baton.toml: unknown key max-runing; did you mean max-running?"));
  EXPECT_THAT(refusal, HasSubstr("baton.toml: block-tokens: '48' is none of 16, 32, 64, 128"));
  EXPECT_THAT(refusal, HasSubstr("BATON_THREADS: 'many' is not a whole number"));
  EXPECT_THAT(refusal, HasSubstr("--drain-timeout: '6 parsecs' is not a time"));
  EXPECT_EQ(Lines(refusal), 4u) << refusal;
}

TEST(SettingsTest, ValuesOutOfRangeAreRefusedWithTheLimit) {
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.kind != OptionKind::kInteger && spec.kind != OptionKind::kReal) continue;
    for (const CommandBit command : {kUp, kRouter, kPrefill, kChat, kComplete}) {
      if ((spec.commands & command) == 0) continue;
      for (const double beyond : {spec.least - 1, spec.most + 1}) {
        SettingsInput input = Input(command);
        input.flags[std::string(spec.name)] =
            spec.kind == OptionKind::kReal ? std::to_string(beyond) : std::to_string(static_cast<int64_t>(beyond));
        EXPECT_THAT(Refusal(input), HasSubstr("is out of range")) << spec.name << " " << beyond;
      }
    }
  }
}

TEST(SettingsTest, AFileIsRefusedWithTheLineOfItsFault) {
  SettingsInput input = Input(kUp);
  input.config_text = "threads = 1\nthis is no TOML\n";
  EXPECT_THAT(Refusal(input), HasSubstr("baton.toml, line 2"));
  input.config_text = "[threads]\nn = 1\n";
  EXPECT_THAT(Refusal(input), HasSubstr("threads is not a plain value"));
}

TEST(SettingsTest, AFileMayHoldKeysOfOtherCommands) {
  SettingsInput input = Input(kPrefill);
  input.config_text = "max-queue = 7\nthreads = 1\n";
  const auto settings = Settings::Resolve(input);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->Integer("threads"), 1);
}

TEST(SettingsTest, ContradictionsAreRefused) {
  struct Case {
    CommandBit command;
    std::vector<std::pair<std::string, std::string>> flags;
    std::string message;
  };
  const std::vector<Case> cases = {
      {kUp, {{"model", ""}}, "a MODEL is needed"},
      {kUp, {{"prefill", "2"}}, "add --decode 1"},
      {kUp, {{"decode", "1"}}, "add --prefill 1"},
      {kUp, {{"cores", "0-1"}, {"threads", "3"}}, "3 threads"},
      {kUp, {{"max-step-tokens", "64"}}, "must be greater than max-running"},
      {kUp, {{"memory", "1GiB"}, {"kv-memory", "1GiB"}}, "leaves nothing"},
      {kUp, {{"transport", "ucx-shm"}}, "nothing to transport"},
      {kUp, {{"transport", "grpc"}}, "nothing to transport"},
      {kUp, {{"transport", "local"}, {"prefill", "1"}, {"decode", "1"}}, "workers of one process"},
      {kDecode, {{"transport", "local"}}, "workers of one process"},
      {kRouter, {{"listen", "0.0.0.0:8700"}}, "--insecure-listen"},
      {kPrefill, {{"listen", "10.0.0.1:0"}}, "--insecure-listen"},
      {kRouter, {{"name", "a/b"}}, "no '/'"},
      {kRouter, {{"name", "a b"}}, "printable ASCII"},
      {kUp, {{"name", "a\nb"}}, "printable ASCII"},
      {kDecode, {{"name", std::string(65, 'a')}}, "1 to 64"},
      {kUp, {{"max-context", "1"}}, "2 is the least"},
      {kComplete, {{"prompt", "x"}, {"ids", "5,6"}}, "not both"},
      {kComplete, {{"prompt", ""}, {"ids", "5"}}, "not both"},
  };
  for (const Case& c : cases) {
    SettingsInput input = Input(c.command);
    for (const auto& [name, value] : c.flags) input.flags[name] = value;
    EXPECT_THAT(Refusal(input), HasSubstr(c.message));
  }
}

TEST(SettingsTest, TlsOptionsThatDoNotMakeAWholeAreRefusedWithWhatIsMissing) {
  using Flags = std::vector<std::pair<std::string, std::string>>;
  const auto refusal = [](CommandBit command, const Flags& flags) {
    SettingsInput input = Input(command);
    for (const auto& [name, value] : flags) input.flags[name] = value;
    return Refusal(input);
  };
  const Flags whole = {{"tls-ca", "ca"}, {"tls-cert", "c"}, {"tls-key", "k"}};
  const Flags server = {{"tls-cert", "c"}, {"tls-key", "k"}};
  for (const CommandBit command : {kUp, kRouter, kPrefill, kDecode, kUnified}) {
    EXPECT_EQ(refusal(command, whole), "");
    EXPECT_THAT(refusal(command, {{"tls-ca", "ca"}, {"tls-cert", "c"}}), HasSubstr("--tls-cert: add --tls-key"));
    EXPECT_THAT(refusal(command, {{"tls-ca", "ca"}, {"tls-key", "k"}}), HasSubstr("--tls-key: add --tls-cert"));
  }
  for (const CommandBit command : {kRouter, kPrefill, kDecode, kUnified}) {
    EXPECT_THAT(refusal(command, server), HasSubstr("--tls-cert: add --tls-ca"));
    EXPECT_THAT(refusal(command, {{"tls-ca", "ca"}}), HasSubstr("--tls-ca: add --tls-cert and --tls-key"));
  }
  EXPECT_EQ(refusal(kUp, server), "") << "one process: no other joins it";
  EXPECT_THAT(refusal(kUp, {{"tls-cert", "c"}, {"tls-key", "k"}, {"prefill", "1"}, {"decode", "1"}}),
              HasSubstr("add --tls-ca"));
  EXPECT_EQ(refusal(kChat, {{"tls-ca", "ca"}, {"api-key", "k"}}), "");
  const std::string spaced = refusal(kChat, {{"api-key", "hidden words"}});
  EXPECT_THAT(spaced, HasSubstr("--api-key: printable ASCII"));
  EXPECT_EQ(spaced.find("hidden"), std::string::npos) << spaced;
}

TEST(SettingsTest, AListenBeyondThisMachineIsTakenWithTlsAndWhereClientsAskWithKeys) {
  const auto refusal = [](CommandBit command, bool tls, bool keys) {
    SettingsInput input = Input(command);
    input.flags["listen"] = "10.0.0.1:8700";
    if (tls) input.flags["tls-ca"] = "a", input.flags["tls-cert"] = "c", input.flags["tls-key"] = "k";
    if (keys) input.flags["api-keys"] = "f";
    return Refusal(input);
  };
  for (const CommandBit command : {kUp, kRouter}) {
    EXPECT_THAT(refusal(command, false, false), HasSubstr("add --tls-cert and --tls-key"));
    EXPECT_THAT(refusal(command, false, true), HasSubstr("add --tls-cert and --tls-key"));
    EXPECT_THAT(refusal(command, true, false), HasSubstr("add --api-keys; --insecure-listen does without"));
    EXPECT_EQ(refusal(command, true, true), "");
  }
  EXPECT_THAT(refusal(kPrefill, false, false), HasSubstr("add --tls-cert and --tls-key"));
  EXPECT_EQ(refusal(kPrefill, true, false), "") << "no client asks a worker";
}

TEST(SettingsTest, RequireEncryptionRefusesWhatWouldReachAnotherMachineInTheClear) {
  using Flags = std::vector<std::pair<std::string, std::string>>;
  const auto refusal = [](CommandBit command, bool tls, const Flags& flags) {
    SettingsInput input = Input(command);
    input.flags["require-encryption"] = "true";
    input.flags["insecure-listen"] = "true";
    if (tls) input.flags["tls-ca"] = "a", input.flags["tls-cert"] = "c", input.flags["tls-key"] = "k";
    for (const auto& [name, value] : flags) input.flags[name] = value;
    return Refusal(input);
  };
  for (const CommandBit command : {kUp, kRouter, kPrefill}) {
    EXPECT_EQ(refusal(command, false, {}), "") << "loopback";
    EXPECT_THAT(refusal(command, false, {{"listen", "10.0.0.1:1"}}),
                HasSubstr("--require-encryption forbids; add --tls"));
  }
  EXPECT_THAT(refusal(kDecode, false, {{"router", "10.0.0.1:8700"}}), HasSubstr("add --tls-ca"));
  for (const char* transport : {"auto", "ucx-tcp"}) {
    EXPECT_THAT(refusal(kDecode, true, {{"listen", "10.0.0.1:1"}, {"transport", transport}}),
                HasSubstr(std::string(transport) + " may move KV to other machines unencrypted, by ucx, which"));
    EXPECT_EQ(refusal(kDecode, true, {{"transport", transport}}), "") << "loopback";
  }
  for (const char* transport : {"ucx-shm", "grpc"}) {
    EXPECT_EQ(refusal(kDecode, true, {{"listen", "10.0.0.1:1"}, {"transport", transport}}), "") << transport;
  }
  EXPECT_THAT(refusal(kDecode, false, {{"listen", "10.0.0.1:1"}, {"transport", "grpc"}}),
              HasSubstr("--require-encryption forbids; add --tls"))
      << "without certificates it is plain text";
  const Flags split = {{"prefill", "1"}, {"decode", "1"}};
  EXPECT_THAT(refusal(kUp, true, {split[0], split[1], {"listen", "10.0.0.1:1"}}), HasSubstr("unencrypted, by ucx"));
  EXPECT_EQ(refusal(kUp, true, {split[0], split[1], {"listen", "10.0.0.1:1"}, {"transport", "grpc"}}), "");
  EXPECT_EQ(refusal(kUp, true, {split[0], split[1], {"listen", "0.0.0.0:1"}}), "") << "workers meet on loopback";
}

// FF-156
TEST(SettingsTest, AKeyIsNeverPrinted) {
  SettingsInput input = Input(kChat);
  SetEnvironment(&input, {{"BATON_API_KEY", "not-for-any-eye"}});
  const auto settings = Settings::Resolve(input);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->Text("api-key"), "not-for-any-eye");
  EXPECT_EQ(settings->Print().find("not-for-any-eye"), std::string::npos) << settings->Print();
  EXPECT_THAT(settings->Print(), HasSubstr("environment: BATON_API_KEY, not shown"));
}

// FF-148
TEST(SettingsTest, AListenBeyondThisMachineNeedsTheOperatorsWord) {
  for (const char* address : {"0.0.0.0:1", "[::]:1", "192.168.0.1:1", "127.example.org:1", "example.org:1"}) {
    SettingsInput input = Input(kRouter);
    input.flags["listen"] = address;
    EXPECT_NE(Refusal(input), "") << address;
    input.flags["insecure-listen"] = "true";
    EXPECT_EQ(Refusal(input), "") << address;
  }
  for (const char* address : {"127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:0"}) {
    SettingsInput input = Input(kRouter);
    input.flags["listen"] = address;
    EXPECT_EQ(Refusal(input), "") << address;
  }
}

TEST(SettingsTest, AWorkerNeedsAnAddressThatOthersCanDial) {
  for (const char* listen : {"0.0.0.0:7000", "[::]:7000", "0:7000"}) {
    SettingsInput input = Input(kDecode);
    input.flags["insecure-listen"] = "true";
    input.flags["listen"] = listen;
    EXPECT_THAT(Refusal(input), HasSubstr("add --advertise HOST:PORT")) << listen;
    input.flags["advertise"] = "0.0.0.0:7000";
    EXPECT_THAT(Refusal(input), HasSubstr("--advertise: other workers cannot dial 0.0.0.0"));
    input.flags["advertise"] = "worker.example:0";
    EXPECT_EQ(Refusal(input), "") << listen;
  }
}

TEST(ValuesTest, SizesTimesAndCoresMeanWhatTheySay) {
  EXPECT_EQ(*ParseBytes("auto"), 0u);
  EXPECT_EQ(*ParseBytes("1048576"), 1048576u);
  EXPECT_EQ(*ParseBytes("1.5KiB"), 1536u);
  EXPECT_EQ(*ParseBytes("2 GiB"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("3MB"), 3'000'000u);
  EXPECT_EQ(*ParseDuration("250ms"), std::chrono::milliseconds(250));
  EXPECT_EQ(*ParseDuration("1.5s"), std::chrono::milliseconds(1500));
  EXPECT_EQ(*ParseDuration("2m"), std::chrono::minutes(2));
  EXPECT_EQ(*ParseCores("3,0-1,1"), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(ParseHostPort("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "::1");
}

TEST(ValuesTest, TokenIdsAreAllThereOrRefused) {
  EXPECT_EQ(*ParseTokenIds("1, 2,2147483647"), (std::vector<int32_t>{1, 2, 2147483647}));
  for (const char* text : {"", "5,,6", "5,", ",5", "-1", "2147483648", "x"}) {
    EXPECT_FALSE(ParseTokenIds(text).ok()) << text;
  }
}

TEST(ValuesTest, NonsenseIsRefused) {
  for (const char* text : {"", "x", "-1", "1XB", "1e300", "nan", "1 GiB extra"})
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  for (const char* text : {"", "5", "-1s", "s", "1d", "inf"}) EXPECT_FALSE(ParseDuration(text).ok()) << text;
  for (const char* text : {"a", "1-", "-1", "3-1", "0-99999", "1;2"}) EXPECT_FALSE(ParseCores(text).ok()) << text;
  for (const char* text : {"", "h", "h:", ":1", "h:65536", "h:-1", "::1:80", "[]:1", "[::1:80", "a b:1", "a/b:1"}) {
    EXPECT_FALSE(ParseHostPort(text).ok()) << text;
  }
  for (const char* text : {"", "1x", "1.5", "99999999999999999999"}) EXPECT_FALSE(ParseInteger(text).ok()) << text;
  for (const char* text : {"", "nan", "inf", "1x"}) EXPECT_FALSE(ParseReal(text).ok()) << text;
}

}  // namespace
}  // namespace baton
