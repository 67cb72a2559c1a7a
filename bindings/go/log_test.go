package dsgd

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestLogRecordsReachTheFunction(t *testing.T) {
	var mu sync.Mutex
	var records []LogRecord
	begin := time.Now()
	config := configure(t, bounded, settings{"log_level": "debug", "head": "127.0.0.1:0", "num_workers": "1"})
	config.SetLog(func(record LogRecord) {
		mu.Lock()
		defer mu.Unlock()
		records = append(records, record)
	})
	session, err := Init(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil { // also waits until the queue is empty
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(records) == 0 {
		t.Fatal("joining and leaving a job left nothing in the log, at level debug")
	}
	for i, r := range records {
		if r.Message == "" || strings.HasSuffix(r.Message, "\n") || r.Level < LogError || r.Level > LogDebug {
			t.Errorf("record %d: level %d, %q", i, r.Level, r.Message)
		}
		if r.Time.Before(begin) || r.Time.After(time.Now()) || r.Session != records[0].Session || r.Session == 0 {
			t.Errorf("record %d: session %d at %v", i, r.Session, r.Time)
		}
	}
	if first, last := records[0].Rank, records[len(records)-1].Rank; first != -1 || last != 0 {
		t.Errorf("rank %d before joining, %d after", first, last)
	}
}

func TestLogRecordsReachTheLogger(t *testing.T) {
	var text bytes.Buffer
	config := configure(t, bounded, settings{"log_level": "debug", "head": "127.0.0.1:0", "num_workers": "1"})
	config.SetLogger(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	session, err := Init(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "level=") || !strings.Contains(text.String(), "msg=") {
		t.Errorf("the logger wrote %q", text.String())
	}
}

func TestLogLevelsBecomeThoseOfSlog(t *testing.T) {
	var text bytes.Buffer
	log := logTo(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for level, name := range map[LogLevel]string{LogError: "ERROR", LogWarning: "WARN", LogInfo: "INFO", LogDebug: "DEBUG", 9: "DEBUG"} {
		text.Reset()
		log(LogRecord{Level: level, Message: "hello", Time: time.Unix(1, 0), Session: 3, Rank: 2})
		if !strings.Contains(text.String(), "level="+name+" ") {
			t.Errorf("level %d is written as %q", level, text.String())
		}
		if want := "session=3 rank=2"; !strings.Contains(text.String(), want) || !strings.Contains(text.String(), "time=19") {
			t.Errorf("%q lacks %s or the record's time", text.String(), want)
		}
	}
}

func TestASessionWithALoggerIsFreedWhenForgotten(t *testing.T) {
	noCores(t)
	config := configure(t, bounded)
	config.SetLog(func(LogRecord) {})
	if _, err := Init(config); err != nil {
		t.Fatal(err)
	}
	noCores(t)
}
