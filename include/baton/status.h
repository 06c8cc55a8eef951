// Status and StatusOr: how an operating error or a request's failure travels. The codes are gRPC's 17,
// with the same numbers, so that the edge converts by a cast. Messages say what failed, where, with
// which value and limit, and what to do; each layer annotates once. A bug is not a Status: see check.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "baton/check.h"

namespace baton {

enum class Code : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

std::string_view CodeName(Code code);  // "INVALID_ARGUMENT"

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;  // "INVALID_ARGUMENT: max_tokens: ..."

  // "load model: <message>", same code. An ok status stays ok.
  Status Annotate(std::string_view where) const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status CancelledError(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Status InvalidArgumentError(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status DeadlineExceededError(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Status NotFoundError(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status AlreadyExistsError(std::string m) { return {Code::kAlreadyExists, std::move(m)}; }
inline Status ResourceExhaustedError(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Status FailedPreconditionError(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
inline Status AbortedError(std::string m) { return {Code::kAborted, std::move(m)}; }
inline Status OutOfRangeError(std::string m) { return {Code::kOutOfRange, std::move(m)}; }
inline Status UnimplementedError(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Status InternalError(std::string m) { return {Code::kInternal, std::move(m)}; }
inline Status UnavailableError(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status DataLossError(std::string m) { return {Code::kDataLoss, std::move(m)}; }

template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT: implicit, so that errors return plainly
    BATON_CHECK(!status_.ok(), "a StatusOr made from an ok status holds no value");
  }
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<StatusOr*>(this)->Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<StatusOr*>(this)->Checked(); }

 private:
  T& Checked() {
    BATON_CHECK(value_.has_value(), status_.message());
    return *value_;
  }
  Status status_;
  std::optional<T> value_;
};

}  // namespace baton

#define BATON_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                     \
    if (::baton::Status baton_status_ = (expr); !baton_status_.ok()) return baton_status_; \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)
#define BATON_ASSIGN_OR_RETURN(lhs, expr) BATON_ASSIGN_OR_RETURN_(BATON_CONCAT_(baton_statusor_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return tmp.status();           \
  lhs = *std::move(tmp)
