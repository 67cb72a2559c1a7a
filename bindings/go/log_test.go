package dsgd

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

func TestLogRecordsReachTheFunction(t *testing.T) {
	var mu sync.Mutex
	var levels []LogLevel
	var messages []string
	config := configure(t, bounded, settings{"log_level": "debug", "head": "127.0.0.1:0"})
	config.SetLog(func(level LogLevel, message string) {
		mu.Lock()
		defer mu.Unlock()
		levels, messages = append(levels, level), append(messages, message)
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
	if len(messages) == 0 {
		t.Fatal("joining and leaving a job left nothing in the log, at level debug")
	}
	for i, message := range messages {
		if message == "" || strings.HasSuffix(message, "\n") || levels[i] < LogError || levels[i] > LogDebug {
			t.Errorf("record %d: level %d, %q", i, levels[i], message)
		}
	}
}

func TestLogRecordsReachTheLogger(t *testing.T) {
	var text bytes.Buffer
	config := configure(t, bounded, settings{"log_level": "debug", "head": "127.0.0.1:0"})
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
		log(level, "hello")
		if !strings.Contains(text.String(), "level="+name+" ") {
			t.Errorf("level %d is written as %q", level, text.String())
		}
	}
}

func TestASessionWithALoggerIsFreedWhenForgotten(t *testing.T) {
	noCores(t)
	config := configure(t, bounded)
	config.SetLog(func(LogLevel, string) {})
	if _, err := Init(config); err != nil {
		t.Fatal(err)
	}
	noCores(t)
}
