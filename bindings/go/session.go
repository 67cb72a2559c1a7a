package dsgd

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"dsgd.io/dsgd/internal/raw"
)

// Session is one worker's membership in a job. Several sessions in one process are independent. Close it: one that is
// merely forgotten leaves the job when the garbage collector finds it.
type Session struct{ core *core }

// Init joins a job: it reaches the head, or becomes it, and waits up to `init_timeout` until all workers have joined. A nil
// config means environment and defaults.
func Init(config *Config) (*Session, error) { return InitContext(context.Background(), config) }

// InitContext is [Init] under a context. When the context ends first, joining ends, the other workers are told, and the
// context's error is returned.
func InitContext(ctx context.Context, config *Config) (*Session, error) {
	var handle, op uintptr
	var log LogFunc
	err := config.use(func(configured uintptr, function LogFunc) error {
		log = function
		return call(config, func(err *uintptr) int { return raw.Dsgd_init_begin(configured, nil, &handle, &op, err) })
	})
	if err != nil {
		return nil, err
	}
	s := &Session{core: newCore(handle, log)}
	joining, _ := s.core.start(s, plainOp, nil, func(begun, _ *uintptr) int {
		*begun = op
		return 0
	})
	if err := joining.Wait(ctx); err != nil {
		if ctx != nil && err == ctx.Err() {
			_ = s.Abort("joining was cancelled: " + err.Error())
		}
		s.core.dispose()
		return nil, err
	}
	// The collector's goroutine must not wait for the network.
	runtime.SetFinalizer(s, func(s *Session) { go s.core.dispose() })
	return s, nil
}

// Run joins a job as [InitContext] does, calls body, and closes the session. If body returns an error, panics or ends its
// goroutine, this worker fails with that reason, as by [Session.Fail]; a panic then goes on. Run returns the error of
// joining, of body or of closing.
func Run(ctx context.Context, config *Config, body func(*Session) error) (err error) {
	session, err := InitContext(ctx, config)
	if err != nil {
		return err
	}
	failed, reason := true, "its goroutine ended" // body may call runtime.Goexit
	defer func() {
		panicked := recover()
		if panicked != nil {
			reason = fmt.Sprint("panic: ", panicked)
		}
		if failed {
			_ = session.Fail(strings.ReplaceAll(reason, "\x00", ""))
		}
		if closing := session.Close(); err == nil {
			err = closing
		}
		if panicked != nil {
			panic(panicked)
		}
	}()
	err = body(session)
	if failed = err != nil; failed {
		reason = err.Error()
	}
	return err
}

// pointer is the C handle; NULL, which C refuses, for a Session that Init did not make. Its user keeps s alive.
func (s *Session) pointer() uintptr {
	if s == nil || s.core == nil {
		return 0
	}
	return s.core.session
}

// Close ends the membership in good order: it waits for operations in flight, up to their deadlines, then ends them with
// [ErrClosed], waits until the last step is final (dsgd_close in dsgd.h), tells the others, and lets all buffers go.
// It returns [ErrEvicted] if the others went on without this worker before it knew that, and [ErrDiverged] if its values
// differ from theirs; the session is closed all the same. Afterwards every call on the session returns ErrClosed.
// Closing twice is fine.
func (s *Session) Close() error { return s.close(-1) }

// CloseWithin is Close with another limit on the wait for operations in flight and for the last step to be final.
func (s *Session) CloseWithin(timeout time.Duration) error { return s.close(milliseconds(timeout)) }

func (s *Session) close(timeoutMS int) error {
	if s.pointer() == 0 {
		return notASession()
	}
	defer runtime.KeepAlive(s)
	return s.core.close(timeoutMS)
}

// Abort ends all operations of all workers with [ErrAborted], this worker's rank and the reason. The session can then only
// be closed. It never blocks.
func (s *Session) Abort(reason string) error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_abort(s.pointer(), reason, err) }, "reason", reason)
}

// Fail says that this worker has failed. In a job that goes on after losses, the others go on without it: the session
// fails with [ErrWorkerLost]. In any other job it does what Abort does. It never blocks.
func (s *Session) Fail(reason string) error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_fail(s.pointer(), reason, err) }, "reason", reason)
}

// Rank of this worker, 0 .. Size()-1; -1 once the session is closed.
func (s *Session) Rank() int { return s.number(raw.Dsgd_rank(s.pointer())) }

// Size is the number of workers; -1 once the session is closed.
func (s *Session) Size() int { return s.number(raw.Dsgd_size(s.pointer())) }

// LocalRank is the rank among the workers on this node; -1 once the session is closed.
func (s *Session) LocalRank() int { return s.number(raw.Dsgd_local_rank(s.pointer())) }

// LocalSize is the number of workers on this node; -1 once the session is closed.
func (s *Session) LocalSize() int { return s.number(raw.Dsgd_local_size(s.pointer())) }

// View is the number of the view, which only grows; -1 once the session is closed.
func (s *Session) View() int64 { return int64(s.number(int(raw.Dsgd_view(s.pointer())))) }

// SessionInfo is membership and progress of a session at one moment.
type SessionInfo struct {
	ID        uint64 // number of the session, unique in the process
	View      int64  // number of the view
	Steps     int64  // number of steps that have succeeded, which is the index of the next one
	State     SessionState
	Rank      int // 0 .. Size-1
	Size      int // number of workers
	LocalRank int // rank among the workers on this node
	LocalSize int // number of workers on this node
	Replicas  int // entries of `devices` for this worker: how often AddReplica("") takes the next one
}

// Info is rank, size, state and progress at one moment. It works after Close, too.
func (s *Session) Info() (SessionInfo, error) {
	info := raw.NewSessionInfo()
	if err := call(s, func(err *uintptr) int { return raw.Dsgd_session_info_read(s.pointer(), &info, err) }); err != nil {
		return SessionInfo{}, err
	}
	return SessionInfo{ID: info.ID, View: info.View, Steps: info.Steps, State: SessionState(info.State), Rank: int(info.Rank),
		Size: int(info.Size), LocalRank: int(info.LocalRank), LocalSize: int(info.LocalSize), Replicas: int(info.Replicas)}, nil
}

// Metrics are counters since Init, by OpenMetrics name with labels: metrics[`dsgd_calls_total{call="allreduce"}`]. Reading them
// is cheap and never blocks.
func (s *Session) Metrics() (map[string]float64, error) {
	text, err := s.MetricsText()
	if err != nil {
		return nil, err
	}
	metrics := map[string]float64{}
	for _, line := range strings.Split(text, "\n") {
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if metrics[line[:end]], err = strconv.ParseFloat(line[end+1:], 64); err != nil {
			return nil, err
		}
	}
	return metrics, nil
}

// MetricsText returns the counters as OpenMetrics text, to be served to Prometheus as application/openmetrics-text.
func (s *Session) MetricsText() (string, error) { return s.text(raw.Dsgd_metrics) }

// Trace returns the latest spans of the session, as JSON that Perfetto (ui.perfetto.dev) shows as a timeline: steps, their phases, buckets,
// calls and waits.
func (s *Session) Trace() (string, error) { return s.text(raw.Dsgd_trace) }

func (s *Session) text(read func(session uintptr, text, handle *uintptr) int) (string, error) {
	var text uintptr
	if err := call(s, func(err *uintptr) int { return read(s.pointer(), &text, err) }); err != nil {
		return "", err
	}
	defer raw.Dsgd_text_free(text)
	return raw.Dsgd_text_string(text), nil
}

func (s *Session) number(result int) int {
	runtime.KeepAlive(s)
	if result < 0 {
		return -1
	}
	return result
}

// SetOptimizer sets the optimizer, before Start: "sgd", "adam", "adamw" or "none", with options such as
// "lr=0.1 momentum=0.9" ("" for defaults). Definitions and defaults are PyTorch's, but for the lr of sgd, which is 0.01;
// dsgd_optimizer_set in dsgd.h lists the options.
func (s *Session) SetOptimizer(name, options string) error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_optimizer_set(s.pointer(), name, options, err) },
		"name of the optimizer", name, "options of the optimizer", options)
}

// SetStrategy sets how gradients become new values: "simple", "ps" or "allreduce", with options such as "algorithm=ring"
// or "copies=2" ("" for none). After Start all workers call it between steps with equal arguments. When the context ends first, the change
// goes on.
func (s *Session) SetStrategy(ctx context.Context, name, options string) error {
	fault := checkTexts("name of the strategy", name, "options of the strategy", options)
	return task{caller: s, fault: fault, begin: func(op, err *uintptr) int {
		return raw.Dsgd_strategy_set(s.pointer(), name, options, nil, op, err)
	}}.run(ctx)
}

// SetLearningRate sets the learning rate from the next step on. All workers give the same rate.
func (s *Session) SetLearningRate(rate float64) error {
	return call(s, func(err *uintptr) int { return raw.Dsgd_learning_rate_set(s.pointer(), rate, err) })
}

// LossScale is the factor to multiply the loss by before the next backward pass; 1 unless `loss_scale` is
// configured. A step whose mean gradient is not finite then changes nothing on any worker: its result is Skipped. -1 once the
// session is closed.
func (s *Session) LossScale() float64 {
	scale := raw.Dsgd_loss_scale(s.pointer())
	runtime.KeepAlive(s)
	return max(scale, -1)
}

// Start checks that all workers agree on parameters, optimizer and strategy, then gives every replica of every worker the
// values of rank 0's first replica. When the context ends first, the start goes on.
func (s *Session) Start(ctx context.Context) error {
	return task{caller: s, begin: func(op, err *uintptr) int { return raw.Dsgd_start(s.pointer(), nil, op, err) }}.run(ctx)
}

// Digest of the values of all parameters of the first replica: equal bits, equal digest.
func (s *Session) Digest() (uint64, error) {
	var digest uint64
	err := call(s, func(err *uintptr) int { return raw.Dsgd_digest(s.pointer(), &digest, err) })
	return digest, err
}

func notASession() error {
	return invalid("this Session was not made by Init; call Init and check its error")
}

// milliseconds rounds up, so that a short wait stays a wait; negative durations mean "no limit of my own".
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	if d > math.MaxInt32*time.Millisecond {
		return math.MaxInt32
	}
	return int((d + time.Millisecond - 1) / time.Millisecond)
}
