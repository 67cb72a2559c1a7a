package dsgd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestStrategiesTakeTheWeightedMeanOfAllWorkers(t *testing.T) {
	for _, strategy := range []string{"simple", "ps", "allreduce"} {
		for workers := 2; workers <= 3; workers++ {
			t.Run(fmt.Sprintf("%s with %d", strategy, workers), func(t *testing.T) {
				job(t, workers, nil, func(w *worker) {
					w.ok(w.SetStrategy(context.Background(), strategy, ""))
					// Only rank 0's values may count.
					_, _, value, gradient := w.model("p", float32(10*w.Rank()), 1)
					gradient[0], gradient[1] = float32(w.Rank()), 1
					sum, weighted := 0, 0
					for rank := 0; rank < workers; rank++ {
						sum += rank + 1
						weighted += rank * (rank + 1)
					}
					result := w.step(float64(w.Rank() + 1))
					w.expect(result.Weight == float64(sum) && result.Size == workers, "%+v", result)
					want := -0.5 * float32(weighted) / float32(sum)
					w.expect(near(value[0], want) && value[1] == 0.5, "values %v, want %v and 0.5", value, want)
					w.sameDigest()
				})
			})
		}
	}
}

func TestAWorkerThatFailsInRunEndsTheOthersOrIsLost(t *testing.T) {
	for _, test := range []struct {
		name       string
		fail       func() error
		reason     string
		panics     bool
		minWorkers string
	}{
		{"an error", func() error { return errors.New("no\x00 data") }, "failed: no data", false, "2"},
		{"a panic", func() error { panic("no data") }, "failed: panic: no data", true, "2"},
		{"Goexit", func() error { runtime.Goexit(); return nil }, "failed: its goroutine ended", false, "2"},
		{"an error in an elastic job", func() error { return errors.New("no\x00 data") }, "failed: no data", false, "1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := settings{"num_workers": "2", "min_workers": test.minWorkers}
			head, err := StartHead(configure(t, bounded, of, settings{"head": "127.0.0.1:0"}))
			if err != nil {
				t.Fatal(err)
			}
			defer head.Close()
			run := func(rank int, body func(*Session) error) error {
				return Run(background, configure(t, bounded, of, settings{"head": head.Address(), "rank": strconv.Itoa(rank)}), body)
			}
			var failing sync.WaitGroup
			failing.Add(1)
			go func() {
				defer failing.Done()
				defer func() {
					if panicked := recover(); (panicked != nil) != test.panics {
						t.Errorf("recovered %v", panicked)
					}
				}()
				if err := run(1, func(*Session) error { return test.fail() }); err == nil || err.Error() != "no\x00 data" {
					t.Errorf("%v instead of the error of the body", err)
				}
			}()
			var heard error
			err = run(0, func(session *Session) error {
				heard = session.Barrier(background)
				if session.Size() == 1 {
					return nil
				}
				return heard
			})
			code := ErrAborted
			if test.minWorkers == "1" {
				code = ErrViewChanged
			}
			if (err == nil) != (code == ErrViewChanged) || !errors.Is(heard, code) || !strings.Contains(heard.Error(), test.reason) {
				t.Error(err, heard)
			}
			failing.Wait()
		})
	}
}

func TestChannelsNeedNoCommonOrder(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		numbers := []int{1, 2, 3}
		if w.Rank() == 1 {
			numbers = []int{3, 2, 1}
		}
		data := make([][]float64, 4)
		ops := make([]*Op, 4)
		for _, n := range numbers {
			data[n] = []float64{float64(n)}
			op, err := AllReduceAsync(w.Channel(n).WithTimeout(time.Minute), data[n], Sum)
			w.ok(err)
			ops[n] = op
		}
		w.ok(w.Barrier(background))
		for _, n := range numbers {
			w.ok(ops[n].Wait(background))
			w.expect(data[n][0] == float64(2*n), "channel %d: %v", n, data[n])
		}
		w.expect(errors.Is(w.Channel(4).Barrier(background), ErrInvalidArgument), "channel 4")
		err := AllReduce(background, w.Channel(1).WithStream(1).WithTimeout(time.Minute), data[1], Sum)
		w.expect(errors.Is(err, ErrInvalidArgument) && strings.Contains(err.Error(), "a stream is given"), "%v", err)
	})
}

func near(a, b float32) bool { return a-b < 1e-6 && b-a < 1e-6 }

// sameDigest checks that all workers hold the same bits.
func (w *worker) sameDigest() {
	w.t.Helper()
	digest, err := w.Digest()
	w.ok(err)
	lowest, highest := []int64{int64(digest)}, []int64{int64(digest)}
	w.ok(AllReduce(background, w.Session, lowest, Min))
	w.ok(AllReduce(background, w.Session, highest, Max))
	w.expect(lowest[0] == highest[0], "digests range from %x to %x", lowest[0], highest[0])
}

func TestSwitchingStrategiesBetweenSteps(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		_, _, value, gradient := w.model("p", 0, 0, 0)
		for i, strategy := range []string{"ps", "simple", "allreduce"} {
			w.ok(w.SetStrategy(context.Background(), strategy, ""))
			gradient[i] = float32(2 * w.Rank())
			w.step(1)
		}
		w.expect(equal(value, []float32{-1.5, -1, -0.5}), "values are %v", value)
		w.failing(w.SetStrategy(context.Background(), []string{"ps", "simple"}[w.Rank()], ""), ErrMismatch)
	})
}

func TestUnevenWorkEndsTogether(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		_, _, value, gradient := w.model("p", 0)
		steps := 0
		for left := 1 + 2*w.Rank(); ; left-- {
			weight := 1.0
			if left <= 0 {
				weight = 0
			}
			gradient[0] = 1
			result := w.step(weight)
			if result.AllDone {
				w.expect(!result.Applied && result.Weight == 0, "%+v", result)
				break
			}
			steps++
		}
		w.expect(steps == 3 && value[0] == -1.5, "%d steps led to %v", steps, value[0])
	})
}

func TestStopIsSeenByAllInTheSameStep(t *testing.T) {
	job(t, 3, nil, func(w *worker) {
		w.model("p", 0)
		for step := 0; step < 4; step++ {
			if step == 2 && w.Rank() == 1 {
				w.ok(w.RequestStop())
			}
			w.expect(w.step(1).Stop == (step == 2), "step %d", step)
		}
	})
}

func TestDifferentModelsAreAMismatchOnAllWorkers(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{2 + w.Rank()})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		w.ok(Bind(r, p, make([]float32, 2+w.Rank()), make([]float32, 2+w.Rank())))
		failed := w.failing(w.Start(context.Background()), ErrMismatch)
		w.expect(strings.Contains(failed.Message, "p") && failed.Parameter == "p", "%+v", failed)
	})
}

func TestObjectsReachEveryWorker(t *testing.T) {
	job(t, 3, nil, func(w *worker) {
		text := []byte("a vocabulary")
		if w.Rank() == 1 {
			w.ok(w.PutObject(context.Background(), "vocabulary", text))
			w.ok(w.PutObject(context.Background(), "nothing", nil))
			w.failing(w.PutObject(context.Background(), "vocabulary", text), ErrExists)
		}
		got, err := w.GetObject(background, "vocabulary")
		w.ok(err)
		w.expect(string(got) == "a vocabulary", "got %q", got)
		got[0] = 'A' // a copy: others see no change
		again, err := w.GetObject(background, "vocabulary")
		w.ok(err)
		w.expect(string(again) == "a vocabulary", "got %q the second time", again)
		nothing, err := w.GetObject(background, "nothing")
		w.ok(err)
		w.expect(len(nothing) == 0, "got %q for no bytes", nothing)
		ended, cancel := context.WithCancel(background)
		cancel()
		looked, err := w.GetObject(ended, "vocabulary")
		w.expect(err == nil && string(looked) == "a vocabulary", "a look found %q, %v", looked, err)
		_, err = w.GetObject(ended, "never")
		w.expect(err == context.Canceled, "a look for what nobody put gave %v", err)
		w.ok(w.Barrier(background))
	})
}

func TestArraysKeepTypeAndShape(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		numbers := []float32{1, 2, 3, 4, 5, 6}
		if w.Rank() == 0 {
			w.ok(PutArray(background, w.Session, "table", numbers, []int{2, 3}))
			w.ok(PutArray(background, w.Session, "list", numbers, nil))
			w.ok(PutArray(background, w.Session, "scalar", []int64{-7}, []int{}))
			w.failing(PutArray(background, w.Session, "wrong", numbers, []int{2, 2}), ErrInvalidArgument)
		}
		for name, shape := range map[string][]int{"table": {2, 3}, "list": {6}} {
			data, got, err := GetArray[float32](background, w.Session, name)
			w.ok(err)
			w.expect(reflect.DeepEqual(data, numbers) && reflect.DeepEqual(got, shape), "%s: got %v of shape %v", name, data, got)
		}
		scalar, shape, err := GetArray[int64](background, w.Session, "scalar")
		w.ok(err)
		w.expect(len(scalar) == 1 && scalar[0] == -7 && len(shape) == 0, "got %v of shape %v", scalar, shape)
		_, _, err = GetArray[float64](background, w.Session, "table")
		w.expect(strings.Contains(w.failing(err, ErrInvalidArgument).Message, "float32"), "got %v", err)
		w.ok(w.Barrier(background))
		if w.Rank() == 0 {
			w.ok(w.PutObject(background, "bytes", []byte("text")))
		}
		_, _, err = GetArray[uint8](background, w.Session, "bytes")
		w.expect(strings.HasSuffix(w.failing(err, ErrInvalidArgument).Message, "; use GetObject"), "got %v", err)
		w.ok(w.Barrier(background))
	})
}

func TestDeletedNameCanBePutAgain(t *testing.T) {
	job(t, 1, settings{}, func(w *worker) {
		w.ok(w.PutObject(background, "x", []byte("old")))
		w.ok(w.DeleteObject(background, "x"))
		w.failing(w.DeleteObject(background, "x"), ErrNotFound)
		w.ok(w.PutObject(background, "x", []byte("new")))
		got, err := w.GetObject(background, "x")
		w.ok(err)
		w.expect(string(got) == "new", "got %q", got)
	})
}

func TestWaitingForAnObjectThatNobodyPuts(t *testing.T) {
	job(t, 1, settings{"step_timeout": "30ms"}, func(w *worker) {
		_, err := w.GetObject(background, "never")
		w.expect(errors.Is(err, ErrTimeout), "got %v", err)
	})
}

func TestShardsCoverEverySampleOnce(t *testing.T) {
	for workers := 1; workers <= 3; workers++ {
		t.Run(strconv.Itoa(workers)+" workers", func(t *testing.T) {
			job(t, workers, nil, func(w *worker) {
				const samples = 100
				shard, err := w.NewShard(samples, 7)
				w.ok(err)
				var orders [3][]int64
				for epoch := range orders {
					w.ok(shard.SetEpoch(uint64(epoch)))
					seen, batch := make([]int64, samples), make([]int64, 8)
					for {
						n, err := shard.Next(batch)
						w.ok(err)
						if n == 0 {
							break
						}
						orders[epoch] = append(orders[epoch], batch[:n]...)
						for _, index := range batch[:n] {
							seen[index]++
						}
					}
					w.expect(uint64(len(orders[epoch])) == shard.Size(), "%d of %d", len(orders[epoch]), shard.Size())
					w.ok(AllReduce(background, w.Session, seen, Sum))
					for index, times := range seen {
						w.expect(times == 1, "sample %d came %d times in epoch %d", index, times, epoch)
					}
				}
				w.expect(!equal(orders[0], orders[1]) && !equal(orders[1], orders[2]), "epochs have the same order")
				_, err = shard.Next(nil)
				w.failing(err, ErrInvalidArgument)

				w.expect(shard.Position() == samples, "position %d", shard.Position())
				w.ok(shard.Seek(1, samples-uint64(w.Size())))
				last := make([]int64, 2)
				left, err := shard.Next(last)
				w.ok(err)
				w.expect(left == 1, "%d indices are left for each worker", left)
				w.failing(shard.Seek(1, samples+1), ErrInvalidArgument)

				ordered, err := w.NewShard(samples, 7, Sequential)
				w.ok(err)
				batch := make([]int64, 2)
				n, err := ordered.Next(batch)
				w.ok(err)
				w.expect(n == 2 && equal(batch, []int64{int64(w.Rank()), int64(w.Rank() + workers)}), "in order: %v", batch)
				_, err = w.NewShard(samples, 7, ShardFlag(1<<20))
				w.failing(err, ErrInvalidArgument)
			})
		})
	}
}

func TestElementCountsForAnEarlierViewFailWithTheChange(t *testing.T) {
	for _, test := range []struct {
		name string
		call func(s *Session, counts []int) error
	}{
		{"AllGather", func(s *Session, counts []int) error {
			return AllGather(background, s, []int32{1}, make([]int32, len(counts)), counts)
		}},
		{"AllGatherAsync", func(s *Session, counts []int) error {
			op, err := AllGatherAsync(s, []int32{1}, make([]int32, len(counts)), counts)
			if err != nil {
				return err
			}
			return op.Wait(background)
		}},
		{"ReduceScatter", func(s *Session, counts []int) error {
			return ReduceScatter(background, s, make([]int32, len(counts)), []int32{1}, counts, Sum)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			views := settings{"num_workers": "2", "max_workers": "3"}
			head, err := StartHead(configure(t, bounded, views, settings{"head": "127.0.0.1:0"}))
			if err != nil {
				t.Fatal(err)
			}
			defer head.Close()
			var started, all sync.WaitGroup
			run := func(work func(w *worker)) {
				config := configure(t, bounded, views, settings{"head": head.Address(), "embed_head": "never"})
				all.Add(1)
				go func() {
					defer all.Done()
					if err := Run(background, config, func(session *Session) error {
						work(&worker{session, t})
						return nil
					}); err != nil {
						t.Errorf("Run: %v", err)
					}
				}()
			}
			callAmongThree := func(w *worker) {
				err := test.call(w.Session, []int{1, 1, 1})
				for errors.Is(err, ErrViewChanged) { // until the workers have agreed, and once more
					err = test.call(w.Session, []int{1, 1, 1})
				}
				w.ok(err)
			}
			for i := 0; i < 2; i++ {
				started.Add(1)
				run(func(w *worker) {
					func() {
						defer started.Done()
						w.model("p", 0)
					}()
					for deadline := time.Now().Add(30 * time.Second); w.Size() == 2; time.Sleep(time.Millisecond) {
						w.expect(time.Now().Before(deadline), "no worker has joined")
					}
					w.failing(test.call(w.Session, []int{1, 1}), ErrViewChanged)
					callAmongThree(w)
					refused := w.failing(test.call(w.Session, []int{1, 1}), ErrInvalidArgument)
					w.expect(strings.HasPrefix(refused.Message, "elementCounts has 2 entries for 3 workers: "), "%s", refused.Message)
					w.ok(w.Barrier(background))
				})
			}
			started.Wait()
			run(func(w *worker) {
				w.model("p", 0)
				callAmongThree(w)
				w.ok(w.Barrier(background))
			})
			all.Wait()
		})
	}
}

func TestRanksAndSizes(t *testing.T) {
	job(t, 3, nil, func(w *worker) {
		ranks := []int64{1 << (8 * w.Rank()), 1 << (8 * w.LocalRank())}
		w.ok(AllReduce(background, w.Session, ranks, Sum))
		w.expect(ranks[0] == 0x10101 && ranks[1] == 0x10101, "ranks %x", ranks)
		w.expect(w.Size() == 3 && w.LocalSize() == 3 && w.View() >= 0, "%d, %d, %d", w.Size(), w.LocalSize(), w.View())
		info, err := w.Info()
		w.ok(err)
		id := info.ID
		info.ID = 0
		w.expect(id > 0 && info == SessionInfo{View: w.View(), State: SessionJoined, Rank: w.Rank(), Size: 3,
			LocalRank: w.LocalRank(), LocalSize: 3, Replicas: 1}, "info of session %d: %+v", id, info)
		metrics, err := w.Metrics()
		w.ok(err)
		trace, err := w.Trace()
		w.ok(err)
		w.expect(json.Valid([]byte(trace)) && strings.Contains(trace, "allreduce"), "trace %q", trace)
		w.expect(metrics["dsgd_workers"] == 3 && metrics[`dsgd_call_bytes_total{call="allreduce"}`] == 16, "metrics %v", metrics)
	})
}

func TestJoiningFailsWithAReason(t *testing.T) {
	head, err := StartHead(configure(t, bounded, settings{"head": "127.0.0.1:0", "num_workers": "2", "token": "secret"}))
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	at := settings{"head": head.Address(), "num_workers": "2", "token": "secret", "init_timeout": "300ms"}
	for name, c := range map[string]struct {
		with   settings
		status Status
	}{
		"wrong token":      {settings{"token": "guess"}, ErrUnauthorized},
		"other job":        {settings{"job": "another"}, ErrUnauthorized},
		"other size":       {settings{"num_workers": "3"}, ErrMismatch},
		"nobody else":      {nil, ErrTimeout},
		"no head there":    {settings{"head": "127.0.0.1:1", "embed_head": "never"}, ErrUnreachable},
		"no head given":    {settings{"head": ""}, ErrInvalidArgument},
		"not a host":       {settings{"head": "no-such-host.invalid:7700"}, ErrUnreachable},
		"min over workers": {settings{"min_workers": "5"}, ErrInvalidArgument},
	} {
		if session, err := Init(configure(t, at, c.with)); !errors.Is(err, c.status) {
			t.Errorf("%s: Init gave %v, %v; want %v", name, session, err, c.status)
		}
	}
}

func TestTwoWorkersOfTheSameID(t *testing.T) {
	head, err := StartHead(configure(t, bounded, settings{"head": "127.0.0.1:0", "num_workers": "2"}))
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	at := settings{"head": head.Address(), "num_workers": "2", "worker_id": "twin", "init_timeout": "1s"}
	config := configure(t, at) // one configuration for several sessions at the same time
	results := make(chan error, 2)
	for i := 0; i < 2; i++ {
		go func() {
			session, err := Init(config)
			if err == nil {
				session.Close()
			}
			results <- err
		}()
	}
	first, second := <-results, <-results
	if !errors.Is(first, ErrExists) && !errors.Is(second, ErrExists) {
		t.Errorf("two workers of one id joined: %v, %v", first, second)
	}
}

func TestAContextEndsJoining(t *testing.T) {
	head, err := StartHead(configure(t, bounded, settings{"head": "127.0.0.1:0", "num_workers": "2"}))
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	config := configure(t, settings{"head": head.Address(), "num_workers": "2", "embed_head": "never", "init_timeout": "10m",
		"log_level": "info"})
	waiting := make(chan struct{})
	var once sync.Once
	config.SetLog(func(r LogRecord) { // the head has taken the worker in
		if strings.Contains(r.Message, "1 of 2 workers have joined") {
			once.Do(func() { close(waiting) })
		}
	})
	ctx, cancel := context.WithCancel(background)
	go func() {
		<-waiting
		cancel()
	}()
	if _, err := InitContext(ctx, config); err != context.Canceled {
		t.Errorf("InitContext returned %v", err)
	}
	// The other workers are told, and so is the head.
	if err := head.Wait(background); !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("the head says %v", err)
	}
}

func TestAContextEndsStarts(t *testing.T) {
	job(t, 2, settings{"step_timeout": "10m"}, func(w *worker) {
		p, err := w.AddParameter("weight", Float32, []int{1})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		_, err = Alloc[float32](r, p)
		w.ok(err)
		if w.Rank() == 0 {
			ctx, cancel := context.WithCancel(background)
			cancel()
			w.expect(w.Start(ctx) == context.Canceled, "start was to end with its context")
			w.ok(w.PutObject(background, "cancelled", nil)) // and the start goes on
		} else {
			_, err := w.GetObject(background, "cancelled")
			w.ok(err)
			w.ok(w.Start(background))
		}
		w.ok(w.Barrier(background))
	})
}

// The change goes on, and is made when the other worker comes.
func TestAContextEndsSetStrategy(t *testing.T) {
	job(t, 2, settings{"step_timeout": "10m"}, func(w *worker) {
		_, _, value, gradient := w.model("weight", 0)
		gradient[0] = 1
		if w.Rank() == 0 {
			ctx, cancel := context.WithTimeout(background, 30*time.Millisecond)
			defer cancel()
			err := w.SetStrategy(ctx, "ps", "")
			w.expect(errors.Is(err, context.DeadlineExceeded), "SetStrategy returned %v", err)
			w.ok(w.PutObject(background, "cancelled", nil))
		} else {
			_, err := w.GetObject(background, "cancelled")
			w.ok(err)
			w.ok(w.SetStrategy(background, "ps", ""))
		}
		w.ok(w.Barrier(background)) // after the change, in its channel
		w.step(1)
		w.expect(value[0] == -0.5, "value %v", value[0])
	})
}

// The step goes on, and is made when the other worker comes.
func TestAContextEndsSteps(t *testing.T) {
	job(t, 2, settings{"step_timeout": "10m"}, func(w *worker) {
		_, _, value, gradient := w.model("weight", 0)
		gradient[0] = 1
		if w.Rank() == 0 {
			ctx, cancel := context.WithTimeout(background, 30*time.Millisecond)
			defer cancel()
			_, err := w.Step(ctx, 1)
			w.expect(errors.Is(err, context.DeadlineExceeded), "Step returned %v", err)
			w.ok(w.PutObject(background, "cancelled", nil))
		} else {
			_, err := w.GetObject(background, "cancelled")
			w.ok(err)
			w.step(1)
		}
		w.ok(w.Barrier(background)) // after the step, in its channel
		w.expect(value[0] == -0.5, "value %v", value[0])
	})
}

// A function that returns in mid-step, because of an error, closes its session by defer.
func TestACloseInMidStepEndsTheOthersStepAndChangesNothing(t *testing.T) {
	var told sync.WaitGroup
	told.Add(1)
	job(t, 2, settings{"step_timeout": "10m"}, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{2})
		w.ok(err)
		q, err := w.AddParameter("q", Float32, []int{1})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		value, gradient := []float32{1, 2, 3}, []float32{1, 1, 1}
		w.ok(Bind(r, p, value[:2], gradient[:2]))
		w.ok(Bind(r, q, value[2:], gradient[2:]))
		w.ok(w.SetOptimizer("sgd", "lr=1"))
		w.ok(w.Start(background))
		w.step(1)
		if w.Rank() == 1 {
			defer told.Done()
			_, err := w.Step(background, 1)
			lost := w.failing(err, ErrWorkerLost)
			w.expect(lost.Rank == 0, "lost rank %d: %v", lost.Rank, lost)
			w.expect(equal(value, []float32{0, 1, 2}), "values are %v", value)
			return
		}
		func() {
			defer w.Close()
			_, err := w.StepBegin(1)
			w.ok(err)
			w.ok(r.GradientReady(p)) // and an error keeps q from being marked
		}()
		w.expect(equal(value, []float32{0, 1, 2}), "values are %v", value)
		told.Wait()
	})
}

func TestASecondCloseShortensTheFirst(t *testing.T) {
	var closed sync.WaitGroup
	closed.Add(1)
	job(t, 2, settings{"step_timeout": "10m"}, func(w *worker) {
		if w.Rank() == 1 {
			closed.Wait()
			return
		}
		defer closed.Done()
		op, err := w.BarrierAsync()
		w.ok(err)
		first := make(chan error)
		go func() { first <- w.Close() }()
		for w.SetOptimizer("sgd", "lr=1") == nil { // until the first has begun
		}
		w.ok(w.CloseWithin(0))
		w.ok(<-first)
		w.failing(op.Wait(background), ErrClosed)
	})
}
