// The command line: which subcommand, with which flags. Flags of the serving and asking commands come from
// the option list and are resolved by Settings; a parse error or --help ends here.
#pragma once

namespace baton {

// Runs the whole program. Exit codes: 0 done, 2 bad usage, configuration, model or address, 1 the rest.
int RunCommandLine(int argc, const char* const* argv);

}  // namespace baton
