// Calls a router: for the command line and for tests. Blocking calls; Cancel may come from any other thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "baton/status.h"
#include "credentials/certificate.h"
#include "front/client_event.h"
#include "front/client_request.h"
#include "front/front.h"
#include "rpc/endpoint.h"

namespace baton {

struct ModelDescription {
  std::string name;
  uint32_t max_context_tokens = 0;
  uint32_t vocab_size = 0;
  uint64_t kv_bytes_per_token = 0;
  bool has_chat_template = false;
};

// The path between a worker and a peer.
struct LaneDescription {
  std::string peer;
  uint64_t incarnation = 0;
  bool incoming = false, up = false;
  std::string mode;
  uint32_t hand_offs = 0, quarantined_blocks = 0;
  Duration oldest_quarantine{};
  uint64_t bytes = 0;
  double bytes_per_second = 0;
  std::string lane;
  uint64_t in_flight_bytes = 0, queued_bytes = 0, credit_bytes = 0;
  uint32_t credit_tickets = 0;
  std::map<std::string, uint32_t> states;
};
// One worker as GetCluster describes it.
struct WorkerDescription {
  std::string name;
  uint64_t incarnation = 0;
  std::string address;
  RoleMask roles;
  bool draining = false;
  uint32_t waiting = 0, running = 0;
  uint64_t steps = 0;
  Duration heard_ago{};
  std::vector<uint32_t> total_blocks, free_blocks, quarantined_blocks;
  uint32_t block_tokens = 0;
  std::vector<Quarantine> quarantines;  // their writers' incarnations without the random part
  // From its last report; empty until the first.
  bool confirmed = true;
  Duration connected_for{}, uptime{};
  std::string transport;
  std::vector<BlockReport> blocks;
  std::map<std::string, uint32_t> tickets, hand_offs;  // by state
  std::vector<LaneDescription> lanes;
  std::map<std::string, double> metrics;
  double prefill_tokens_per_second = 0, decode_step_seconds = 0;
};
struct ClusterDescription {
  std::string router, model;
  bool serving = false, draining = false;
  uint32_t live = 0, queued = 0;
  Duration uptime{};
  std::vector<WorkerDescription> workers;
  std::vector<std::pair<std::string, uint64_t>> counters;
};

// How a call ended, with what ErrorDetail said. `failed.status` is ok when it succeeded.
using CallResult = Failed;

class InferenceClient {
 public:
  struct Options {
    size_t max_message_bytes = size_t{16} << 20;
    size_t stream_window_bytes = 0;  // 0: gRPC's; small ones make a slow reader felt sooner
    TlsPems tls;                     // with a CA: TLS
    std::string api_key;             // shown with every call; "": none
  };
  // Connects lazily: a dead address shows as UNAVAILABLE at the first call.
  static std::unique_ptr<InferenceClient> Create(const Endpoint& endpoint, Options options);
  static std::unique_ptr<InferenceClient> Create(const Endpoint& endpoint) { return Create(endpoint, Options()); }
  virtual ~InferenceClient() = default;

  // Until the server can be reached, at most `limit`. False: it could not.
  virtual bool WaitReady(std::chrono::milliseconds limit) = 0;

  // Calls on_event for Started, Delta, Finished and Done as they come; false from it cancels. The request's
  // deadline becomes the call's.
  virtual CallResult Generate(const ClientRequest& request,
                              const std::function<bool(const ClientEvent&)>& on_event) = 0;
  // The unary twin; events of the whole answer, in the stream's order.
  virtual StatusOr<std::vector<ClientEvent>> Complete(const ClientRequest& request) = 0;
  // Ends every running call of this client with CANCELLED. Any thread.
  virtual void CancelAll() = 0;

  virtual StatusOr<std::vector<TokenId>> Tokenize(const ClientRequest& request) = 0;
  virtual StatusOr<std::string> Detokenize(const std::vector<TokenId>& ids, bool skip_special) = 0;
  virtual Status Cancel(const std::string& request_id) = 0;
  virtual StatusOr<std::vector<ModelDescription>> ListModels() = 0;
  virtual StatusOr<ModelDescription> GetModel(const std::string& name) = 0;
  virtual StatusOr<ClusterDescription> GetCluster() = 0;
  // Until `on_snapshot` says false, or the call breaks. Ok in the first case.
  virtual Status WatchCluster(Duration interval, const std::function<bool(const ClusterDescription&)>& on_snapshot) = 0;
  // How it stood at the end. The order's handle is of no use here.
  virtual StatusOr<OrderUpdate> Drain(const DrainOrder& order,
                                      const std::function<void(const OrderUpdate&)>& on_progress) = 0;
  virtual StatusOr<OrderUpdate> SetRole(const RoleOrder& order) = 0;
};

}  // namespace baton
