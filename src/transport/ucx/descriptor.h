// What a writer needs to reach a UCX transport, as versioned bytes. Parse refuses anything that this version did
// not write: UCX itself trusts an address blob and a packed key, so they are covered by a checksum here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baton/status.h"

namespace baton {

struct UcxDescriptor {
  std::string host;                // ThisHost() of the process
  uint64_t instance = 0;           // random per transport object
  std::string tls;                 // "shm", "tcp", "rdma" or "auto"
  std::vector<std::byte> address;  // of the UCX worker
  std::vector<std::byte> rkey;     // empty: the pool is not offered for one-sided writes
  uint64_t pool_base = 0;          // the pool's address in that process
  uint64_t pool_bytes = 0;
  // Transports on which it takes puts under a key: a writer that has one of them in common may use it. Empty: none,
  // and the bytes are those of the version before this field.
  std::vector<std::string> put_lanes;

  std::vector<std::byte> Encode() const;
  // kInvalidArgument, with the reason.
  static StatusOr<UcxDescriptor> Parse(std::span<const std::byte> bytes);
  friend bool operator==(const UcxDescriptor&, const UcxDescriptor&) = default;
};

// Equal for two processes exactly if one can map the other's shared memory: the machine's boot and the PID
// namespace (UCX attaches through /proc/<pid>/fd).
std::string ThisHost();

}  // namespace baton
