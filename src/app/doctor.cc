// `doctor`: this machine as a worker would find it.
#include <cstdio>

#include "app/commands.h"
#include "app/machine_findings.h"
#include "app/process.h"

namespace baton {

int RunDoctor(const Settings& settings) {
  const MachineFacts facts = GatherMachineFacts(settings);
  const std::vector<Finding> findings = FindingsOf(facts);
  const std::string report = settings.Flag("json") ? DoctorJson(facts, findings) + "\n" : DoctorReport(facts, findings);
  std::fputs(report.c_str(), stdout);
  return FinishOutput(WouldStart(findings) ? kExitDone : kExitFailed);
}

}  // namespace baton
