// Where a gRPC service of Baton is reached: by address, or inside this process without a socket.
#pragma once

#include <memory>
#include <string>

namespace baton {

// A server of this process; made by RouterServer::InProcess. Holds no port and no thread of its own.
class InProcessTarget;

struct Endpoint {
  std::string address;  // host:port; used when in_process is null
  std::shared_ptr<InProcessTarget> in_process;
};

}  // namespace baton
