package dsgd

import (
	"context"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

var background = context.Background()

// worker is a Session in a test. Its checks end the worker's goroutine, and its job, when they fail.
type worker struct {
	*Session
	t *testing.T
}

func (w *worker) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Errorf("rank %d: %v", w.Rank(), err)
		runtime.Goexit()
	}
}

func (w *worker) expect(holds bool, format string, values ...any) {
	w.t.Helper()
	if !holds {
		w.t.Errorf("rank %d: "+format, append([]any{w.Rank()}, values...)...)
		runtime.Goexit()
	}
}

// failing is the *Error of a call that must fail with a code.
func (w *worker) failing(err error, status Status) *Error {
	w.t.Helper()
	failed, is := err.(*Error)
	w.expect(is && failed.Status == status, "got error %v, want %v", err, status)
	w.expect(failed.Message != "", "%v has no message", status)
	return failed
}

type settings map[string]string

func configure(t *testing.T, all ...settings) *Config {
	t.Helper()
	config := NewConfig()
	for _, one := range all {
		for key, value := range one {
			if err := config.Set(key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	return config
}

// bounded keeps a defect from hanging the test.
var bounded = settings{"init_timeout": "30s", "step_timeout": "30s"}

// job runs work in `workers` sessions of this process.
func job(t *testing.T, workers int, with settings, work func(w *worker)) {
	t.Helper()
	common := settings{"num_workers": strconv.Itoa(workers)}
	if workers > 1 {
		head, err := StartHead(configure(t, common, bounded, settings{"head": "127.0.0.1:0"}))
		if err != nil {
			t.Fatal(err)
		}
		defer head.Close()
		common["head"] = head.Address()
	}
	var all sync.WaitGroup
	for i := 0; i < workers; i++ {
		config := configure(t, bounded, common, with)
		all.Add(1)
		go func() {
			defer all.Done()
			err := Run(background, config, func(session *Session) error {
				work(&worker{session, t})
				return nil
			})
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
	}
	all.Wait()
}

func single(t *testing.T, work func(w *worker)) {
	t.Helper()
	job(t, 1, nil, work)
}

// model adds one replica and one float32 parameter with bound buffers, and starts.
func (w *worker) model(name string, values ...float32) (r *Replica, p *Parameter, value, gradient []float32) {
	w.t.Helper()
	p, err := w.AddParameter(name, Float32, []int{len(values)})
	w.ok(err)
	r, err = w.AddReplica("cpu")
	w.ok(err)
	value, gradient = append([]float32(nil), values...), make([]float32, len(values))
	w.ok(Bind(r, p, value, gradient))
	w.ok(w.SetOptimizer("sgd", "lr=0.5"))
	w.ok(w.Start(context.Background()))
	return r, p, value, gradient
}

func (w *worker) step(weight float64) StepResult {
	w.t.Helper()
	result, err := w.Step(background, weight)
	w.ok(err)
	return result
}

func equal[T Element](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func isNaN(x float64) bool { return math.IsNaN(x) }

// eventually collects garbage until a condition holds: finalizers run some time after a collection, on their own goroutine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 20 s of collecting garbage", what)
		}
		runtime.GC()
		runtime.Gosched()
	}
}
