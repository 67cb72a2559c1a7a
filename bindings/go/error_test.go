package dsgd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestErrorsAreToldApartByStatus(t *testing.T) {
	err := fmt.Errorf("training: %w", NewConfig().Set("num_worker", "3"))
	if !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("errors.Is(%v, ErrInvalidArgument) is false", err)
	}
	if errors.Is(err, ErrTimeout) {
		t.Errorf("errors.Is(%v, ErrTimeout) is true", err)
	}
	var failed *Error
	if !errors.As(err, &failed) {
		t.Fatalf("%v holds no *Error", err)
	}
	if failed.Status != ErrInvalidArgument || failed.Rank != -1 || failed.Parameter != "num_worker" || failed.Message == "" {
		t.Errorf("%+v", failed)
	}
	if !strings.Contains(err.Error(), failed.Message) {
		t.Errorf("%q lacks the message %q", err, failed.Message)
	}
}

func TestStatusesHaveTheirNames(t *testing.T) {
	for status, name := range map[Status]string{ErrTimeout: "ErrTimeout", ErrIO: "ErrIO", -12345: "unknown Status -12345"} {
		if status.Error() != name {
			t.Errorf("status %d is %q, want %q", int(status), status.Error(), name)
		}
	}
	if text := (&Error{Status: ErrTorn, Rank: -1}).Error(); text != "dsgd: ErrTorn" {
		t.Errorf("an error without a message reads %q", text)
	}
}

func TestMessagesUseTheNamesOfGo(t *testing.T) {
	single(t, func(w *worker) {
		_, err := w.Step(background, 1)
		failed := w.failing(err, ErrState)
		w.expect(strings.Contains(failed.Message, "a step needs Session.Start first"), "%q", failed.Message)
		w.ok(w.Close())
		failed = w.failing(w.Barrier(background), ErrClosed)
		w.expect(strings.Contains(failed.Message, "open a new one with Init"), "%q", failed.Message)
	})
	const text = "dsgd_bind: parameter 'dsgd_step' of dsgd_alloc, '/tmp/dsgd_init', DSGD_HEAD, dsgd_unknown"
	const want = "Bind: parameter 'dsgd_step' of Alloc, '/tmp/dsgd_init', DSGD_HEAD, dsgd_unknown"
	if got := inGo(text); got != want {
		t.Errorf("%q became %q", text, got)
	}
}

// Every function that takes a handle, given one that nobody made.
func TestNobodysHandlesAreRefused(t *testing.T) {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	for name, s := range map[string]*Session{"nil": nil, "zero": {}} {
		numbers := []int{s.Rank(), s.Size(), s.LocalRank(), s.LocalSize(), int(s.View())}
		for i, number := range numbers {
			if number != -1 {
				t.Errorf("%s session: number %d is %d", name, i, number)
			}
		}
		data := make([]float32, 4)
		first := func(_ any, err error) error { return err }
		calls := sessionCalls(ctx, s, data)
		calls["Close"] = s.Close()
		calls["Info"] = first(s.Info())
		calls["Metrics"] = first(s.Metrics())
		calls["Trace"] = first(s.Trace())
		calls["AddParameter"] = first(s.AddParameter("p", Float32, nil))
		for call, err := range calls {
			if !errors.Is(err, ErrInvalidArgument) {
				t.Errorf("%s session: %s gave %v", name, call, err)
			}
		}
	}
	var shard *Shard
	var replica *Replica
	var parameter *Parameter
	if n := shard.Size(); n != 0 {
		t.Errorf("a nil shard has %d samples", n)
	}
	if name := parameter.Name(); name != "" {
		t.Errorf("a nil parameter is called %q", name)
	}
	_, next := shard.Next(make([]int64, 1))
	_, alloc := Alloc[float32](replica, parameter)
	_, _, export := replica.ExportDLPack(parameter)
	for call, err := range map[string]error{
		"Shard.SetEpoch":         shard.SetEpoch(1),
		"Shard.Seek":             shard.Seek(1, 0),
		"Shard.Next":             next,
		"Replica.SetWeight":      replica.SetWeight(1),
		"Replica.GradientReady":  replica.GradientReady(parameter),
		"Replica.GradientsReady": replica.GradientsReady(parameter),
		"Replica.GradientAbsent": replica.GradientAbsent(parameter),
		"Replica.BindDLPack":     replica.BindDLPack(parameter, nil, nil),
		"Replica.ExportDLPack":   export,
		"Parameter.Set":          parameter.Set("rate=1"),
		"Bind":                   Bind(replica, parameter, []float32{1}, []float32{1}),
		"Alloc":                  alloc,
	} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%s gave %v", call, err)
		}
	}
}

// sessionCalls is what every function on a session says.
func sessionCalls(ctx context.Context, s *Session, data []float32) map[string]error {
	first := func(_ any, err error) error { return err }
	return map[string]error{
		"Abort":              s.Abort("because"),
		"Fail":               s.Fail("because"),
		"AddReplica":         first(s.AddReplica("cpu")),
		"SetOptimizer":       s.SetOptimizer("sgd", ""),
		"SetStrategy":        s.SetStrategy(context.Background(), "ps", ""),
		"SetLearningRate":    s.SetLearningRate(1),
		"Start":              s.Start(context.Background()),
		"Digest":             first(s.Digest()),
		"Step":               first(s.Step(background, 1)),
		"Step, context":      first(s.Step(ctx, 1)),
		"StepBegin":          first(s.StepBegin(1)),
		"StepFlush":          s.StepFlush(),
		"RequestStop":        s.RequestStop(),
		"AllReduce":          AllReduce(background, s, data, Sum),
		"AllReduce, context": AllReduce(ctx, s, data, Sum),
		"AllReduceAsync":     first(AllReduceAsync(s, data, Sum)),
		"Broadcast":          Broadcast(background, s, data, 0),
		"BroadcastAsync":     first(BroadcastAsync(s, data, 0)),
		"AllGather":          AllGather(background, s, data[:2], data, nil),
		"AllGatherAsync":     first(AllGatherAsync(s, data[:2], data, nil)),
		"ReduceScatter":      ReduceScatter(background, s, data, data[:2], nil, Sum),
		"ReduceScatterAsync": first(ReduceScatterAsync(s, data, data[:2], nil, Sum)),
		"Barrier":            s.Barrier(background),
		"BarrierAsync":       first(s.BarrierAsync()),
		"PutObject":          s.PutObject(context.Background(), "name", []byte{1}),
		"GetObject":          first(s.GetObject(background, "name")),
		"GetObject, context": first(s.GetObject(ctx, "name")),
		"NewShard":           first(s.NewShard(10, 0)),
	}
}

func TestTextWithNULBytesIsRefused(t *testing.T) {
	single(t, func(w *worker) {
		const text = "a\x00b"
		p, err := w.AddParameter("p", Float32, []int{1})
		w.ok(err)
		_, add := w.AddParameter(text, Float32, []int{1})
		_, replica := w.AddReplica(text)
		_, get := w.GetObject(background, text)
		for _, err := range []error{add, replica, get, p.Set(text), w.SetOptimizer(text, ""), w.SetOptimizer("sgd", text),
			w.SetStrategy(context.Background(), text, ""), w.SetStrategy(context.Background(), "ps", text), w.PutObject(context.Background(), text, nil), w.DeleteObject(background, text), w.Abort(text), w.Fail(text)} {
			failed := w.failing(err, ErrInvalidArgument)
			w.expect(strings.Contains(failed.Message, "NUL"), "message %q", failed.Message)
		}
	})
}

func TestEveryCallOnAClosedSessionSaysSo(t *testing.T) {
	single(t, func(w *worker) {
		r, p, value, gradient := w.model("p", 1, 2)
		shard, err := w.NewShard(10, 0)
		w.ok(err)
		w.ok(w.Close())
		w.ok(w.Close()) // closing twice is fine
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		calls := sessionCalls(ctx, w.Session, make([]float32, 4))
		_, calls["AddParameter"] = w.AddParameter("q", Float32, nil)
		calls["Bind"] = Bind(r, p, value, gradient)
		_, calls["Alloc"] = Alloc[float32](r, p)
		calls["Replica.SetWeight"] = r.SetWeight(1)
		calls["GradientReady"] = r.GradientReady(p)
		calls["DeleteObject"] = w.DeleteObject(background, "x")
		calls["GradientsReady"] = r.GradientsReady(p)
		calls["GradientAbsent"] = r.GradientAbsent(p)
		calls["Parameter.Set"] = p.Set("frozen=1")
		for call, err := range calls {
			if !errors.Is(err, ErrClosed) {
				w.t.Errorf("%s gave %v", call, err)
			}
		}
		w.expect(w.Rank() == -1 && w.Size() == -1 && w.LocalRank() == -1 && w.LocalSize() == -1 && w.View() == -1,
			"a closed session has a rank or size")
		info, err := w.Info()
		w.ok(err)
		w.expect(info.State == SessionClosed && info.Size == 1, "info of a closed session: %+v", info)
		w.expect(p.Name() == "p" && shard.Size() == 10, "parameter %q and shard of %d", p.Name(), shard.Size())
	})
}
