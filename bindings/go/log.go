package dsgd

import (
	"context"
	"log/slog"
	"strings"

	"dsgd.io/dsgd/internal/raw"
)

// LogLevel of a record; lower is more important.
type LogLevel int32

const (
	LogError   LogLevel = 0
	LogWarning LogLevel = 1
	LogInfo    LogLevel = 2
	LogDebug   LogLevel = 3
)

// LogFunc is given log records.
type LogFunc func(level LogLevel, message string)

func logTo(logger *slog.Logger) LogFunc {
	levels := map[LogLevel]slog.Level{LogError: slog.LevelError, LogWarning: slog.LevelWarn, LogInfo: slog.LevelInfo}
	return func(level LogLevel, message string) {
		to, known := levels[level]
		if !known {
			to = slog.LevelDebug
		}
		logger.Log(context.Background(), to, message)
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
		level, message := LogLevel(raw.Dsgd_log_record_level(record)), raw.Dsgd_log_record_message(record)
		raw.Dsgd_log_record_free(record)
		log(level, strings.TrimSuffix(message, "\n"))
	}
}
