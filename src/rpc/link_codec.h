// Values of front_link.h and pair_link.h to and from their wire messages, without loss. Decode trusts nothing:
// sizes, enum ranges, NaN and whatever an engine or a front relies on are checked, so that no peer can stop a
// process. Pure functions, any thread.
#pragma once

#include "baton/front_link.h"
#include "baton/pair_link.h"
#include "baton/status.h"

namespace baton::internal::v1 {
class WorkerMessage;
class FrontCommand;
class PairMessage;
}  // namespace baton::internal::v1

namespace baton {

namespace wire = internal::v1;

// Bounds of a well-formed message. Encode cuts only free text (details, status messages) to kMaxWireText.
inline constexpr size_t kMaxWireName = 256;  // process, model, host names; addresses
inline constexpr size_t kMaxWireText = 4096;
inline constexpr size_t kMaxWireSalt = 1024;
inline constexpr size_t kMaxWireTokens = size_t{1} << 22;  // a prompt, or an answer so far
inline constexpr size_t kMaxWireStopIds = 1024;
inline constexpr size_t kMaxWireBias = 4096;
inline constexpr size_t kMaxWireGroups = 64;
inline constexpr size_t kMaxWireCost = 64;
inline constexpr size_t kMaxWireOnceHit = 4096;
inline constexpr size_t kMaxWireQuarantines = 8192;
inline constexpr size_t kMaxWireMetrics = 256;
inline constexpr size_t kMaxWireMetricName = 128;
inline constexpr size_t kMaxWirePeers = 4096;

void Encode(const WorkerMessage& message, wire::WorkerMessage* out);
void Encode(const FrontCommand& command, wire::FrontCommand* out);
void Encode(const PairMessage& message, wire::PairMessage* out);

// INVALID_ARGUMENT with the field's path, its value and the limit.
StatusOr<WorkerMessage> Decode(const wire::WorkerMessage& in);
StatusOr<FrontCommand> Decode(const wire::FrontCommand& in);
StatusOr<PairMessage> Decode(const wire::PairMessage& in);

}  // namespace baton
