// A TCP connection that a test can break: one listening port on loopback before another.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "baton/check.h"

namespace baton::test {

// Passes bytes on between one listening port and one target, until told to swallow them with every socket open: a
// peer that is gone without a word; or to cut what is open.
class TcpProxy {
 public:
  explicit TcpProxy(int target_port) : target_port_(target_port) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    BATON_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    BATON_CHECK(listen(listener_, 16) == 0);
    socklen_t size = sizeof(address);
    BATON_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }
  ~TcpProxy() {
    thread_.request_stop();
    thread_.join();
    for (const auto& [from, to] : routes_) close(from);
    close(listener_);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Swallow(bool on) { swallow_ = on; }
  // Closes every connection; new ones are accepted. How many it closed. Returns when it is done.
  int Cut() {
    const int before = cut_;
    cutting_ = true;
    while (cutting_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return cut_ - before;
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  void Run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> polled{{listener_, POLLIN, 0}};
      for (const auto& [from, to] : routes_) polled.push_back({from, POLLIN, 0});
      poll(polled.data(), polled.size(), 10);
      if (cutting_) {
        cut_ += static_cast<int>(routes_.size() / 2);
        for (const auto& [from, to] : routes_) close(from);
        routes_.clear();
        cutting_ = false;
        continue;
      }
      if (polled[0].revents != 0) Accept();
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents != 0) Pass(polled[i].fd);
      }
    }
  }
  void Accept() {
    const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in target = Loopback(target_port_);
    if (connect(far, reinterpret_cast<sockaddr*>(&target), sizeof(target)) != 0) {
      close(near);
      close(far);
      return;
    }
    routes_[near] = far;
    routes_[far] = near;
  }
  void Pass(int from) {
    const auto route = routes_.find(from);
    if (route == routes_.end()) return;  // closed in this round
    char bytes[16384];
    const ssize_t n = read(from, bytes, sizeof(bytes));
    const int to = route->second;
    if (n <= 0) {
      close(from);
      close(to);
      routes_.erase(from);
      routes_.erase(to);
    } else if (!swallow_) {
      (void)!write(to, bytes, static_cast<size_t>(n));
    }
  }
  const int target_port_;
  int listener_ = -1, port_ = 0;
  std::map<int, int> routes_;
  std::atomic<bool> swallow_{false}, cutting_{false};
  std::atomic<int> cut_{0};
  std::jthread thread_;
};

}  // namespace baton::test
