// The subcommands. Each takes resolved settings (or plain arguments) and returns the process's exit code;
// what went wrong is on stderr by then.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/settings.h"
#include "baton/front_link.h"

namespace baton {

// serve.cc: these run until SIGTERM or SIGINT, then drain.
int RunUp(const Settings& settings);  // one process, or the supervisor
int RunRouter(const Settings& settings);
int RunWorker(const Settings& settings);  // prefill, decode, unified: by settings.command()

// client_commands.cc
int RunChat(const Settings& settings);
int RunComplete(const Settings& settings);

// operator_commands.cc
int RunCluster(const Settings& settings);
int RunDrain(const Settings& settings);
int RunRole(const Settings& settings);

// doctor.cc
int RunDoctor(const Settings& settings);

// text_commands.cc
// `text`: without it, standard input.
int RunTokenize(const std::string& model, const std::optional<std::string>& text, const std::string& batch_file);
int RunDetokenize(const std::string& model, const std::string& ids);
int RunModelInspect(const std::string& model);

}  // namespace baton
