#include "app/settings.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "baton/check.h"

namespace baton {
namespace {

// How near two names are: the number of single-character edits.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

std::string Suggestion(std::string_view unknown) {
  std::string_view best;
  size_t best_distance = 3;
  for (const OptionSpec& spec : AllOptions()) {
    if (spec.hidden) continue;
    const size_t distance = EditDistance(unknown, spec.name);
    if (distance < best_distance) best = spec.name, best_distance = distance;
  }
  return best.empty() ? std::string() : "; did you mean " + std::string(best) + "?";
}

std::string NumberText(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.15g", value);
  return text;
}

// A scalar of the file in the form that a flag would have.
std::optional<std::string> TomlText(const toml::node& node) {
  if (const auto* s = node.as_string()) return s->get();
  if (const auto* i = node.as_integer()) return std::to_string(i->get());
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  if (const auto* f = node.as_floating_point()) return NumberText(f->get());
  if (const auto* array = node.as_array()) {
    std::string out;
    for (const toml::node& item : *array) {
      const auto text = item.is_array() || item.is_table() ? std::nullopt : TomlText(item);
      if (!text) return std::nullopt;
      out += (out.empty() ? "" : ",") + *text;
    }
    return out;
  }
  return std::nullopt;
}

template <typename T>
std::string OutOfRange(const OptionSpec& spec, const StatusOr<T>& value, double number) {
  if (!value.ok()) return value.status().message();
  if (number >= spec.least && number <= spec.most) return {};
  const char* unit = spec.kind == OptionKind::kDuration ? "s" : "";
  return NumberText(number) + unit + " is out of range: " + NumberText(spec.least) + unit + " to " +
         NumberText(spec.most) + unit;
}

std::string CheckChoice(const OptionSpec& spec, const std::string& text) {
  const auto choices = SplitList(spec.choices, '|');
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return {};
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
  return "'" + text + "' is none of " + list;
}

// What is wrong with the text as a value of the option, or "".
std::string Complaint(const OptionSpec& spec, const std::string& text) {
  switch (spec.kind) {
    case OptionKind::kText:
    case OptionKind::kFile:
      return {};
    case OptionKind::kSecret:
      return IsPlainWord(text) ? std::string() : "printable ASCII without spaces is needed";
    case OptionKind::kFlag: {
      const auto value = ParseFlag(text);
      return value.ok() ? std::string() : value.status().message();
    }
    case OptionKind::kInteger: {
      const auto value = ParseInteger(text);
      return OutOfRange(spec, value, value.ok() ? static_cast<double>(*value) : 0);
    }
    case OptionKind::kReal: {
      const auto value = ParseReal(text);
      return OutOfRange(spec, value, value.ok() ? *value : 0);
    }
    case OptionKind::kBytes: {
      const auto value = ParseBytes(text);
      return OutOfRange(spec, value, value.ok() ? static_cast<double>(*value) : 0);
    }
    case OptionKind::kDuration: {
      const auto value = ParseDuration(text);
      return OutOfRange(spec, value, value.ok() ? Seconds(*value) : 0);
    }
    case OptionKind::kChoice:
      return CheckChoice(spec, text);
    case OptionKind::kAddress: {
      if (text.empty()) return spec.fallback.empty() ? std::string() : "an address is needed, HOST:PORT";
      const auto value = ParseHostPort(text);
      return value.ok() ? std::string() : value.status().message();
    }
    case OptionKind::kAddresses: {
      const auto list = SplitList(text, ',');
      if (list.empty()) return "an address is needed, HOST:PORT";
      for (const std::string& address : list) {
        const auto value = ParseHostPort(address);
        if (!value.ok()) return value.status().message();
      }
      return {};
    }
    case OptionKind::kCores: {
      const auto value = ParseCores(text);
      return value.ok() ? std::string() : value.status().message();
    }
  }
  return {};
}

std::string QuotedToml(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

}  // namespace

StatusOr<Settings> Settings::Resolve(const SettingsInput& input) {
  Settings out;
  out.command_ = input.command;
  out.config_name_ = input.config_name;
  std::vector<std::string> problems;

  std::map<std::string, std::string, std::less<>> file;
  if (!input.config_text.empty()) {
    try {
      const toml::table table = toml::parse(input.config_text, input.config_name);
      for (const auto& [key, node] : table) {
        const std::string name(key.str());
        const auto text = TomlText(node);
        if (name == "config" || name == "print-config") {
          problems.push_back(input.config_name + ": " + name + " is no key of a file; give it as --" + name + " or " +
                             EnvironmentName(name));
        } else if (!IsKnownOption(name)) {
          problems.push_back(input.config_name + ": unknown key " + name + Suggestion(name));
        } else if (!text) {
          problems.push_back(input.config_name + ": " + name + " is not a plain value");
        } else {
          file[name] = *text;
        }
      }
    } catch (const toml::parse_error& error) {
      problems.push_back(input.config_name + ", line " + std::to_string(error.source().begin.line) + ": " +
                         std::string(error.description()));
    }
  }

  for (const OptionSpec& spec : AllOptions()) {
    if ((spec.commands & input.command) == 0) continue;
    const std::string name(spec.name);
    Value value{std::string(spec.fallback), Origin::kDefault, "default of " + name};
    if (const auto it = file.find(name); it != file.end()) {
      value = {it->second, Origin::kFile, input.config_name + ": " + name};
    }
    const std::string variable = EnvironmentName(name);
    if (const auto text = input.environment && !spec.hidden ? input.environment(variable) : std::nullopt) {
      value = {*text, Origin::kEnvironment, variable};
    }
    if (const auto it = input.flags.find(name); it != input.flags.end()) {
      value = {it->second, Origin::kFlag, "--" + name};
    }
    const std::string complaint = Complaint(spec, value.text);
    if (!complaint.empty()) problems.push_back(value.where + ": " + complaint);
    out.values_[name] = std::move(value);
  }
  if (problems.empty()) out.CheckTogether(&problems);
  if (problems.empty()) return out;
  std::string message;
  for (const std::string& problem : problems) message += (message.empty() ? "" : "\n") + problem;
  return InvalidArgumentError(message);
}

void Settings::CheckTogether(std::vector<std::string>* problems) const {
  if ((command_ & kServes) != 0) {
    if (Text("model").empty()) problems->push_back("a MODEL is needed: a .gguf file, or a folder with safetensors");
    CheckSecurity(problems);
    // The supervisor's children are called after it.
    const size_t longest = Integer("status-fd") >= 0 ? 128 : 64;
    if (Text("name").size() > longest || !IsPlainWord(Text("name")) || Text("name").find('/') != std::string::npos) {
      problems->push_back(Get("name").where + ": 1 to " + std::to_string(longest) +
                          " printable ASCII characters, no spaces and no '/'");
    }
    if (Integer("max-context") == 1) {
      problems->push_back(Get("max-context").where +
                          ": 1 token holds no prompt and answer; 2 is the least, 0 the model's own limit");
    }
  }
  if (command_ == kDrain && Flag("whole-router") == Given("worker")) {
    problems->push_back("a WORKER is needed, or --whole-router, and not both; `baton cluster` lists the workers");
  }
  if (command_ == kRole) {
    const std::string& role = Text("role");
    if (!Given("worker")) problems->push_back("a WORKER is needed; `baton cluster` lists them");
    if (role != "prefill" && role != "decode" && role != "unified") {
      problems->push_back((role.empty() ? "a role is needed" : Get("role").where + ": \"" + role + "\" is no role") +
                          ": prefill, decode or unified");
    }
  }
  if (command_ == kComplete && Given("prompt") && Given("ids")) {
    problems->push_back(Get("ids").where + ": ids or a text (" + Get("prompt").where + "), not both");
  }
  if ((command_ & kPlans) != 0) {
    const int64_t cores = static_cast<int64_t>(Cores("cores").size());
    if (cores > 0 && Integer("threads") > cores) {
      problems->push_back(Get("threads").where + ": " + std::to_string(Integer("threads")) + " threads, but " +
                          Get("cores").where + " gives " + std::to_string(cores) + " cores");
    }
    if (Integer("max-step-tokens") <= Integer("max-running")) {
      problems->push_back(Get("max-step-tokens").where + ": " + Text("max-step-tokens") +
                          " must be greater than max-running (" + Text("max-running") +
                          "), so that a prompt finds room beside the running sequences");
    }
    const uint64_t memory = Bytes("memory");
    if (memory != 0 && Bytes("kv-memory") >= memory) {
      problems->push_back(Get("kv-memory").where + ": " + Text("kv-memory") + " leaves nothing of the memory (" +
                          Text("memory") + ") for weights");
    }
  }
  if ((command_ & kWorkers) != 0) {
    const char* const dialed = Given("advertise") ? "advertise" : "listen";
    const std::string host = Address(dialed).host;
    if (IsWildcard(host)) {
      problems->push_back(Get(dialed).where + ": other workers cannot dial " + host +
                          "; add --advertise HOST:PORT, where port 0 means the port of --listen");
    }
  }
  if ((command_ & (kWorkers | kDoctor)) != 0 && Text("transport") == "local") {
    problems->push_back(Get("transport").where +
                        ": local joins workers of one process; here auto, ucx-shm, ucx-rdma, ucx-tcp or grpc");
  }
  if (command_ == kUp) {
    const bool split = Integer("prefill") > 0 || Integer("decode") > 0;
    if (Integer("prefill") > 0 && Integer("decode") == 0) {
      problems->push_back(Get("prefill").where + ": prefill processes need a decode process: add --decode 1");
    }
    if (Integer("prefill") == 0 && Integer("decode") > 0) {
      problems->push_back(Get("decode").where + ": add --prefill 1, or leave both out to run in one process");
    }
    if (split && Text("transport") == "local") {
      problems->push_back(Get("transport").where +
                          ": local joins workers of one process; here auto, ucx-shm, ucx-rdma, ucx-tcp or grpc");
    }
    if (!split && (Text("transport").starts_with("ucx") || Text("transport") == "grpc")) {
      problems->push_back(Get("transport").where + ": nothing to transport without --prefill and --decode");
    }
  }
}

void Settings::CheckSecurity(std::vector<std::string>* problems) const {
  const bool tls = !Text("tls-cert").empty();
  const bool alone = command_ == kUp && Integer("decode") == 0;
  for (const auto& [one, other] : {std::pair{"tls-cert", "tls-key"}, std::pair{"tls-key", "tls-cert"}}) {
    if (!Text(one).empty() && Text(other).empty()) problems->push_back(Get(one).where + ": add --" + other);
  }
  if (!alone && tls && Text("tls-ca").empty()) {
    problems->push_back(Get("tls-cert").where + ": add --tls-ca, by which routers and workers know each other");
  }
  if (!alone && !tls && !Text("tls-ca").empty()) {
    problems->push_back(Get("tls-ca").where + ": add --tls-cert and --tls-key, which a process of a cluster shows");
  }
  const HostPort listen = Address("listen");
  if (!IsLoopback(listen.host) && !Flag("insecure-listen")) {
    std::string missing;
    if (!tls) missing = "--tls-cert and --tls-key (`baton certs` makes them)";
    if ((command_ & (kUp | kRouter)) != 0 && Text("api-keys").empty()) {
      missing += std::string(missing.empty() ? "" : ", and ") + "--api-keys";
    }
    if (!missing.empty()) {
      problems->push_back(Get("listen").where + ": " + listen.host + " can be reached from other machines: add " +
                          missing + "; --insecure-listen does without");
    }
  }
  if (!Flag("require-encryption")) return;
  const std::string forbidden = ", which " + Get("require-encryption").where + " forbids; ";
  bool far = !IsLoopback(listen.host);
  if ((command_ & kWorkers) != 0) {
    for (const std::string& router : Addresses("router")) far |= !IsLoopback(ParseHostPort(router)->host);
  }
  if (far && !tls) {
    problems->push_back(Get("listen").where + ": other machines are reached unencrypted" + forbidden +
                        "add --tls-ca, --tls-cert and --tls-key");
  }
  // Children of `up` serve each other on its interface, or on loopback where that is every one.
  const bool pairs_far = !IsLoopback(listen.host) &&
                         ((command_ & kWorkers) != 0 || (command_ == kUp && !alone && !IsWildcard(listen.host)));
  const std::string transport = pairs_far ? Text("transport") : "";
  if (transport == "auto" || transport == "ucx-tcp" || transport == "ucx-rdma") {
    problems->push_back(Get("transport").where + ": " + transport +
                        " may move KV to other machines unencrypted, by ucx" + forbidden +
                        "use --transport grpc, or ucx-shm within one machine");
  }
}

const Settings::Value& Settings::Get(std::string_view name) const {
  const auto it = values_.find(name);
  BATON_CHECK(it != values_.end(), name);
  return it->second;
}

const std::string& Settings::Text(std::string_view name) const { return Get(name).text; }
bool Settings::Given(std::string_view name) const { return !Text(name).empty() || OriginOf(name) == Origin::kFlag; }
bool Settings::Flag(std::string_view name) const { return *ParseFlag(Text(name)); }
int64_t Settings::Integer(std::string_view name) const { return *ParseInteger(Text(name)); }
double Settings::Real(std::string_view name) const { return *ParseReal(Text(name)); }
uint64_t Settings::Bytes(std::string_view name) const { return *ParseBytes(Text(name)); }
Duration Settings::Time(std::string_view name) const { return *ParseDuration(Text(name)); }
HostPort Settings::Address(std::string_view name) const { return *ParseHostPort(Text(name)); }
std::vector<std::string> Settings::Addresses(std::string_view name) const { return SplitList(Text(name), ','); }
std::vector<int> Settings::Cores(std::string_view name) const { return *ParseCores(Text(name)); }
Origin Settings::OriginOf(std::string_view name) const { return Get(name).origin; }

std::string Settings::Print() const {
  std::string out;
  for (const OptionSpec& spec : AllOptions()) {
    if ((spec.commands & command_) == 0 || spec.hidden) continue;
    const Value& value = Get(spec.name);
    const bool bare =
        spec.kind == OptionKind::kFlag || spec.kind == OptionKind::kInteger || spec.kind == OptionKind::kReal;
    const bool secret = spec.kind == OptionKind::kSecret && !value.text.empty();
    std::string line =
        std::string(spec.name) + " = " + (bare ? value.text : QuotedToml(secret ? std::string() : value.text));
    line.resize(std::max<size_t>(line.size() + 2, 40), ' ');
    switch (value.origin) {
      case Origin::kDefault:
        line += "# default";
        break;
      case Origin::kFile:
        line += "# " + config_name_;
        break;
      case Origin::kEnvironment:
        line += "# environment: " + value.where;
        break;
      case Origin::kFlag:
        line += "# flag";
        break;
    }
    out += line + (secret ? ", not shown\n" : "\n");
  }
  return out;
}

}  // namespace baton
