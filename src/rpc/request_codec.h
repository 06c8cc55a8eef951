// The public API's messages to and from the front's values, both ways (server and client). Pure, any thread.
// What a field means is checked by the front; here only what cannot be said in the front's types.
#pragma once

#include <string>

#include "baton/status.h"
#include "front/client_event.h"
#include "front/client_request.h"
#include "front/front.h"

namespace baton::v1 {
class Chat;
class ClusterSnapshot;
class GenerateEvent;
class GenerateRequest;
class GenerateResult;
}  // namespace baton::v1

namespace baton {

struct ClusterDescription;

// Fields that are set and do not work yet end up in `unsupported`, which the front refuses by name. A value that
// means "off" is not set. INVALID_ARGUMENT: slo.e2e_ms is no positive number.
StatusOr<ClientRequest> FromWire(const v1::GenerateRequest& in);
// The chat part alone, for Tokenize; `prefix` names it in `unsupported`.
ChatPrompt FromWire(const v1::Chat& in, const std::string& prefix, std::vector<std::string>* unsupported);
void ToWire(const ClientRequest& in, v1::GenerateRequest* out);
void ToWire(const ChatPrompt& in, v1::Chat* out);

// Failed has no event: it is the call's status.
void ToWire(const ClientEvent& in, bool timings, v1::GenerateEvent* out);
// False: an event of no known kind (of a newer server), to be skipped.
bool FromWire(const v1::GenerateEvent& in, ClientEvent* out);

// Adds one event to a unary answer; choices appear in ascending order.
void AddToResult(const ClientEvent& in, bool timings, v1::GenerateResult* result);
std::vector<ClientEvent> FromWire(const v1::GenerateResult& in);

// `later` joins `earlier` (same choice) as if they had been one event.
bool MergeDelta(const v1::GenerateEvent& later, v1::GenerateEvent* earlier);

void ToWire(const ClusterSnapshot& in, bool serving, v1::ClusterSnapshot* out);
ClusterDescription FromWire(const v1::ClusterSnapshot& in);
// Everything that changes by time alone.
void ClearAges(v1::ClusterSnapshot* snapshot);

// Trailers are small (a client takes 8 KiB by default), and a message is in them twice, escaped.
inline constexpr size_t kMaxFailureText = 1024;
inline constexpr size_t kMaxEchoedText = 200;  // of a client's own words in a message
// At most `limit` bytes of valid UTF-8, cut between characters and marked with "...".
std::string CutMessage(const std::string& text, size_t limit);

// grpc-status-details-bin of a failure, and what a client reads back (reason, request_id, retry_after).
std::string EncodeErrorDetail(const Failed& failed);
void DecodeErrorDetail(const std::string& bytes, Failed* failed);

}  // namespace baton
