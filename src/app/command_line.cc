#include "app/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/process.h"
#include "app/settings.h"
#include "app/tls.h"

namespace baton {
namespace {

struct CommandSpec {
  CommandBit bit;
  const char* name;
  const char* help;
  int (*run)(const Settings&);
};

constexpr CommandSpec kCommands[] = {
    {kUp, "up",
     "Serve a model: in one process, or with --prefill N --decode M as a router and N + M workers on this "
     "machine",
     RunUp},
    {kChat, "chat", "Ask a chat model one question, or talk to it line by line", RunChat},
    {kComplete, "complete", "Continue a text, or token ids", RunComplete},
    {kRouter, "router", "Serve clients and place their requests on workers", RunRouter},
    {kPrefill, "prefill", "A worker that reads prompts and hands their KV to decode workers", RunWorker},
    {kDecode, "decode", "A worker that writes answers", RunWorker},
    {kUnified, "unified", "A worker that does both", RunWorker},
    {kCluster, "cluster", "Show a router's workers: roles, load, blocks, paths between them", RunCluster},
    {kDrain, "drain", "Give a worker nothing new and wait until it is empty, or admit work again", RunDrain},
    {kRole, "role", "Change what a running worker does; what it has runs to its end", RunRole},
    {kDoctor, "doctor", "Say what a worker would find on this machine: kernels, limits, the lanes KV can take",
     RunDoctor},
};

// Names that users of the design will try; refused by name until they work.
constexpr const char* kNotYet[] = {"bench", "sim", "top"};

// One subcommand's flags as CLI11 fills them.
struct ParsedCommand {
  const CommandSpec* spec = nullptr;
  CLI::App* app = nullptr;
  std::map<std::string, std::pair<CLI::Option*, std::string>> values;  // stable addresses
  std::string config_file;
  bool print_config = false;
};

const char* GroupOf(const OptionSpec& spec) { return spec.hidden ? "" : "Options"; }

void AddOptions(ParsedCommand* command) {
  for (const OptionSpec& spec : AllOptions()) {
    if ((spec.commands & command->spec->bit) == 0) continue;
    const std::string name(spec.name);
    auto& [option, text] = command->values[name];
    const std::string flag = "--" + name;
    if (spec.kind == OptionKind::kFlag) {
      option = command->app->add_flag(flag)->description(HelpText(spec));
    } else {
      option = command->app->add_option(spec.positional ? name + "," + flag : flag, text, HelpText(spec));
      option->type_name(std::string(Metavar(spec)));
    }
    option->group(GroupOf(spec));
  }
  command->app
      ->add_option("--config", command->config_file, "TOML file with options as keys, such as kv-memory = \"2GiB\"")
      ->type_name("FILE");
  command->app->add_flag("--print-config", command->print_config, "print every option with its origin, and stop");
}

int RunParsed(const ParsedCommand& command) {
  SettingsInput input;
  input.command = command.spec->bit;
  for (const auto& [name, value] : command.values) {
    const auto& [option, text] = value;
    if (option->count() == 0) continue;
    input.flags[name] = FindOption(name, input.command)->kind == OptionKind::kFlag ? "true" : text;
  }
  input.environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  std::string config_file = command.config_file;
  if (config_file.empty()) config_file = input.environment("BATON_CONFIG").value_or("");
  if (!config_file.empty()) {
    std::ifstream in(config_file, std::ios::binary);
    if (!in) return Fail(kExitUsage, NotFoundError("--config " + config_file + ": cannot be read"));
    auto text = ReadAll(in, "--config " + config_file);
    if (!text.ok()) return Fail(kExitUsage, text.status());
    input.config_text = *std::move(text);
    input.config_name = config_file;
  }
  bool print_config = command.print_config;
  if (const auto text = input.environment("BATON_PRINT_CONFIG"); text && !print_config) {
    const auto flag = ParseFlag(*text);
    if (!flag.ok()) return Fail(kExitUsage, flag.status().Annotate("BATON_PRINT_CONFIG"));
    print_config = *flag;
  }
  auto settings = Settings::Resolve(input);
  if (!settings.ok()) return Fail(kExitUsage, settings.status());
  if (print_config) {
    std::fputs(settings->Print().c_str(), stdout);
    return FinishOutput(kExitDone);
  }
  return command.spec->run(*settings);
}

bool IsCommand(const CLI::App& app, std::string_view name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return true;
  }
  return false;
}

// tokenize, detokenize, model inspect: plain arguments, no configuration.
struct TextArguments {
  std::string model, text, batch;
};

}  // namespace

int RunCommandLine(int argc, const char* const* argv) {
  CLI::App app("Baton: serves language models with prefill and decode on separate workers.", "baton");
  app.require_subcommand(1);
  app.set_version_flag("--version", "baton 0.1.0");
  app.get_formatter()->column_width(34);
  app.footer(
      "Every option NAME can also be set as BATON_NAME in the environment or as a key of --config FILE;\n"
      "flags win over the environment, the environment over the file.\n"
      "Examples:\n"
      "  baton up model.gguf\n"
      "  baton up model.gguf --prefill 1 --decode 1 --listen 127.0.0.1:8700\n"
      "  baton chat --message \"What is the capital of France?\" --receipt");

  std::vector<std::unique_ptr<ParsedCommand>> commands;
  for (const CommandSpec& spec : kCommands) {
    auto command = std::make_unique<ParsedCommand>();
    command->spec = &spec;
    command->app = app.add_subcommand(spec.name, spec.help)->footer("");
    AddOptions(command.get());
    commands.push_back(std::move(command));
  }
  TextArguments arguments;
  CLI::App* tokenize = app.add_subcommand("tokenize", "Token ids of a text, as a JSON array");
  tokenize->add_option("model", arguments.model, "a .gguf file, or a folder with tokenizer.json")->required();
  CLI::Option* const text = tokenize->add_option("text", arguments.text, "the text; without it, all of standard input");
  tokenize
      ->add_option("--batch", arguments.batch, "one JSON string a line in, one array a line out; - is standard input")
      ->type_name("FILE")
      ->excludes(text);
  CLI::App* detokenize = app.add_subcommand("detokenize", "The text of token ids");
  detokenize->add_option("model", arguments.model, "a .gguf file, or a folder with tokenizer.json")->required();
  detokenize->add_option("ids", arguments.text, "1,2,3")->required();
  CLI::App* model = app.add_subcommand("model", "Look at models on disk");
  model->require_subcommand(1);
  CLI::App* inspect = model->add_subcommand("inspect", "What a model is: shape, tensors, tokenizer, memory");
  inspect->add_option("model", arguments.model, "a .gguf file, or a folder with config.json and safetensors")
      ->required();
  CertsArguments certificates;
  std::string hosts, names = "router,router-0,prefill-0,decode-0,unified-0";
  CLI::App* certs =
      app.add_subcommand("certs", "Make a development CA, and a certificate for each process of a cluster");
  certs->add_option("folder", certificates.folder, "where the PEM files go; a CA that is there already is used")
      ->required();
  certs
      ->add_option("--hosts", hosts, "addresses and names, beside localhost, by which clients and workers dial routers")
      ->type_name("HOST,...");
  certs->add_option("--names", names, "the processes, each NAME or NAME=ROLE")
      ->type_name("NAME,...")
      ->capture_default_str();
  certs->add_option("--days", certificates.days, "how long the certificates are valid, 1 to 3650")
      ->type_name("N")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();

  if (argc > 1) {
    for (const char* name : kNotYet) {
      if (std::string_view(argv[1]) == name) {
        return Fail(kExitUsage,
                    UnimplementedError(std::string(name) + " does not exist yet; baton --help lists what does"));
      }
    }
    if (argv[1][0] != '-' && !IsCommand(app, argv[1])) {
      return Fail(kExitUsage, InvalidArgumentError("there is no command '" + std::string(argv[1]) +
                                                   "' (--help shows what is possible)"));
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return FinishOutput(app.exit(success) == 0 ? kExitDone : kExitFailed);
  } catch (const CLI::ParseError& error) {
    return Fail(kExitUsage, InvalidArgumentError(std::string(error.what()) + " (--help shows what is possible)"));
  }
  if (tokenize->parsed()) {
    const bool given = text->count() > 0;  // an empty text is a text
    return RunTokenize(arguments.model, given ? std::optional(arguments.text) : std::nullopt, arguments.batch);
  }
  if (detokenize->parsed()) return RunDetokenize(arguments.model, arguments.text);
  if (inspect->parsed()) return RunModelInspect(arguments.model);
  if (certs->parsed()) {
    certificates.hosts = SplitList(hosts, ',');
    certificates.names = SplitList(names, ',');
    return RunCerts(certificates);
  }
  for (const auto& command : commands) {
    if (command->app->parsed()) return RunParsed(*command);
  }
  return kExitUsage;
}

}  // namespace baton
