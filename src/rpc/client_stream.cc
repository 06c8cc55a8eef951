#include "rpc/client_stream.h"

#include <utility>

#include "base/log.h"
#include "rpc/grpc_setup.h"
#include "rpc/link_stream.h"
#include "rpc/request_codec.h"

namespace baton {

namespace {
// Of one event that merging makes: well below the 4 MiB that clients take by default.
constexpr size_t kMaxMergedBytes = size_t{1} << 20;
}  // namespace

grpc::Status FailureStatus(const Failed& failed) {
  Failed cut = failed;
  cut.status = Status(failed.status.code(), CutMessage(failed.status.message(), kMaxFailureText));
  return grpc::Status(static_cast<grpc::StatusCode>(cut.status.code()), cut.status.message(), EncodeErrorDetail(cut));
}

namespace {
// A call that no front has seen: what was wrong is in the code already, the reason only repeats it for programs.
grpc::Status EarlyFailure(const Status& status) {
  std::string reason(CodeName(status.code()));
  if (status.code() == Code::kResourceExhausted) reason = "QUEUE_FULL";
  if (status.code() == Code::kUnavailable) reason = "SHUTTING_DOWN";
  return FailureStatus(Failed{status, std::move(reason), "", {}});
}
}  // namespace

// ---- streams ----------------------------------------------------------------------------------------------

ClientStream* ClientStream::Start(FrontThread* front, grpc::CallbackServerContext* context, StreamLimits limits,
                                  StatusOr<ClientRequest> request) {
  auto stream = std::shared_ptr<ClientStream>(new ClientStream(front, context, limits));
  stream->self_ = stream;
  Status refused = request.status();
  if (request.ok()) {
    stream->timings_ = request->timings;
    const StatusOr<ClientHandle> client = front->Submit(*std::move(request), stream);
    refused = client.status();
    std::lock_guard lock(stream->mutex_);
    if (client.ok()) stream->client_ = *client;
  }
  if (!refused.ok()) {
    std::lock_guard lock(stream->mutex_);
    stream->end_ = EarlyFailure(refused);
    stream->WriteNext();
  }
  return stream.get();
}

void ClientStream::OnEvent(ClientEvent event) {
  ClientHandle gone{};
  {
    std::lock_guard lock(mutex_);
    if (cancelled_ || done_ || end_) return;
    if (const auto* failed = std::get_if<Failed>(&event)) {
      end_ = FailureStatus(*failed);
    } else {
      const bool last = std::holds_alternative<Done>(event);
      if (last) end_ = grpc::Status::OK;
      v1::GenerateEvent wire;
      ToWire(event, timings_, &wire);
      Queue(std::move(wire));
      if (!last && queued_bytes_ > limits_.queue_bytes) {
        gone = client_;
        EndEarly(
            ResourceExhaustedError("the answer is read too slowly: " + std::to_string(queued_bytes_) +
                                   " bytes of it wait for this client, at most " + std::to_string(limits_.queue_bytes)),
            "SLOW_CLIENT");
      }
    }
    WriteNext();
    if (writing_ && (end_ || queue_.size() >= limits_.queue_events)) WatchForSlowness();
  }
  if (gone != ClientHandle{0}) front_->Gone(gone);
}

void ClientStream::Queue(v1::GenerateEvent event) {
  const size_t bytes = event.ByteSizeLong();
  queued_bytes_ += bytes;
  if (queue_.size() >= limits_.queue_events && event.has_delta()) {
    for (auto earlier = queue_.rbegin(); earlier != queue_.rend(); ++earlier) {
      if (!earlier->event.has_delta() || earlier->event.delta().index() != event.delta().index()) continue;
      if (earlier->bytes + bytes > kMaxMergedBytes) break;
      MergeDelta(event, &earlier->event);
      earlier->bytes += bytes;
      return;
    }
  }
  queue_.push_back({std::move(event), bytes});
}

void ClientStream::EndEarly(const Status& why, std::string reason) {
  spdlog::info("a client's stream ends: {}", why.message());
  end_ = FailureStatus(Failed{why, std::move(reason), "", {}});
  queue_.clear();
  queued_bytes_ = 0;
}

void ClientStream::WriteNext() {
  if (writing_ || finished_) return;
  if (cancelled_) {
    finished_ = true;
    Finish(grpc::Status::CANCELLED);
  } else if (!queue_.empty()) {
    current_ = ToBytes(queue_.front().event);
    queued_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    writing_ = true;
    if (queue_.empty() && end_ && end_->ok()) {
      finished_ = true;  // OnWriteDone does not come any more
      StartWriteAndFinish(&current_, grpc::WriteOptions(), *end_);
    } else {
      StartWrite(&current_);
    }
  } else if (end_) {
    finished_ = true;
    Finish(*end_);
  }
}

void ClientStream::WatchForSlowness() {
  if (watched_) return;
  watched_ = true;
  // Replaced, never set twice: it may be running its callback just now. Weak, or it would hold its holder.
  slow_timer_ = std::make_unique<grpc::Alarm>();
  slow_timer_->Set(std::chrono::system_clock::now() + limits_.slow_timeout,
                   [weak = weak_from_this(), writes = writes_](bool fired) {
                     const std::shared_ptr<ClientStream> stream = weak.lock();
                     if (fired && stream != nullptr) stream->OnSlowTimer(writes);
                   });
}

void ClientStream::OnSlowTimer(uint64_t writes_then) {
  bool tell_front = false;
  {
    std::lock_guard lock(mutex_);
    watched_ = false;
    if (done_ || cancelled_ || !writing_) return;
    if (!end_ && queue_.size() < limits_.queue_events) return;  // it caught up
    if (writes_ != writes_then) return WatchForSlowness();      // slow, but alive
    if (end_) {                                                 // told, and still nothing is taken
      cancelled_ = true;
      context_->TryCancel();
    } else {
      tell_front = true;
      EndEarly(CancelledError("the client took nothing for " + std::to_string(limits_.slow_timeout.count()) +
                              " ms while " + std::to_string(queue_.size()) + " events of its answer waited, at most " +
                              std::to_string(limits_.queue_events)),
               "SLOW_CLIENT");
      WatchForSlowness();
    }
  }
  if (tell_front) front_->Gone(client_);
}

void ClientStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  ++writes_;
  if (!ok) cancelled_ = true;  // OnCancel tells the front
  WriteNext();
}

void ClientStream::OnCancel() {
  bool tell_front = false;
  {
    std::lock_guard lock(mutex_);
    tell_front = !end_ && client_ != ClientHandle{0};
    cancelled_ = true;
    WriteNext();
  }
  if (tell_front) front_->Gone(client_);
}

void ClientStream::OnDone() {
  const std::shared_ptr<ClientStream> self = std::move(self_);
  std::lock_guard lock(mutex_);
  done_ = true;
  slow_timer_.reset();
}

// ---- one answer -------------------------------------------------------------------------------------------

ClientAnswer* ClientAnswer::Start(FrontThread* front, grpc::ByteBuffer* response, StatusOr<ClientRequest> request) {
  auto answer = std::shared_ptr<ClientAnswer>(new ClientAnswer(front, response));
  answer->self_ = answer;
  Status refused = request.status();
  if (request.ok()) {
    answer->timings_ = request->timings;
    answer->result_.set_request_id(request->request_id);
    answer->result_.set_model(request->model);
    const StatusOr<ClientHandle> client = front->Submit(*std::move(request), answer);
    refused = client.status();
    std::lock_guard lock(answer->mutex_);
    if (client.ok()) answer->client_ = *client;
  }
  std::lock_guard lock(answer->mutex_);
  if (!refused.ok()) answer->End(EarlyFailure(refused));
  return answer.get();
}

void ClientAnswer::OnEvent(ClientEvent event) {
  std::lock_guard lock(mutex_);
  if (finished_) return;
  if (const auto* failed = std::get_if<Failed>(&event)) return End(FailureStatus(*failed));
  AddToResult(event, timings_, &result_);
  if (std::holds_alternative<Done>(event)) End(grpc::Status::OK);
}

void ClientAnswer::End(const grpc::Status& status) {
  if (finished_) return;
  finished_ = true;
  if (status.ok()) *response_ = ToBytes(result_);
  Finish(status);
}

void ClientAnswer::OnCancel() {
  bool tell_front = false;
  {
    std::lock_guard lock(mutex_);
    tell_front = !finished_ && client_ != ClientHandle{0};
    End(grpc::Status::CANCELLED);
  }
  if (tell_front) front_->Gone(client_);
}

}  // namespace baton
