// The metrics of hand-offs that operators rely on: every worker tells each from its start, at zero.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baton::test {

// Of the engine; of the transport.
inline const std::vector<std::string_view> kHandOffMetrics = {
    "kv_transfer_seconds_sum{mode=\"one-sided\",peer_kind=\"same-host\"}",
    "kv_transfer_seconds_count{mode=\"one-sided\",peer_kind=\"other-host\"}",
    "kv_transfer_seconds_count{mode=\"receiver-posted\",peer_kind=\"same-host\"}",
    "kv_transfer_seconds_count{mode=\"receiver-posted\",peer_kind=\"other-host\"}",
    "kv_transfer_seconds_count{mode=\"keyed-put\",peer_kind=\"other-host\"}",
    "kv_exposed_tail_seconds_sum",
    "kv_exposed_tail_seconds_count",
    "kv_reserve_seconds_sum",
    "kv_reserve_seconds_count",
    "kv_commit_seconds_sum",
    "kv_commit_seconds_count",
    "kv_pieces_per_chunk_sum",
    "kv_pieces_per_chunk_count",
    "kv_piece_bytes_sum",
    "kv_piece_bytes_count",
    "kv_tickets{state=\"reserved\"}",
    "kv_tickets{state=\"receiving\"}",
    "kv_tickets{state=\"ready\"}",
    "kv_tickets{state=\"running\"}",
    "kv_tickets{state=\"quarantined\"}",
    "kv_credits_bytes{direction=\"out\"}",
    "kv_credits_bytes{direction=\"in\"}",
    "kv_quarantine_blocks",
    "kv_quarantine_age_seconds",
    "kv_migrations_total{result=\"started\"}",
    "kv_migrations_total{result=\"finished\"}",
    "kv_migration_failures_total{code=\"refused\"}",
    "kv_migration_failures_total{code=\"peer_lost\"}",
    "kv_migrated_bytes_total",
    "kv_stale_dropped_total{kind=\"reserve\"}",
    "kv_stale_dropped_total{kind=\"extend\"}",
    "kv_stale_dropped_total{kind=\"chunk\"}",
    "kv_stale_dropped_total{kind=\"commit\"}",
    "kv_stale_dropped_total{kind=\"drained\"}",
    "kv_stale_dropped_total{kind=\"answer\"}",
    "kv_aborts_total{code=\"lease\"}",
    "kv_aborts_total{code=\"session\"}",
    "kv_aborts_total{code=\"cancelled\"}",
    "kv_aborts_total{code=\"writer\"}",
    "kv_aborts_total{code=\"checksum\"}",
    "kv_transport_failures_total{kind=\"peer\"}",
    "kv_drain_seconds_sum",
    "kv_drain_seconds_count",
    "kv_checksum_fail_total",
    "kv_peer_state{state=\"up\"}",
    "kv_peer_state{state=\"down\"}",
    "kv_detect_seconds_sum{cause=\"death\"}",
    "kv_detect_seconds_count{cause=\"death\"}",
    "kv_detect_seconds_count{cause=\"session\"}",
    "kv_detect_seconds_count{cause=\"transport\"}",
    "kv_detect_seconds_count{cause=\"lease\"}",
    "kv_lane{mode=\"one-sided\"}",
    "kv_lane{mode=\"receiver-posted\"}",
    "kv_lane{mode=\"keyed-put\"}",
};
inline const std::vector<std::string_view> kTransportMetrics = {
    "kv_bytes_total{direction=\"out\"}",
    "kv_bytes_total{direction=\"placed\"}",
    "kv_progress_lag_seconds_sum",
    "kv_progress_lag_seconds_count",
    "kv_progress_lag_seconds_max",
    "kv_stale_dropped_total{kind=\"notice\"}",
    "kv_stale_dropped_total{kind=\"data\"}",
    "kv_transport_failures_total{kind=\"op\"}",
};

}  // namespace baton::test
