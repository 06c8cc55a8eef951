// What UCX offers on this host, one entry for each transport and device, asked of UCX itself (its UCT level, which
// holds the capabilities). For `baton doctor`, and for choosing a path by what it can do instead of by its name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"

namespace baton {

enum class UcxLaneKind : uint8_t { kNetwork, kSharedMemory, kAccelerator, kSelf };

struct UcxLane {
  std::string transport;  // UCX's name: "posix", "tcp", "rc_mlx5"
  std::string device;     // "memory", "eth0", "mlx5_0:1"
  UcxLaneKind kind{};
  bool messages = false;
  bool put = false;           // writes into the peer's memory, without a copy on this side
  bool get = false;           // reads the peer's memory likewise
  bool remote_key = false;    // the peer's memory needs a key that the peer made, so it can take that back
  bool maps = false;          // the peer's memory can be mapped here and stored to
  bool peer_failure = false;  // tells when the peer is gone
  // UCX's own estimates, measured by nobody.
  double bytes_per_second = 0;
  double latency_seconds = 0;

  // The peer's processor has no part in a write: what makes a network path one-sided. UCX writes over TCP as well, with
  // the peer's help; but it does not read so, and its keys are empty.
  bool rdma() const { return kind == UcxLaneKind::kNetwork && put && get && remote_key; }
  friend bool operator==(const UcxLane&, const UcxLane&) = default;
};

// "shared memory", "network", ...
std::string_view Word(UcxLaneKind kind);

struct UcxOffer {
  std::string version;  // of the library that is loaded
  // Whether UCX came with its part for RDMA devices (a module of its own), which says nothing about the devices.
  bool rdma_built = false;
  std::vector<UcxLane> lanes;  // by transport, then device
};

// Opens every transport of every device for a moment. A device that does not open is left out, as UCX itself
// leaves it out. Before a UcxTransport or beside it; any thread, one at a time.
StatusOr<UcxOffer> QueryUcx();

// The transports of `lanes` on which a peer's memory is written without its help, among the devices that may be used
// (UCX's names, separated by commas, or "all"). By what they can do; each once, in order.
std::vector<std::string> PutTransports(const std::vector<UcxLane>& lanes, const std::string& net_devices);
// The first of `ours` that is in `theirs`; "": they have none in common.
std::string CommonTransport(const std::vector<std::string>& ours, const std::vector<std::string>& theirs);

// UCX writes its warnings to stdout; from here on, unless the environment sets UCX_LOG_LEVEL, it writes none.
void SilenceUcx();

}  // namespace baton
