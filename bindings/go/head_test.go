package dsgd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestHeadEndsWithItsJob(t *testing.T) {
	head, err := StartHead(configure(t, bounded, settings{"head": "127.0.0.1:0", "num_workers": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	if !strings.HasPrefix(head.Address(), "127.0.0.1:") || strings.HasSuffix(head.Address(), ":0") {
		t.Errorf("the head's address is %q", head.Address())
	}
	ctx, cancel := context.WithTimeout(background, time.Millisecond)
	defer cancel()
	if err := head.Wait(ctx); err != context.DeadlineExceeded {
		t.Errorf("waiting for a job that has not begun gave %v", err)
	}
	session, err := Init(configure(t, bounded, settings{"head": head.Address(), "num_workers": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if err := head.Wait(background); err != nil {
		t.Errorf("the job ended with %v", err)
	}
}

func TestHeadsDoNotShareAnAddress(t *testing.T) {
	head, err := StartHead(configure(t, settings{"head": "127.0.0.1:0"}))
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	second, err := StartHead(configure(t, settings{"head": head.Address()}))
	if !errors.Is(err, ErrAddressInUse) || !strings.Contains(err.Error(), head.Address()) {
		t.Errorf("a second head on %s: %v, %v", head.Address(), second, err)
	}
}

func TestAClosedHeadIsNotWaitedFor(t *testing.T) {
	head, err := StartHead(configure(t, settings{"head": "127.0.0.1:0"}))
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- head.Wait(background) }()
	if err := head.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !errors.Is(err, ErrClosed) {
		t.Errorf("a wait that Close ended gave %v", err)
	}
	if err := head.Wait(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("waiting for a closed head gave %v", err)
	}
	if err := head.Close(); err != nil {
		t.Errorf("closing twice gave %v", err)
	}
}
