package dsgd

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
)

func openCores() int {
	cores.Lock()
	defer cores.Unlock()
	return len(cores.all)
}

func (c *core) sizes() (bound, ops int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.bound), len(c.ops)
}

func noCores(t *testing.T) {
	t.Helper()
	eventually(t, "sessions that nobody holds are freed", func() bool { return openCores() == 0 })
}

func TestAForgottenSessionIsFreedAndItsPinsLetGo(t *testing.T) {
	noCores(t)
	var theCore *core
	func() {
		session, err := Init(configure(t, bounded))
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{session, t}
		_, _, value, gradient := w.model("p", 1, 2)
		gradient[0] = 1
		w.step(1)
		w.expect(value[0] == 0.5, "value %v", value[0])
		op, err := w.BarrierAsync()
		w.ok(err)
		<-op.Done() // so that it has a reaper, too
		w.ok(op.Err())
		theCore = session.core
	}()
	if bound, _ := theCore.sizes(); bound != 1 {
		t.Fatalf("%d pairs of buffers are pinned", bound)
	}
	noCores(t) // a Pinner that was collected with its pins would panic here
	if bound, ops := theCore.sizes(); bound != 0 || ops != 0 {
		t.Errorf("%d pairs of buffers and %d operations are left", bound, ops)
	}
}

func TestCloseLetsBuffersGo(t *testing.T) {
	single(t, func(w *worker) {
		w.model("p", 1)
		bound, _ := w.core.sizes()
		w.expect(bound == 1, "%d pairs pinned while open", bound)
		w.ok(w.Close())
		bound, _ = w.core.sizes()
		w.expect(bound == 0, "%d pairs pinned after close", bound)
	})
}

// The only things that know a parameter's slices are the pins: the collector must neither free nor reuse them.
func TestBoundSlicesLiveThoughTheProgramDropsThem(t *testing.T) {
	single(t, func(w *worker) {
		p, err := w.AddParameter("p", Float32, []int{1 << 16})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		func() {
			value := make([]float32, 1<<16)
			for i := range value {
				value[i] = 3
			}
			w.ok(Bind(r, p, value, make([]float32, 1<<16)))
		}()
		w.ok(w.Start(context.Background()))
		before, err := w.Digest()
		w.ok(err)
		for i := 0; i < 20; i++ {
			runtime.GC()
			for j := range make([][]float32, 8) { // garbage of the same size, to reuse what was freed
				garbage := make([]float32, 1<<16)
				garbage[j] = float32(j)
			}
		}
		after, err := w.Digest()
		w.ok(err)
		w.expect(before == after, "the values were overwritten: digest %x became %x", before, after)
	})
}

func TestADroppedOperationGoesOnAndIsCleanedUp(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		if w.Rank() == 0 {
			_, err := AllReduceAsync(w.Session, make([]float32, 1<<16), Sum)
			w.ok(err)
			runtime.GC()
			runtime.GC()
		}
		if w.Rank() == 1 {
			data := make([]float32, 1<<16)
			data[7] = 7
			w.ok(AllReduce(background, w.Session, data, Sum))
			w.expect(data[7] == 7 && data[8] == 0, "the dropped buffer was not all zeros: %v, %v", data[7], data[8])
		}
		w.ok(w.Barrier(background))
		eventually(w.t, "dropped operations leave the table", func() bool {
			w.core.sweep() // as the next operation would
			_, ops := w.core.sizes()
			return ops == 0
		})
	})
}

func TestAllocatedMemoryOutlivesItsSession(t *testing.T) {
	noCores(t)
	var buffers *Buffers[float32]
	func() {
		session, err := Init(configure(t, bounded))
		if err != nil {
			t.Fatal(err)
		}
		p, err := session.AddParameter("p", Float32, []int{1 << 18})
		if err != nil {
			t.Fatal(err)
		}
		r, err := session.AddReplica("cpu")
		if err != nil {
			t.Fatal(err)
		}
		if buffers, err = Alloc[float32](r, p); err != nil {
			t.Fatal(err)
		}
		if err := session.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	buffers.session = nil // the memory lives by itself
	noCores(t)
	for i := range buffers.Value { // a fault, if it is unmapped
		buffers.Value[i], buffers.Gradient[i] = float32(i), 1
	}
	if buffers.Value[1<<18-1] != 1<<18-1 {
		t.Errorf("the last value is %v", buffers.Value[1<<18-1])
	}
	runtime.KeepAlive(buffers)
}

func TestAllocatedMemoryKeepsItsSession(t *testing.T) {
	noCores(t)
	buffers := func() *Buffers[float32] {
		session, err := Init(configure(t, bounded))
		if err != nil {
			t.Fatal(err)
		}
		p, err := session.AddParameter("p", Float32, []int{4})
		if err != nil {
			t.Fatal(err)
		}
		r, err := session.AddReplica("cpu")
		if err != nil {
			t.Fatal(err)
		}
		buffers, err := Alloc[float32](r, p)
		if err != nil {
			t.Fatal(err)
		}
		return buffers
	}()
	for i := 0; i < 50; i++ { // ample for a session without buffers to be freed
		finalized := make(chan struct{})
		runtime.SetFinalizer(&buffer{}, func(*buffer) { close(finalized) })
		runtime.GC()
		<-finalized
	}
	if openCores() != 1 {
		t.Error("the session is freed though its buffers are in use")
	}
	runtime.KeepAlive(buffers)
	buffers = nil
	noCores(t)
}

// buffer is not tiny: the collector frees tiny objects in groups.
type buffer struct{ bytes [64]byte }

func TestOperationsInFlightEndWhenTheSessionCloses(t *testing.T) {
	closed := make(chan struct{})
	job(t, 2, nil, func(w *worker) {
		if w.Rank() == 0 {
			defer close(closed)
			ops := make([]*Op, 5)
			var err error
			for i := range ops {
				ops[i], err = AllReduceAsync(w.Session, make([]float32, 100), Sum)
				w.ok(err)
			}
			w.ok(w.CloseWithin(0))
			for _, op := range ops {
				select {
				case <-op.Done():
				default:
					w.t.Errorf("operation %d has not ended with Close", op.ID())
				}
				w.failing(op.Wait(background), ErrClosed)
			}
			_, inFlight := w.core.sizes()
			w.expect(inFlight == 0, "%d operations are left", inFlight)
		} else {
			<-closed // its peer has left: whatever it calls now ends with an error
			err := w.Barrier(background)
			w.expect(errors.Is(err, ErrWorkerLost) || errors.Is(err, ErrMismatch), "got %v", err)
		}
	})
}

// Everything at once while the collector moves stacks and reuses memory as fast as it can.
func TestNothingBreaksUnderTheCollector(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var stop atomic.Bool
	var collecting sync.WaitGroup
	collecting.Add(1)
	go func() {
		defer collecting.Done()
		for !stop.Load() {
			runtime.GC()
		}
	}()
	job(t, 2, nil, func(w *worker) {
		_, _, value, gradient := w.model("p", make([]float32, 1000)...)
		for i := 0; i < 30; i++ {
			for j := range gradient {
				gradient[j] = float32(j % 3)
			}
			op, err := w.StepBegin(1)
			w.ok(err)
			w.ok(w.StepFlush())
			_ = bytes.Repeat([]byte{byte(i)}, 10000)
			w.ok(op.Wait(background))
			deep(100)
			sum := []int64{int64(i), 1}
			w.ok(AllReduce(background, w.Session, sum, Sum))
			w.expect(equal(sum, []int64{int64(2 * i), 2}), "sum %v", sum)
		}
		for j := range value {
			w.expect(value[j] == -15*float32(j%3), "value %d is %v", j, value[j])
		}
	})
	stop.Store(true)
	collecting.Wait()
}

// deep grows the goroutine's stack, so that it moves.
func deep(n int) int {
	var room [512]byte
	if n == 0 {
		return int(room[0])
	}
	return deep(n-1) + int(room[n])
}

// Slices inside objects that hold pointers: cgo's checks look at the whole object, and must find nothing to refuse.
func TestSlicesInsideObjectsWithPointers(t *testing.T) {
	single(t, func(w *worker) {
		type layer struct {
			name            *string
			value, gradient [4]float32
			next            *layer
		}
		name := "dense"
		l := &layer{name: &name, next: &layer{}}
		p, err := w.AddParameter("p", Float32, []int{4})
		w.ok(err)
		r, err := w.AddReplica("cpu")
		w.ok(err)
		w.ok(Bind(r, p, l.value[:], l.gradient[:]))
		w.ok(w.SetOptimizer("sgd", "lr=1"))
		w.ok(w.Start(context.Background()))
		l.gradient[3] = 1
		w.step(1)
		w.expect(l.value == [4]float32{0, 0, 0, -1}, "values are %v", l.value)
		w.ok(AllReduce(background, w.Session, l.value[1:3], Sum))
		op, err := BroadcastAsync(w.Session, l.value[:], 0)
		w.ok(err)
		w.ok(op.Wait(background))
	})
}
