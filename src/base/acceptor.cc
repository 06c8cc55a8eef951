#include "base/acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/log.h"
#include "baton/check.h"

namespace baton {

namespace {

constexpr std::chrono::seconds kWarnEvery{30};
constexpr std::chrono::milliseconds kPauseWithoutMemory{10};

struct HostPort {
  std::string host;  // without brackets
  std::string bracketed;
  int port = 0;
};

StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort out;
  bool good = colon != std::string::npos && colon > 0;
  if (good) {
    out.bracketed = text.substr(0, colon);
    out.host = out.bracketed;
    const bool brackets = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
    if (brackets) out.host = out.host.substr(1, out.host.size() - 2);
    good = brackets || out.host.find(':') == std::string::npos;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + colon + 1, end, out.port);
    good = good && parsed.ec == std::errc() && parsed.ptr == end && out.port >= 0 && out.port <= 65535;
  }
  if (!good) {
    return InvalidArgumentError("listen address \"" + text +
                                "\" is not host:port with a port from 0 to 65535, "
                                "such as 127.0.0.1:8080");
  }
  return out;
}

// A bound, listening socket, or -1 with errno. `port` replaces that of the address.
int Listen(const addrinfo& a, int port) {
  sockaddr_storage address{};
  std::memcpy(&address, a.ai_addr, a.ai_addrlen);
  const auto network_port = htons(static_cast<uint16_t>(port));
  if (a.ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(&address)->sin_port = network_port;
  if (a.ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = network_port;
  const int fd = socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a.ai_protocol);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // accepted sockets inherit it
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), a.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int why = errno;
  close(fd);
  errno = why;
  return -1;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  const in_port_t port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                       : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

Status Refusal(const std::string& listen, int why) {
  if (why == EADDRINUSE) {
    return AlreadyExistsError("cannot listen on " + listen +
                              ": the port is in use by another process; stop it or "
                              "choose another port (0 takes a free one)");
  }
  return FailedPreconditionError("cannot listen on " + listen + ": " + std::strerror(why));
}

}  // namespace

StatusOr<std::unique_ptr<Acceptor>> Acceptor::Bind(const std::string& listen) {
  BATON_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(listen));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found);
  if (error != 0) {
    return InvalidArgumentError("cannot listen on " + listen + ": " + gai_strerror(error) +
                                "; give an address of this machine");
  }
  std::unique_ptr<Acceptor> out(new Acceptor);
  out->port_ = at.port;
  int why = 0;
  for (const addrinfo* a = found; a != nullptr && why == 0; a = a->ai_next) {
    const int fd = Listen(*a, out->port_);
    if (fd < 0) {
      // A name may have addresses of a family that this machine does not have.
      if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) why = errno;
      if (why == 0 && a->ai_next == nullptr && out->listeners_.empty()) why = errno;
      continue;
    }
    out->listeners_.push_back(fd);
    if (out->port_ == 0) out->port_ = PortOf(fd);
  }
  freeaddrinfo(found);
  if (why != 0) return Refusal(listen, why);
  out->address_ = at.bracketed + ":" + std::to_string(out->port_);
  return out;
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Start(OnConnection on_connection) {
  on_connection_ = std::move(on_connection);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  BATON_CHECK(wake_ >= 0, "eventfd failed");
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const int fd : listeners_) close(fd);
  listeners_.clear();
  for (int* fd : {&wake_, &spare_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

void Acceptor::Run() {
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
  for (const int fd : listeners_) polled.push_back({fd, POLLIN, 0});
  for (;;) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      while (polled[i].revents != 0 && AcceptOne(polled[i].fd)) {
      }
    }
  }
}

bool Acceptor::AcceptOne(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    on_connection_(listener, fd);
    return true;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
      TurnAway(listener);
      return false;
    case ENOBUFS:
    case ENOMEM:
      std::this_thread::sleep_for(kPauseWithoutMemory);
      return false;
    default:  // nobody there any more, or one that went while it waited
      return false;
  }
}

// Left in the backlog, it would wait for its own timeout, and this thread would be woken for it without end.
void Acceptor::TurnAway(int listener) {
  if (spare_ >= 0) close(spare_);
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) close(fd);
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ++turned_away_;
  if (fd < 0 || spare_ < 0) std::this_thread::sleep_for(kPauseWithoutMemory);  // another thread was faster
  const auto now = std::chrono::steady_clock::now();
  if (now < warn_at_) return;
  warn_at_ = now + kWarnEvery;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  spdlog::warn(
      "{}: {} connection(s) turned away so far: all {} file descriptors of this process are in use; a higher "
      "limit (ulimit -n) takes more clients",
      address_, turned_away_, static_cast<uint64_t>(limit.rlim_cur));
}

}  // namespace baton
