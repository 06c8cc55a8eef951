// The effective value of every option of one command, and where it came from: flags, then BATON_* of the
// environment, then the file of --config, then the defaults. Resolved once at start, immutable afterwards.
//
// Always true: every value was checked against its kind and range, and together they make sense for the
// command.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/option_list.h"
#include "app/values.h"
#include "baton/clock.h"
#include "baton/status.h"

namespace baton {

enum class Origin : uint8_t { kDefault, kFile, kEnvironment, kFlag };

struct SettingsInput {
  CommandBit command = kUp;
  std::map<std::string, std::string, std::less<>> flags;                      // as given, by option name
  std::function<std::optional<std::string>(const std::string&)> environment;  // by variable name
  std::string config_text;                                                    // TOML; "" = none
  std::string config_name;                                                    // for messages
};

class Settings {
 public:
  // INVALID_ARGUMENT with every problem, one a line.
  static StatusOr<Settings> Resolve(const SettingsInput& input);

  // A name that the command does not know is a bug of the caller.
  const std::string& Text(std::string_view name) const;
  bool Given(std::string_view name) const;  // a text that is not empty, or that a flag made empty
  bool Flag(std::string_view name) const;
  int64_t Integer(std::string_view name) const;
  double Real(std::string_view name) const;
  uint64_t Bytes(std::string_view name) const;
  Duration Time(std::string_view name) const;
  HostPort Address(std::string_view name) const;
  std::vector<std::string> Addresses(std::string_view name) const;
  std::vector<int> Cores(std::string_view name) const;
  Origin OriginOf(std::string_view name) const;
  CommandBit command() const { return command_; }

  // The effective set as a file that --config reads back: `name = value  # origin`.
  std::string Print() const;

 private:
  struct Value {
    std::string text;
    Origin origin = Origin::kDefault;
    std::string where;  // "--threads", "BATON_THREADS", "baton.toml: threads"
  };
  const Value& Get(std::string_view name) const;
  void CheckTogether(std::vector<std::string>* problems) const;
  void CheckSecurity(std::vector<std::string>* problems) const;  // of a serving command

  CommandBit command_ = kUp;
  std::string config_name_;
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace baton
