// The listening sockets of a server, and the thread that accepts. gRPC 1.51 gives a listening port up for good when one
// accept fails, as each does while the process has no file descriptor left; this one turns newcomers away with a
// closed connection until there are some again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "baton/status.h"

namespace baton {

class Acceptor {
 public:
  // Gets a connected, non-blocking socket and owns it; the acceptor's thread.
  using OnConnection = std::function<void(int listener, int connection)>;

  // Binds every address of host:port; port 0 takes a free one, the same for all. The port is shared with nobody.
  // Errors: ALREADY_EXISTS where another process has it, INVALID_ARGUMENT where it is no address of this machine.
  static StatusOr<std::unique_ptr<Acceptor>> Bind(const std::string& listen);
  ~Acceptor();  // as Stop

  int port() const { return port_; }
  const std::string& address() const { return address_; }  // the host as given, the real port
  void Start(OnConnection on_connection);
  // Closes the listening sockets: who comes now is refused by the operating system. No callback after it. Idempotent.
  void Stop();

 private:
  Acceptor() = default;
  void Run();
  bool AcceptOne(int listener);  // false: nobody waits there
  void TurnAway(int listener);

  std::vector<int> listeners_;
  int wake_ = -1;
  int spare_ = -1;  // a descriptor kept back, so that somebody can be accepted in order to be turned away
  int port_ = 0;
  std::string address_;
  OnConnection on_connection_;
  std::thread thread_;
  uint64_t turned_away_ = 0;
  std::chrono::steady_clock::time_point warn_at_{};
};

}  // namespace baton
