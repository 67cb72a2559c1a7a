#include "transport/schema/codec_capnp.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "transport/schema/check.h"

namespace dsgd::transport {
namespace {

kj::StringPtr text(const std::string& from) { return {from.c_str(), from.size()}; }
template <typename Bytes>
capnp::Data::Reader data_of(const Bytes& from) {
  return {reinterpret_cast<const kj::byte*>(from.data()), from.size()};
}

// Reads the parts of a Message.
class MessageCheck : public Check {
 public:
  void member(schema::MemberInfo::Reader from, MemberInfo* to) {
    to->rank = from.getRank();
    text(from.getWorkerId(), &to->worker_id, "worker id");
    text(from.getHost(), &to->host, "host");
    text(from.getMachine(), &to->machine, "machine");
    auto addresses = from.getAddresses();
    if (!ok() || !length(addresses.size(), kMaxAddresses, "list of addresses", "entries")) return;
    for (auto address : addresses) {
      if (!ok()) return;
      text(address, &to->addresses.emplace_back(), "address");
    }
    to->pid = from.getPid();
  }

  // Of a message that has them: the view and the rank of its sender, and a cause.
  template <typename T, typename Reader>
  T with_cause(Reader from) {
    T to;
    to.view = from.getView();
    to.rank = from.getRank();
    status(from.getCause(), &to.cause);
    return to;
  }

  // Of a message about an object: its sender, and which object.
  template <typename T, typename Reader>
  T about_object(Reader from) {
    T to;
    to.view = from.getView();
    to.rank = from.getRank();
    text(from.getName(), &to.name, "object name");
    to.put = from.getPut();
    return to;
  }

  Message message(schema::Message::Reader from) {
    switch (from.which()) {
      case schema::Message::EMPTY:
        return Empty{};
      case schema::Message::JOIN_REQUEST: {
        auto part = from.getJoinRequest();
        JoinRequest to;
        member(part.getMember(), &to.member);
        to.num_workers = part.getNumWorkers();
        to.hosts_head = part.getHostsHead();
        to.lease = Duration(part.getLease());
        return to;
      }
      case schema::Message::JOIN_REPLY: {
        auto part = from.getJoinReply();
        JoinReply to;
        to.view = part.getView();
        to.rank = part.getRank();
        to.head_rank = part.getHeadRank();
        auto members = part.getMembers();
        if (!length(members.size(), kMaxMembers, "list of members", "entries")) return to;
        for (auto entry : members) {
          if (!ok()) return to;
          member(entry, &to.members.emplace_back());
        }
        job_nonce(part.getJobNonce(), &to.job_nonce);
        return to;
      }
      case schema::Message::WATCH:
        return Watch{from.getWatch().getSequence()};
      case schema::Message::WATCH_REPLY: {
        auto part = from.getWatchReply();
        WatchReply to;
        to.sequence = part.getSequence();
        to.view = part.getView();
        status(part.getNews(), &to.news);
        to.left = part.getLeft();
        to.departure_call = part.getDepartureCall();
        return to;
      }
      case schema::Message::RENEW:
        return Renew{from.getRenew().getRank(), from.getRenew().getView()};
      case schema::Message::LEAVE: {
        auto to = with_cause<Leave>(from.getLeave());
        to.departure_call = from.getLeave().getDepartureCall();
        return to;
      }
      case schema::Message::REPORT:
        return with_cause<Report>(from.getReport());
      case schema::Message::REPORT_CUT: {
        auto to = with_cause<ReportCut>(from.getReportCut());
        to.peer = from.getReportCut().getPeer();
        return to;
      }
      case schema::Message::OPERATION_FAILED: {
        auto to = with_cause<OperationFailed>(from.getOperationFailed());
        to.operation = from.getOperationFailed().getOperation();
        return to;
      }
      case schema::Message::SESSION_FAILED:
        return with_cause<SessionFailed>(from.getSessionFailed());
      case schema::Message::HAS_BEGUN: {
        auto part = from.getHasBegun();
        return HasBegun{part.getView(), part.getRank(), part.getOperation()};
      }
      case schema::Message::PUT_OBJECT: {
        auto part = from.getPutObject();
        auto to = about_object<PutObject>(part);
        to.total = part.getTotal();
        auto data = part.getData();
        if (ok() && length(data.size(), kMaxInlineObjectBytes, "object", "bytes")) {
          to.data.assign(data.begin(), data.end());
        }
        to.dtype = part.getDtype();
        numbers(part.getShape(), &to.shape, kMaxObjectDimensions, "shape of an object");
        return to;
      }
      case schema::Message::DELETE_OBJECT:
        return about_object<DeleteObject>(from.getDeleteObject());
      case schema::Message::FETCH_OBJECT: {
        auto to = about_object<FetchObject>(from.getFetchObject());
        to.offset = from.getFetchObject().getOffset();
        return to;
      }
      case schema::Message::GOODBYE: {
        auto part = from.getGoodbye();
        auto to = with_cause<Goodbye>(part);
        to.steps = part.getSteps();
        to.departure_call = part.getDepartureCall();
        numbers(part.getDigests(), &to.digests, kMaxDigests, "list of digests");
        return to;
      }
    }
    fail("unknown kind of message " + std::to_string(static_cast<uint16_t>(from.which())) +
         " (a newer protocol?)");
    return Empty{};
  }
};

// The fields that MessageCheck::with_cause reads.
template <typename T, typename Builder>
Builder write_with_cause(const T& from, Builder to) {
  to.setView(from.view);
  to.setRank(from.rank);
  if (!from.cause.ok()) write(from.cause, to.initCause());
  return to;
}

// The fields that MessageCheck::about_object reads.
template <typename T, typename Builder>
Builder write_about_object(const T& from, Builder to) {
  to.setView(from.view);
  to.setRank(from.rank);
  to.setName(text(from.name));
  to.setPut(from.put);
  return to;
}

size_t words_of(const std::string& text) { return (text.size() + 1 + 7) / 8; }

size_t words_of(const MemberInfo& member) {
  size_t words = 8 + words_of(member.worker_id) + words_of(member.host) + words_of(member.machine);
  for (const auto& address : member.addresses) words += 1 + words_of(address);
  return words;
}

}  // namespace

void write(const Status& from, schema::Status::Builder to) {
  if (from.ok()) return;
  to.setCode(static_cast<int32_t>(from.code()));
  to.setRank(from.rank());
  to.setHost(text(from.host()));
  to.setOperation(text(from.operation()));
  to.setParameter(text(from.parameter()));
  if (from.message().size() <= kMaxTextBytes) {
    to.setMessage(text(from.message()));
  } else {
    static constexpr std::string_view kCut = " ... (cut)";
    to.setMessage(text(from.message().substr(0, kMaxTextBytes - kCut.size()).append(kCut)));
  }
}

void write(const Hello& from, schema::Hello::Builder to) {
  to.setProtocol(from.protocol);
  to.setRole(static_cast<schema::Role>(from.role));
  to.setJob(text(from.job));
  to.setWorkerId(text(from.worker_id));
  to.setRank(from.rank);
  to.setView(from.view);
  to.setLibraryVersion(text(from.library_version));
  to.setChecksum(from.checksum);
  to.setJobNonce(data_of(from.job_nonce));
  to.setNonce(data_of(from.nonce));
}

void write(const Challenge& from, schema::Challenge::Builder to) {
  to.setNonce(data_of(from.nonce));
  if (!from.refused.ok()) write(from.refused, to.initRefused());
}

void write(const Proof& from, schema::Proof::Builder to) { to.setMac(data_of(from.mac)); }

void write(const HelloReply& from, schema::HelloReply::Builder to) {
  to.setChecksum(from.checksum);
  if (from.status.ok()) {
    to.setProof(data_of(from.proof.mac));
  } else {
    write(from.status, to.initStatus());
  }
}

void write(const MemberInfo& from, schema::MemberInfo::Builder to) {
  to.setRank(from.rank);
  to.setWorkerId(text(from.worker_id));
  to.setHost(text(from.host));
  to.setMachine(text(from.machine));
  auto addresses = to.initAddresses(static_cast<unsigned>(from.addresses.size()));
  for (unsigned i = 0; i < addresses.size(); ++i) addresses.set(i, text(from.addresses[i]));
  to.setPid(from.pid);
}

void write(const Message& from, schema::Message::Builder to) {
  std::visit(
      [&](const auto& part) {
        using T = std::decay_t<decltype(part)>;
        if constexpr (std::is_same_v<T, Empty>) {
          to.setEmpty();
        } else if constexpr (std::is_same_v<T, JoinRequest>) {
          auto out = to.initJoinRequest();
          write(part.member, out.initMember());
          out.setNumWorkers(part.num_workers);
          out.setHostsHead(part.hosts_head);
          out.setLease(part.lease.count());
        } else if constexpr (std::is_same_v<T, JoinReply>) {
          auto out = to.initJoinReply();
          out.setView(part.view);
          out.setRank(part.rank);
          out.setHeadRank(part.head_rank);
          auto members = out.initMembers(static_cast<unsigned>(part.members.size()));
          for (unsigned i = 0; i < members.size(); ++i) write(part.members[i], members[i]);
          out.setJobNonce(data_of(part.job_nonce));
        } else if constexpr (std::is_same_v<T, Watch>) {
          to.initWatch().setSequence(part.sequence);
        } else if constexpr (std::is_same_v<T, WatchReply>) {
          auto out = to.initWatchReply();
          out.setSequence(part.sequence);
          out.setView(part.view);
          if (!part.news.ok()) write(part.news, out.initNews());
          out.setLeft(part.left);
          out.setDepartureCall(part.departure_call);
        } else if constexpr (std::is_same_v<T, Renew>) {
          auto out = to.initRenew();
          out.setRank(part.rank);
          out.setView(part.view);
        } else if constexpr (std::is_same_v<T, Leave>) {
          write_with_cause(part, to.initLeave()).setDepartureCall(part.departure_call);
        } else if constexpr (std::is_same_v<T, Report>) {
          write_with_cause(part, to.initReport());
        } else if constexpr (std::is_same_v<T, ReportCut>) {
          write_with_cause(part, to.initReportCut()).setPeer(part.peer);
        } else if constexpr (std::is_same_v<T, OperationFailed>) {
          write_with_cause(part, to.initOperationFailed()).setOperation(part.operation);
        } else if constexpr (std::is_same_v<T, SessionFailed>) {
          write_with_cause(part, to.initSessionFailed());
        } else if constexpr (std::is_same_v<T, HasBegun>) {
          auto out = to.initHasBegun();
          out.setView(part.view);
          out.setRank(part.rank);
          out.setOperation(part.operation);
        } else if constexpr (std::is_same_v<T, PutObject>) {
          auto out = write_about_object(part, to.initPutObject());
          out.setTotal(part.total);
          out.setData(capnp::Data::Reader(part.data.data(), part.data.size()));
          out.setDtype(part.dtype);
          out.setShape(kj::arrayPtr(part.shape.data(), part.shape.size()));
        } else if constexpr (std::is_same_v<T, DeleteObject>) {
          write_about_object(part, to.initDeleteObject());
        } else if constexpr (std::is_same_v<T, FetchObject>) {
          write_about_object(part, to.initFetchObject()).setOffset(part.offset);
        } else {
          static_assert(std::is_same_v<T, Goodbye>);
          auto out = write_with_cause(part, to.initGoodbye());
          out.setSteps(part.steps);
          out.setDepartureCall(part.departure_call);
          out.setDigests(kj::arrayPtr(part.digests.data(), part.digests.size()));
        }
      },
      from);
}

void write(const Result<Message>& from, schema::Reply::Builder to) {
  if (from.ok()) {
    write(from.value(), to.initMessage());
  } else {
    write(from.status(), to.initStatus());
  }
}

void write(const BulkHeader& from, schema::BulkHeader::Builder to) {
  to.setView(from.view);
  to.setOperation(from.operation);
  to.setGroup(from.group);
  to.setSource(from.source);
  to.setKind(from.kind);
  to.setDtype(from.dtype);
  to.setReduction(from.reduction);
  to.setAlgorithm(from.algorithm);
  to.setRoot(from.root);
  to.setCount(from.count);
  to.setTag(from.tag);
  to.setPhase(from.phase);
  to.setOffset(from.offset);
}

Status read(schema::Status::Reader from, Status* to) {
  Status value;
  Status result = guarded([&](Check& check) { check.status(from, &value); });
  if (result.ok()) *to = std::move(value);
  return result;
}

Status read(schema::Reply::Reader from, Result<Message>* to) {
  Result<Message> value = Message(Empty{});
  Status result = guarded<MessageCheck>([&](MessageCheck& check) {
    switch (from.which()) {
      case schema::Reply::MESSAGE:
        value = check.message(from.getMessage());
        return;
      case schema::Reply::STATUS: {
        Status status;
        check.status(from.getStatus(), &status);
        // A Result cannot hold OK without a value.
        if (check.ok() && status.ok()) return check.fail("an answer with neither a message nor an error");
        value = std::move(status);
        return;
      }
    }
    check.fail("unknown kind of answer");
  });
  if (result.ok()) *to = std::move(value);
  return result;
}

Result<Hello> read(schema::Hello::Reader from) {
  Hello to;
  Status result = guarded([&](Check& check) {
    to.protocol = from.getProtocol();
    const auto role = static_cast<uint16_t>(from.getRole());
    if (role > static_cast<uint16_t>(Role::kProbe)) return check.fail("unknown role " + std::to_string(role));
    to.role = static_cast<Role>(role);
    check.text(from.getJob(), &to.job, "job");
    check.fixed(from.getNonce(), &to.nonce, "nonce");
    check.text(from.getWorkerId(), &to.worker_id, "worker id");
    to.rank = from.getRank();
    to.view = from.getView();
    check.text(from.getLibraryVersion(), &to.library_version, "library version");
    to.checksum = from.getChecksum();
    check.job_nonce(from.getJobNonce(), &to.job_nonce);
  });
  if (!result.ok()) return result;
  return to;
}

Result<Challenge> read(schema::Challenge::Reader from) {
  Challenge to;
  Status result = guarded([&](Check& check) {
    check.status(from.getRefused(), &to.refused);
    if (to.refused.ok()) check.fixed(from.getNonce(), &to.nonce, "nonce");
  });
  if (!result.ok()) return result;
  return to;
}

Result<Proof> read(schema::Proof::Reader from) {
  Proof to{};
  Status result = guarded([&](Check& check) { check.fixed(from.getMac(), &to.mac, "proof"); });
  if (!result.ok()) return result;
  return to;
}

Result<HelloReply> read(schema::HelloReply::Reader from) {
  HelloReply to;
  Status result = guarded([&](Check& check) {
    check.status(from.getStatus(), &to.status);
    to.checksum = from.getChecksum();
    if (to.status.ok()) check.fixed(from.getProof(), &to.proof.mac, "proof");
  });
  if (!result.ok()) return result;
  return to;
}

Result<Message> read(schema::Message::Reader from) {
  Message to;
  Status result = guarded<MessageCheck>([&](MessageCheck& check) { to = check.message(from); });
  if (!result.ok()) return result;
  return to;
}

Result<BulkHeader> read(schema::BulkHeader::Reader from) {
  BulkHeader to;
  Status result = guarded([&](Check&) {
    to.view = from.getView();
    to.operation = from.getOperation();
    to.group = from.getGroup();
    to.source = from.getSource();
    to.kind = from.getKind();
    to.dtype = from.getDtype();
    to.reduction = from.getReduction();
    to.algorithm = from.getAlgorithm();
    to.root = from.getRoot();
    to.count = from.getCount();
    to.tag = from.getTag();
    to.phase = from.getPhase();
    to.offset = from.getOffset();
  });
  if (!result.ok()) return result;
  return to;
}

size_t words_for(const Status& status) {
  if (status.ok()) return 0;
  return 6 + words_of(status.host()) + words_of(status.operation()) + words_of(status.parameter()) +
         (std::min(status.message().size(), kMaxTextBytes) + 8) / 8;
}

size_t words_for(const Message& message) {
  return 16 + std::visit(
                  [](const auto& part) -> size_t {
                    using T = std::decay_t<decltype(part)>;
                    if constexpr (std::is_same_v<T, JoinRequest>) {
                      return words_of(part.member);
                    } else if constexpr (std::is_same_v<T, JoinReply>) {
                      size_t words = 0;
                      for (const auto& member : part.members) words += words_of(member);
                      return words + kMaxJobNonceBytes / 8;
                    } else if constexpr (std::is_same_v<T, WatchReply>) {
                      return words_for(part.news);
                    } else if constexpr (std::is_same_v<T, Leave> || std::is_same_v<T, Report> ||
                                         std::is_same_v<T, ReportCut> || std::is_same_v<T, OperationFailed> ||
                                         std::is_same_v<T, SessionFailed>) {
                      return words_for(part.cause);
                    } else if constexpr (std::is_same_v<T, Goodbye>) {
                      return words_for(part.cause) + part.digests.size();
                    } else if constexpr (std::is_same_v<T, DeleteObject> || std::is_same_v<T, FetchObject>) {
                      return words_of(part.name);
                    } else if constexpr (std::is_same_v<T, PutObject>) {
                      return words_of(part.name) + (part.data.size() + 7) / 8 + part.shape.size();
                    } else {
                      return 0;
                    }
                  },
                  message);
}

}  // namespace dsgd::transport
