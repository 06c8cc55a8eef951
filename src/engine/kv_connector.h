// What a worker's hand-offs need besides the ticket machines: pair sessions (dialed as a writer, accepted as a
// reader), the transport's endpoints, and the blocks that are pinned or quarantined. It turns messages, transport
// events and finished layers into the facts that EngineCore acts on. Engine thread; no clock, no lock, no wait.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "baton/engine_command.h"
#include "baton/model_runner.h"
#include "baton/outbox.h"
#include "handoff/reader_tickets.h"
#include "handoff/send_window.h"
#include "handoff/writer_tickets.h"
#include "sched/scheduler.h"

namespace baton {

struct KvConnectorOptions {
  PeerAddress self;
  ModelIdentity model;
  KvLayout layout;
  KvPoolPlan pool;
  Hash128 numeric;
  uint32_t protocol = kProtocol;
  std::string host;  // boot and host identity; "" = pidfds are of no use here
  uint64_t pid = 0;
  ReaderOptions reader;
  WriterOptions writer;
  Duration pair_heartbeat = std::chrono::seconds(1);
  Duration redial_first = std::chrono::milliseconds(50);
  Duration redial_max = std::chrono::seconds(1);
  Duration greet_within = std::chrono::seconds(3);      // dial to Hello's answer
  uint32_t unreachable_after = 3;                       // dials in a row
  Duration gone_after = std::chrono::seconds(30);       // without a session: that incarnation is given up
  Duration busy_retry = std::chrono::milliseconds(20);  // what BUSY suggests
  SendWindowOptions send;                               // to one reader
  uint32_t max_writer_tickets = 64;                     // RESERVED, RECEIVING or QUARANTINED, of one writer
  double max_writer_share = 0.5;                        // L9: of the pool, one writer
  double max_all_writers_share = 0.8;
  Duration stuck_after = std::chrono::seconds(10);  // L9: then only the writer's death helps; also between reports
  uint64_t seed = 1;                                // session ids
  Rules rules;
};

// What happened, for EngineCore; in order inside each list.
struct ConnectorFacts {
  std::vector<Commit> ready;                            // complete and right: MakeReady
  std::vector<std::pair<ChildEpoch, SequenceId>> lost;  // reader: the ticket was quarantined, the sequence is gone
  std::vector<WriterChild> handed_off;
  std::vector<WriterFailure> failed;
  std::vector<KvConversion> convert;  // reader: for the runner; answer with OnConverted
  std::vector<ChildEpoch> unpinned;   // writer: nothing reads the sequence's blocks any more
};

struct ConnectorCounters {
  uint64_t bytes_posted = 0, bytes_received = 0, chunks_posted = 0, grants = 0, busy = 0, refused = 0;
  uint64_t converted = 0, converted_unused = 0;  // hand-offs of unlike layouts: READY, or ended meanwhile
  uint64_t sessions = 0, protocol_errors = 0, peers_lost = 0;
  // Hand-offs out: how many failed by cause, and sums over those that were handed off.
  std::array<uint64_t, 6> failed{};  // [HandoffFailure]
  uint64_t handed_off = 0, bytes_handed_off = 0;
  // Of them migrations, with those that were begun or failed.
  uint64_t migrations = 0, migrated = 0, bytes_migrated = 0, extensions = 0;
  std::array<uint64_t, 6> migrations_failed{};  // [HandoffFailure]
  Duration reserve_time{}, exposed_time{}, commit_time{};
  struct Times {
    Duration sum{};
    uint64_t count = 0;
  };
  std::array<std::array<Times, 2>, 3> transfers{};  // [TransferMode][0: same host, 1: another]
  uint64_t chunks_waited = 0;                       // for room in the window of their reader
  uint64_t pieces = 0;                              // of chunks_posted, in bytes_posted
  // From the last that was heard of a peer with which a hand-off was under way until that was over.
  std::array<Times, 4> detected{};  // [DetectCause]
};

// How a peer's end, or its silence, came to be known.
enum class DetectCause : uint8_t { kDeath, kSession, kTransport, kLease };

class KvConnector {
 public:
  KvConnector(KvConnectorOptions options, Scheduler* scheduler, BlockPool* pool, KvTransport* transport);

  // ---- links and messages ---------------------------------------------------------------------
  void OnLinkUp(LinkId link, LinkKind kind, TimePoint now, Outbox* out);
  void OnLinkDown(LinkId link, const Status& why, TimePoint now, Outbox* out);
  // Everything but Reserve, which EngineCore admits first.
  void OnMessage(LinkId link, const PairMessage& message, TimePoint now, Outbox* out);
  void OnProcessWatched(const ProcessWatched& watched);
  void OnProcessDied(const ProcessId& process, TimePoint now, Outbox* out);
  void PollTransport(TimePoint now, Outbox* out);
  void Tick(TimePoint now, Outbox* out);
  TimePoint NextTimer() const;
  void Audit() const;  // aborts where a hand-off that holds a ticket could lose its blocks
  ConnectorFacts TakeFacts() { return std::exchange(facts_, {}); }

  // ---- writer -----------------------------------------------------------------------------------
  // The prompt's first chunk is launched: ask `reader` for blocks.
  void BeginSend(const Sequence& sequence, const PeerAddress& reader, TimePoint deadline, TimePoint now, Outbox* out);
  // A migration: `sequence` decodes on, its KV goes to `reader` under `next`. The hand-off holds references of its own
  // to the blocks, so these stay whatever becomes of the sequence. False: that key is under way already.
  bool BeginMigration(const Sequence& sequence, Epoch next, const PeerAddress& reader, TimePoint deadline,
                      TimePoint now, Outbox* out);
  // What it has by now: blocks and tokens, launched ones too.
  void AdvanceMigration(const ChildEpoch& key, const Sequence& sequence, TimePoint now, Outbox* out);
  bool MayCutOver(const ChildEpoch& key) const { return writer_.MayCutOver(key); }
  // Layers [0, layers) of a launched part are final; or, with layers = all, the part's step is done.
  void AdvanceSend(const ChildEpoch& key, uint32_t tokens_done, uint32_t tokens_now, uint32_t layers, TimePoint now,
                   Outbox* out);
  void FinishSend(const ChildEpoch& key, Progress progress, TimePoint now, Outbox* out);
  void CancelSend(const ChildEpoch& key, TimePoint now, Outbox* out);
  void HandBack(const ChildEpoch& key, TimePoint now, Outbox* out);
  const WriterChild* FindSend(const ChildEpoch& key) const { return writer_.Find(key); }

  // ---- reader -----------------------------------------------------------------------------------
  // The writer of an accepted session that said Hello, or nothing.
  const ProcessId* WriterOf(LinkId link) const;
  std::optional<PairMessage> Recorded(LinkId link, const Reserve& reserve) {
    return reader_.Recorded(*WriterOf(link), reserve);
  }
  // Blocks and a ticket, or BUSY, or REFUSED; the answer goes out. True: granted, under that sequence.
  std::optional<ReceiveGrant> Admit(LinkId link, const Reserve& reserve, TimePoint now, Outbox* out);
  void Answer(LinkId link, PairMessage message, Outbox* out);
  std::optional<Ticket> TicketOf(const ChildEpoch& key) const { return reader_.FindChild(key.child, key.epoch); }
  const ReaderTicket* FindTicket(const Ticket& ticket) const { return reader_.Find(ticket); }
  void AbortTicketOf(const Ticket& ticket, TimePoint now, Outbox* out);
  void MarkRunning(const Ticket& ticket) { reader_.MarkRunning(ticket); }
  void EndTicket(const Ticket& ticket, TimePoint now) { reader_.End(ticket, now); }

  void OnConverted(const KvConverted& converted, TimePoint now, Outbox* out);
  // Its blocks are a conversion's until that is done, then they are released, whatever became of the child.
  bool IsConverting(SequenceId sequence) const;
  // By writer. L9: shown to operators.
  std::vector<Quarantine> Quarantines(TimePoint now) const;

  const ReaderTickets& reader() const { return reader_; }
  const WriterTickets& writer() const { return writer_; }
  const ConnectorCounters& counters() const { return counters_; }
  // worker_report.cc
  std::vector<PeerReport> Peers(TimePoint now) const;
  std::string_view transport_name() const { return transport_->name(); }
  void AppendMetrics(TimePoint now, std::vector<Metric>* metrics) const;
  bool idle() const { return writer_.Live().empty() && reader_.Live().empty() && converting_.empty(); }

 private:
  // A session that this worker dials.
  struct WriterSession {
    PeerAddress peer;
    std::optional<LinkId> link;
    bool greeted = false;  // Hello answered on this link
    bool open = false;     // the transport's endpoint stands
    bool opening = false;
    bool closing = false;  // Close was asked for, Severed is due
    TransferMode mode{};
    std::vector<std::byte> descriptor;
    std::vector<Ticket> open_tickets;
    uint64_t session = 0;
    uint32_t failures = 0;  // in a row
    TimePoint next_dial{};
    TimePoint greet_by = kNever;  // a link without an answered Hello is given up then
    TimePoint last_up = kNever;
    TimePoint next_heartbeat = kNever;
    uint64_t bytes = 0;  // of what was handed off to it, and the time that its transfers took
    Duration transfer_time{};
    double bytes_per_second = 0;  // of the last few
    std::string lane;             // PeerOpened's
    TimePoint heard = kNever;     // a message, or a transfer that ended well
    bool up() const { return greeted && open; }
  };
  struct ReaderSession {
    std::optional<ProcessId> writer;  // after Hello
    uint64_t session = 0;
    KvLayout layout;  // the writer's
    Hash128 numeric;  // likewise
    TimePoint heard = kNever;
    uint64_t bytes = 0;  // of its hand-offs that became READY
  };
  // kOpened: the pidfd is open, but may be of a process that took the pid over. A RESERVE that answers something
  // which was said after that confirms it.
  enum class Watch : uint8_t { kPending, kOpened, kOk, kImpossible };
  struct WatchedWriter {
    Watch watch{};
    uint64_t pid = 0;          // as its Hello said; 0: on another host
    TimePoint heard = kNever;  // when its session ended
  };

  // A hand-off out. Of a migration with references to the blocks [group] that are granted so far.
  struct Send {
    SequenceId sequence{};
    bool migration = false;
    std::vector<BlockTable> blocks;
  };
  void EndSend(const ChildEpoch& key);
  void Pin(const ChildEpoch& key, bool pinned);  // its sequence, if that still lives
  void OnExtend(const ProcessId& writer, const Extend& extend, TimePoint now, Outbox* out);
  void Do(WriterActions* actions, TimePoint now, Outbox* out);
  void Place(Grant* grant, std::vector<uint64_t>* bases, std::vector<uint64_t>* sizes) const;
  void Do(ReaderActions* actions, TimePoint now, Outbox* out);
  void Queue(const WriterPost& post, TimePoint now);
  void Pump(const ProcessId& reader, TimePoint now);
  void Post(const SendWindow::Entry& entry, TimePoint now);
  void CountDetected(DetectCause cause, TimePoint heard, TimePoint now);
  bool Receives(const ProcessId& writer) const;  // something of it is RESERVED or RECEIVING
  void AppendPeerMetrics(TimePoint now, std::vector<Metric>* metrics) const;
  void CountHandedOff(const WriterChild& child, TimePoint now);
  void OnReaderMessage(LinkId link, WriterSession& s, const PairMessage& m, TimePoint now, Outbox* out);
  void OnWriterMessage(LinkId link, ReaderSession& s, const PairMessage& m, TimePoint now, Outbox* out);
  void OnHello(LinkId link, const PairHello& hello, TimePoint now, Outbox* out);
  void OnHelloAnswer(WriterSession& s, const PairHelloAnswer& answer, TimePoint now, Outbox* out);
  void OpenEndpoint(WriterSession& s);
  void SessionIsUp(WriterSession& s, TimePoint now, Outbox* out);
  void DropSession(WriterSession& s, const std::string& why, TimePoint now, Outbox* out);
  void CloseLink(LinkId link, Outbox* out);
  void DialDue(TimePoint now, Outbox* out);
  WriterSession* SessionOn(LinkId link);
  void ReportStuck(TimePoint now, Outbox* out);
  // own_tickets: of the writer, that the blocks may be for already.
  bool OverCap(const ProcessId& writer, uint32_t more_blocks, uint32_t own_tickets = 0) const;
  uint32_t TiedUp(const ReaderTicket& ticket) const;
  uint32_t CreditTickets(const ProcessId& writer) const;
  uint64_t CreditBlocks(const ProcessId& writer) const;  // L9
  uint64_t TotalBlocks() const;
  void Convert(const Ticket& ticket);
  Hash128 NumericOf(const KvLayout& from, const Hash128& numeric) const;
  Status CheckPeer(const PairHello& hello) const;

  const KvConnectorOptions options_;
  Scheduler* const scheduler_;
  BlockPool* const pool_;
  KvTransport* const transport_;
  ReaderTickets reader_;
  WriterTickets writer_;
  std::map<ProcessId, WriterSession> dialed_;  // by reader
  std::map<LinkId, ReaderSession> accepted_;
  std::map<ProcessId, LinkId> accepted_by_writer_;
  std::map<ProcessId, WatchedWriter> watches_;
  std::map<ChildEpoch, Send> sends_;
  std::map<ProcessId, SendWindow> windows_;                   // by reader; only those that are not idle
  std::map<OpId, std::pair<ProcessId, uint64_t>> under_way_;  // reader and bytes
  std::map<Ticket, uint64_t> granted_bytes_;                  // RESERVED and RECEIVING
  std::map<Ticket, SequenceId> receives_;
  std::map<Ticket, std::vector<QuarantinedBlocks>> quarantine_;
  TimePoint next_stuck_ = kNever;                  // when some writer may have become stuck
  std::map<ProcessId, TimePoint> stuck_reported_;  // when last
  std::map<Ticket, KvLayout> staged_;              // RESERVED to CONVERTING: the writer's layout
  std::map<OpId, std::pair<Ticket, SequenceId>> converting_;
  ConnectorFacts facts_;
  ConnectorCounters counters_;
  Rng rng_;
  uint64_t next_link_ = 1;
  uint64_t next_op_ = 1;
};

}  // namespace baton
