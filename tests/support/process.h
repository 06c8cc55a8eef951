// Real processes for tests: started with a log of everything they print, stopped with certainty. A child dies
// with the test (PR_SET_PDEATHSIG), whatever happens to it. The test's main thread only.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "baton/check.h"

namespace baton::test {

inline std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base == nullptr ? "/tmp" : base) + "/baton-test.XXXXXX";
    BATON_CHECK(mkdtemp(path_.data()) != nullptr, path_);
  }
  ~ScratchFolder() { (void)!std::system(("rm -rf '" + path_ + "'").c_str()); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Until `done` or for `limit`; false when the time ran out.
inline bool Eventually(std::chrono::milliseconds limit, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

class Process {
 public:
  // stdout and stderr go to files of `folder`. `environment` is added to this process's own, without its
  // BATON_*.
  Process(const ScratchFolder& folder, std::vector<std::string> arguments,
          const std::vector<std::pair<std::string, std::string>>& environment = {}, const std::string& input = "") {
    static int count = 0;
    const std::string base = folder.path() + "/" + std::to_string(getpid()) + "." + std::to_string(++count);
    out_ = base + ".out";
    err_ = base + ".err";
    std::ofstream(base + ".in", std::ios::binary) << input;
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables;
    for (char** e = environ; *e != nullptr; ++e) {
      if (std::string(*e).rfind("BATON_", 0) != 0) variables.emplace_back(*e);
    }
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    std::vector<char*> envp;
    for (std::string& v : variables) envp.push_back(v.data());
    envp.push_back(nullptr);

    const int in = open((base + ".in").c_str(), O_RDONLY | O_CLOEXEC);
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    BATON_CHECK(in >= 0 && out >= 0 && err >= 0, base);
    const pid_t test = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != test) _exit(127);
      dup2(in, 0), dup2(out, 1), dup2(err, 2);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    close(in), close(out), close(err);
    BATON_CHECK(pid_ > 0, "fork");
  }
  ~Process() {
    if (!code_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return ReadWhole(out_); }
  std::string err() const { return ReadWhole(err_); }
  void Signal(int number) const { kill(pid_, number); }

  // The exit code (128 + signal when killed), or nothing if it still runs after `limit`.
  std::optional<int> Wait(std::chrono::milliseconds limit) {
    Eventually(limit, [this] {
      if (code_) return true;
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return true;
    });
    return code_;
  }
  // Until stdout has `text` at or after `from`; npos when it does not come in time.
  size_t WaitForOut(const std::string& text, std::chrono::milliseconds limit, size_t from = 0) {
    size_t at = std::string::npos;
    Eventually(limit, [&] { return (at = out().find(text, from)) != std::string::npos || Wait({}).has_value(); });
    return at == std::string::npos ? out().find(text, from) : at;
  }

 private:
  pid_t pid_ = -1;
  std::string out_, err_;
  std::optional<int> code_;
};

}  // namespace baton::test
