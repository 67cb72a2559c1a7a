#include "transport/schema/codec_capnp.h"

#include <kj/exception.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "transport/schema/codec.h"
#include "transport/schema/field_reader.h"
#include "transport/schema/fields.h"
#include "transport/schema/message_fields.h"

// The members of the union of schema::Message that have fields.
#define DSGD_MESSAGES(F)               \
  F(JoinRequest, JOIN_REQUEST)         \
  F(JoinReply, JOIN_REPLY)             \
  F(Watch, WATCH)                      \
  F(WatchReply, WATCH_REPLY)           \
  F(Renew, RENEW)                      \
  F(Leave, LEAVE)                      \
  F(Report, REPORT)                    \
  F(OperationFailed, OPERATION_FAILED) \
  F(PutObject, PUT_OBJECT)             \
  F(Goodbye, GOODBYE)                  \
  F(SessionFailed, SESSION_FAILED)     \
  F(HasBegun, HAS_BEGUN)               \
  F(ReportCut, REPORT_CUT)             \
  F(DeleteObject, DELETE_OBJECT)       \
  F(FetchObject, FETCH_OBJECT)         \
  F(Enter, ENTER)                      \
  F(HasCompleted, HAS_COMPLETED)       \
  F(Progress, PROGRESS)                \
  F(StatusReply, STATUS_REPLY)         \
  F(Return, RETURN)                    \
  F(ScaleRequest, SCALE_REQUEST)       \
  F(FetchState, FETCH_STATE)           \
  F(StateParts, STATE_PARTS)           \
  F(GatheringReply, GATHERING_REPLY)   \
  F(RenewReply, RENEW_REPLY)

namespace dsgd::transport {

void write(const Status& from, schema::Status::Builder to) {
  if (from.ok()) return;
  to.setCode(static_cast<int32_t>(from.code()));
  to.setRank(from.rank());
  to.setHost(wire_form(from.host()));
  to.setOperation(wire_form(from.operation()));
  to.setParameter(wire_form(from.parameter()));
  to.setMessage(wire_form(cut_text(from.message())));
}

// Static: found by argument-dependent lookup, which does not look into anonymous namespaces.
static void fields(FieldWriter&, const Status& from, schema::Status::Builder to) { write(from, to); }

static void fields(FieldReader& reader, Message& to, schema::Message::Reader from) {
#define DSGD_READ(Type, KIND) \
  case schema::Message::KIND: \
    return reader.read(from.get##Type(), &to.emplace<Type>());
  switch (from.which()) {
    DSGD_MESSAGES(DSGD_READ)
    case schema::Message::EMPTY:
      to = Empty{};
      return;
    case schema::Message::STATUS_REQUEST:
      to = StatusRequest{};
      return;
    case schema::Message::GATHERING_REQUEST:
      to = GatheringRequest{};
      return;
  }
#undef DSGD_READ
  reader.fail("unknown kind of message " + std::to_string(static_cast<uint16_t>(from.which())) +
              " (a newer protocol?)");
}

static void fields(FieldReader& reader, Result<Message>& to, schema::Reply::Reader from) {
  switch (from.which()) {
    case schema::Reply::MESSAGE: {
      Message message;
      reader.read(from.getMessage(), &message);
      to = std::move(message);
      return;
    }
    case schema::Reply::STATUS: {
      Status status;
      reader.read(from.getStatus(), &status);
      // A Result cannot hold OK without a value.
      if (reader.ok() && status.ok()) return reader.fail("an answer with neither a message nor an error");
      to = std::move(status);
      return;
    }
  }
  reader.fail("unknown kind of answer");
}

namespace {

template <typename T, typename Builder>
void write_fields(const T& from, Builder to) {
  FieldWriter writer;
  fields(writer, from, to);
}

#define DSGD_WRITE(Type, KIND) \
  void write_part(const Type& from, schema::Message::Builder to) { write_fields(from, to.init##Type()); }
DSGD_MESSAGES(DSGD_WRITE)
#undef DSGD_WRITE
#define DSGD_NAME(Type, KIND) \
  const char* name_of(const Type&) { return #Type; }
DSGD_MESSAGES(DSGD_NAME)
DSGD_NAME(Empty, EMPTY)
DSGD_NAME(StatusRequest, STATUS_REQUEST)
DSGD_NAME(GatheringRequest, GATHERING_REQUEST)
#undef DSGD_NAME
void write_part(const Empty&, schema::Message::Builder to) { to.setEmpty(); }
void write_part(const StatusRequest&, schema::Message::Builder to) { to.setStatusRequest(); }
void write_part(const GatheringRequest&, schema::Message::Builder to) { to.setGatheringRequest(); }

// Fills `to`, if `from` is well formed; exceptions of the library on invalid data become a Status.
template <typename Reader, typename T>
Status read_fields(Reader from, T* to) {
  T value = *to;
  FieldReader reader;
  try {
    reader.read(from, &value);
  } catch (const kj::Exception& exception) {
    return malformed(exception.getDescription().cStr());
  }
  if (reader.ok()) *to = std::move(value);
  return reader.status();
}

template <typename T, typename Reader>
Result<T> read_as(Reader from) {
  T value;
  Status status = read_fields(from, &value);
  if (!status.ok()) return status;
  return value;
}

// Counts the words that the encoded form of a message needs at most.
class WordCounter {
 public:
  size_t count() const { return count_; }

  void add(const std::string& text) { count_ += text.size() / 8 + 1; }
  void add(const Status& status) { count_ += words_for(status); }
  template <typename T>
  void add(const std::vector<T>& list) {
    if constexpr (std::is_arithmetic_v<T>) {
      count_ += (list.size() * sizeof(T) + 7) / 8;
    } else {
      for (const T& entry : list) {
        ++count_;
        add(entry);
      }
    }
  }
  // A struct with fields, or a number.
  template <typename T>
  void add(const T& part) {
    if constexpr (requires { fields(*this, part, nullptr); }) {
      constexpr size_t kMost = 12;  // words of the struct itself
      count_ += kMost;
      fields(*this, part, nullptr);
    }
  }

 private:
  size_t count_ = 0;
};

}  // namespace

void write(const Hello& from, schema::Hello::Builder to) { write_fields(from, to); }
void write(const Challenge& from, schema::Challenge::Builder to) { write_fields(from, to); }
void write(const Proof& from, schema::Proof::Builder to) { write_fields(from, to); }
void write(const HelloReply& from, schema::HelloReply::Builder to) { write_fields(from, to); }
void write(const HeadRecord& from, schema::HeadRecord::Builder to) { write_fields(from, to); }
void write(const BulkHeader& from, schema::BulkHeader::Builder to) { write_fields(from, to); }

void write(const Message& from, schema::Message::Builder to) {
  std::visit([&](const auto& part) { write_part(part, to); }, from);
}

void write(const Result<Message>& from, schema::Reply::Builder to) {
  from.ok() ? write(from.value(), to.initMessage()) : write(from.status(), to.initStatus());
}

Status read(schema::Status::Reader from, Status* to) { return read_fields(from, to); }
Status read(schema::Reply::Reader from, Result<Message>* to) { return read_fields(from, to); }
Result<Hello> read(schema::Hello::Reader from) { return read_as<Hello>(from); }
Result<Challenge> read(schema::Challenge::Reader from) { return read_as<Challenge>(from); }
Result<Proof> read(schema::Proof::Reader from) { return read_as<Proof>(from); }
Result<HelloReply> read(schema::HelloReply::Reader from) { return read_as<HelloReply>(from); }
Result<Message> read(schema::Message::Reader from) { return read_as<Message>(from); }
Result<HeadRecord> read(schema::HeadRecord::Reader from) { return read_as<HeadRecord>(from); }
Result<BulkHeader> read(schema::BulkHeader::Reader from) { return read_as<BulkHeader>(from); }

const char* message_name(const Message& message) {
  return std::visit([](const auto& part) { return name_of(part); }, message);
}

size_t words_for(const Status& status) {
  if (status.ok()) return 0;
  WordCounter words;
  for (const std::string* text : {&status.host(), &status.operation(), &status.parameter()}) words.add(*text);
  return 6 + words.count() + (std::min(status.message().size(), kMaxTextBytes) + 8) / 8;
}

size_t words_for(const Message& message) {
  WordCounter words;
  std::visit([&](const auto& part) { words.add(part); }, message);
  return 16 + words.count();
}

}  // namespace dsgd::transport
