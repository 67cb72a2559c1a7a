package dsgd

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"dsgd.io/dsgd/internal/raw"
)

// LogRecord is one record of a session's log.
type LogRecord struct {
	Level   LogLevel
	Message string
	Time    time.Time
	Session uint64 // number of the session, unique in the process
	Rank    int    // of the session; -1 as long as it is not known
}

// LogFunc is given log records.
type LogFunc func(record LogRecord)

func logTo(logger *slog.Logger) LogFunc {
	levels := map[LogLevel]slog.Level{LogError: slog.LevelError, LogWarning: slog.LevelWarn, LogInfo: slog.LevelInfo}
	return func(r LogRecord) {
		to, known := levels[r.Level]
		if !known {
			to = slog.LevelDebug
		}
		if !logger.Enabled(context.Background(), to) {
			return
		}
		record := slog.NewRecord(r.Time, to, r.Message, 0)
		record.AddAttrs(slog.Uint64("session", r.Session), slog.Int("rank", r.Rank))
		_ = logger.Handler().Handle(context.Background(), record) // slog drops this error, too
	}
}

// drainLog gives the session's records to a function until the session is closed and its queue is empty.
func (c *core) drainLog(log LogFunc) {
	const wait = -1 // until a record comes or the session closes
	for {
		var record uintptr
		status := raw.Dsgd_log_poll(c.session, wait, &record, nil)
		if status == int(ErrWaitTimeout) {
			continue
		}
		if status != 0 {
			return
		}
		made := LogRecord{
			Level:   LogLevel(raw.Dsgd_log_record_level(record)),
			Message: inGo(strings.TrimSuffix(raw.Dsgd_log_record_message(record), "\n")),
			Time:    time.Unix(0, raw.Dsgd_log_record_time_ns(record)),
			Session: raw.Dsgd_log_record_session(record),
			Rank:    int(raw.Dsgd_log_record_rank(record)),
		}
		raw.Dsgd_log_record_free(record)
		log(made)
	}
}
