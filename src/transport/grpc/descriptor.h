// What a writer needs to reach a gRPC transport, as versioned bytes. Parse refuses anything that this version did not
// write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baton/status.h"

namespace baton {

struct GrpcDescriptor {
  uint64_t instance = 0;   // random per transport object
  std::string address;     // host:port to dial
  bool encrypted = false;  // it speaks mutual TLS, and nothing else

  std::vector<std::byte> Encode() const;
  // kInvalidArgument, with the reason.
  static StatusOr<GrpcDescriptor> Parse(std::span<const std::byte> bytes);
  friend bool operator==(const GrpcDescriptor&, const GrpcDescriptor&) = default;
};

}  // namespace baton
