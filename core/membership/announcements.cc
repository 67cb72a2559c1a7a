#include "core/membership/announcements.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/describe.h"

namespace dsgd {

uint64_t Announcements::add(transport::WatchReply news) {
  news.sequence = last() + 1;
  announcements_.push_back(std::move(news));
  return last();
}

void Announcements::release(uint64_t sequence) {
  released_ = std::min(sequence, last());
  for (const WorkerTable::Worker& worker : workers_) {
    Row& row = this->row(worker.index());
    if (row.watch && !worker.left && row.from < released_) answer(row);
  }
}

Status Announcements::watch(size_t worker, uint64_t sequence, const transport::Responder& respond) {
  if (sequence > released_ || sequence < confirmed_) {
    return Status(Code::kInvalidArgument, describe_member(workers_[worker].info) + " asks for news after " +
                                              std::to_string(sequence) + "; this head has the news from " +
                                              std::to_string(confirmed_) + " to " +
                                              std::to_string(released_));
  }
  end_watch(worker, Status(Code::kState, "replaced by a later watch of the same worker"));
  Row& row = this->row(worker);
  row.confirmed = std::max(row.confirmed, sequence);
  row.from = sequence;
  row.watch = respond;
  if (sequence < released_) answer(row);
  forget_confirmed();
  return {};
}

void Announcements::end_watch(size_t worker, const Status& why) {
  if (transport::Responder respond = std::exchange(row(worker).watch, nullptr)) respond(why);
}

bool Announcements::has_confirmed_all(size_t worker) { return row(worker).confirmed >= last(); }

void Announcements::forget_confirmed() {
  uint64_t all = std::min(released_, last() - (cause().ok() ? 0 : 1));
  for (const WorkerTable::Worker& worker : workers_) {
    const bool counts = !worker.left && worker.eviction.ok() && worker.connects();
    if (counts) all = std::min(all, row(worker.index()).confirmed);
  }
  if (all <= confirmed_) return;
  announcements_.erase(announcements_.begin(),
                       announcements_.begin() + static_cast<std::ptrdiff_t>(all - confirmed_));
  confirmed_ = all;
}

void Announcements::write(transport::HeadRecord* record) {
  forget_confirmed();
  record->confirmed = confirmed_;
  record->news = announcements_;
}

void Announcements::read(const transport::HeadRecord& record) {
  confirmed_ = record.confirmed;
  announcements_ = record.news;
  released_ = last();
  rows_.assign(record.joined, Row{.confirmed = confirmed_});
}

Status Announcements::cause() const {
  return !announcements_.empty() && announcements_.back().members.empty() ? announcements_.back().cause
                                                                          : Status();
}

Announcements::Row& Announcements::row(size_t worker) {
  if (worker >= rows_.size()) rows_.resize(worker + 1);
  return rows_[worker];
}

void Announcements::answer(Row& row) {
  const transport::Responder respond = std::exchange(row.watch, nullptr);
  respond(transport::Message(announcements_[row.from - confirmed_]));
}

}  // namespace dsgd
