// `baton certs`: a development authority and certificates as files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>

#include "app/process.h"
#include "app/tls.h"
#include "app/values.h"
#include "credentials/issue.h"

namespace baton {
namespace {

constexpr std::time_t kDay = 24 * 3600;
constexpr std::time_t kClockSkew = 3600;  // between machines, at the beginning of a certificate's time
constexpr std::time_t kAuthorityDays = 3650;

struct NewFile {
  std::string path, content;
  mode_t mode = 0600;
};

// "decode-0" and "cluster.decode-0" are decode workers; for other names the role is written: gpu7=decode.
StatusOr<CertifiedProcess> ParseName(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::string role = equals == std::string::npos ? name.substr(name.rfind('.') + 1) : text.substr(equals + 1);
  if (equals == std::string::npos) {
    const size_t dash = role.rfind('-');
    const bool numbered =
        dash != std::string::npos && role.find_first_not_of("0123456789", dash + 1) == std::string::npos;
    if (numbered) role.resize(dash);
  }
  const auto parsed = ParseRole(role);
  if (!parsed) {
    return InvalidArgumentError("--names: which role has '" + name + "'? " + name +
                                "=prefill, =decode, =unified or =router says it");
  }
  return CertifiedProcess{*parsed, name};
}

StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFoundError(path + ": cannot be read");
  return ReadAll(in, path);
}

// The authority that the folder has. NOT_FOUND: none.
StatusOr<KeyedCertificate> OpenAuthority(const std::string& certificate, const std::string& key) {
  const bool has_certificate = std::filesystem::exists(certificate);
  if (has_certificate != std::filesystem::exists(key)) {
    return FailedPreconditionError("there is " + (has_certificate ? certificate : key) + " but no " +
                                   (has_certificate ? key : certificate) + "; both are needed, or neither");
  }
  KeyedCertificate out;
  if (!has_certificate) return NotFoundError("no authority");
  BATON_ASSIGN_OR_RETURN(out.certificate, ReadFile(certificate));
  BATON_ASSIGN_OR_RETURN(out.key, ReadFile(key));
  BATON_RETURN_IF_ERROR(CheckCertificate(out.certificate, std::time(nullptr)).Annotate(certificate));
  BATON_RETURN_IF_ERROR(CheckKey(out.key, out.certificate).Annotate(key));
  return out;
}

// All or none of them, and none that is there already.
Status WriteNew(const std::vector<NewFile>& files) {
  for (const NewFile& file : files) {
    if (std::filesystem::exists(file.path)) {
      return AlreadyExistsError(file.path +
                                " is there already and stays as it is: nothing was written; remove it, or " +
                                "give other --names or another folder");
    }
  }
  size_t made = 0;
  Status status;
  for (const NewFile& file : files) {
    const int fd = open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file.mode);
    bool written = fd >= 0;
    if (written) {
      ++made;
      written = write(fd, file.content.data(), file.content.size()) == static_cast<ssize_t>(file.content.size());
      written = close(fd) == 0 && written;
    }
    if (!written) {
      status = FailedPreconditionError(file.path + ": cannot be written: " + std::strerror(errno));
      break;
    }
  }
  if (!status.ok()) {
    for (size_t i = 0; i < made; ++i) unlink(files[i].path.c_str());
  }
  return status;
}

std::string DateText(std::time_t time) {
  std::tm parts{};
  char text[32];
  gmtime_r(&time, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%d", &parts);
  return text;
}

Status MakeCerts(const CertsArguments& arguments, std::string* said) {
  const std::string base = arguments.folder + "/";
  const std::time_t now = std::time(nullptr);
  std::vector<NewFile> files;
  auto authority = OpenAuthority(base + "ca.crt", base + "ca.key");
  if (authority.status().code() == Code::kNotFound && !std::filesystem::exists(base + "ca.crt")) {
    authority = MakeAuthority("Baton development CA", {now - kClockSkew, now + kAuthorityDays * kDay});
    if (!authority.ok()) return authority.status();
    files.push_back({base + "ca.crt", authority->certificate, 0644});
    files.push_back({base + "ca.key", authority->key});
    *said += base + "ca.crt: what every process and client trusts; ca.key signs for it: keep it, away from servers\n";
  }
  if (!authority.ok()) return authority.status();
  BATON_ASSIGN_OR_RETURN(const std::time_t authority_ends, NotAfter(authority->certificate));
  const Validity validity = {now - kClockSkew, std::min<std::time_t>(now + arguments.days * kDay, authority_ends)};
  std::set<std::string> seen;
  for (const std::string& text : arguments.names) {
    BATON_ASSIGN_OR_RETURN(const CertifiedProcess process, ParseName(text));
    if (process.name == "ca" || !seen.insert(process.name).second) {
      return InvalidArgumentError("--names: '" + process.name + "' is taken");
    }
    auto made = IssueCertificate(*authority, process, arguments.hosts, validity);
    if (!made.ok()) return made.status().Annotate("certificate of '" + process.name + "'");
    files.push_back({base + process.name + ".crt", made->certificate, 0644});
    files.push_back({base + process.name + ".key", made->key});
    *said += base + process.name + ".crt, .key: " + std::string(RoleName(process.role)) + " " + process.name +
             ", until " + DateText(validity.not_after) + "\n";
  }
  const bool had_folder = std::filesystem::exists(arguments.folder);
  std::error_code error;
  std::filesystem::create_directories(arguments.folder, error);
  if (error) return FailedPreconditionError(arguments.folder + ": cannot be made: " + error.message());
  if (!had_folder) std::filesystem::permissions(arguments.folder, std::filesystem::perms::owner_all, error);
  return WriteNew(files);
}

}  // namespace

int RunCerts(const CertsArguments& arguments) {
  std::string said;
  if (Status status = MakeCerts(arguments, &said); !status.ok()) return Fail(kExitUsage, status);
  std::printf(
      "%sFor serving processes: --tls-ca %s/ca.crt --tls-cert '%s/{name}.crt' --tls-key '%s/{name}.key'\n"
      "For clients:           --tls-ca %s/ca.crt\n",
      said.c_str(), arguments.folder.c_str(), arguments.folder.c_str(), arguments.folder.c_str(),
      arguments.folder.c_str());
  return FinishOutput(kExitDone);
}

}  // namespace baton
