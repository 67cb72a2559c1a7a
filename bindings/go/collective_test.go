package dsgd

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestCollectivesOverEveryType(t *testing.T) {
	for workers := 1; workers <= 3; workers++ {
		t.Run(strconv.Itoa(workers)+" workers", func(t *testing.T) {
			job(t, workers, nil, func(w *worker) {
				collectives[float32](w)
				collectives[float64](w)
				collectives[int32](w)
				collectives[int64](w)
				collectives[uint8](w)
				collectives[int8](w)
				collectives[uint64](w)
				halves := []Float16Bits{0x3c00, 0x4000} // 1, 2
				w.ok(AllReduce(background, w.Session, halves, Sum))
				w.expect(halves[0] == []Float16Bits{0x3c00, 0x4000, 0x4200}[w.Size()-1], "the sum of ones is %x", halves[0])
				data := []float64{float64(w.Rank())}
				w.ok(AllReduce(background, w.Session, data, Mean))
				w.expect(data[0] == float64(w.Size()-1)/2, "the mean of the ranks is %v", data[0])
				w.failing(AllReduce(background, w.Session, []int32{1}, Mean), ErrInvalidArgument)
				w.ok(w.Barrier(background))
			})
		})
	}
}

func collectives[T Element](w *worker) {
	rank, size := w.Rank(), w.Size()
	s := w.Session
	mine := func() []T { return []T{T(rank + 1), T(2 * (rank + 1)), 5} }
	reduced := func(combine func(a, b T) T) []T {
		all := []T{1, 2, 5}
		for i := 1; i < size; i++ {
			for j, x := range []T{T(i + 1), T(2 * (i + 1)), 5} {
				all[j] = combine(all[j], x)
			}
		}
		return all
	}
	for _, c := range []struct {
		reduction Reduction
		combine   func(a, b T) T
	}{
		{Sum, func(a, b T) T { return a + b }},
		{Prod, func(a, b T) T { return a * b }},
		{Min, func(a, b T) T { return min(a, b) }},
		{Max, func(a, b T) T { return max(a, b) }},
	} {
		data := mine()
		w.ok(AllReduce(background, s, data, c.reduction))
		w.expect(equal(data, reduced(c.combine)), "%T all-reduce %d gave %v", data, c.reduction, data)
	}
	for root := 0; root < size; root++ {
		data := mine()
		w.ok(Broadcast(background, s, data, root))
		w.expect(equal(data, []T{T(root + 1), T(2 * (root + 1)), 5}), "%T broadcast from %d gave %v", data, root, data)
	}

	// Equal parts, then rank r giving r elements, so that rank 0 has none.
	gathered := make([]T, 3*size)
	w.ok(AllGather(background, s, mine(), gathered, nil))
	counts, uneven := make([]int, size), []T{}
	for i := range counts {
		w.expect(equal(gathered[3*i:3*i+3], []T{T(i + 1), T(2 * (i + 1)), 5}), "%T all-gather gave %v", gathered, gathered)
		counts[i] = i
		for j := 0; j < i; j++ {
			uneven = append(uneven, T(i))
		}
	}
	own := append([]T(nil), uneven[rank*(rank-1)/2:rank*(rank+1)/2]...)
	got := make([]T, len(uneven))
	w.ok(AllGather(background, s, own, got, counts))
	w.expect(equal(got, uneven), "%T uneven all-gather gave %v, want %v", got, got, uneven)

	scattered := make([]T, 3)
	w.ok(ReduceScatter(background, s, gathered, scattered, nil, Sum))
	for j, x := range []T{T(rank + 1), T(2 * (rank + 1)), 5} {
		w.expect(scattered[j] == x*T(size), "%T reduce-scatter gave %v", scattered, scattered)
	}
	part := make([]T, rank)
	w.ok(ReduceScatter(background, s, uneven, part, counts, Max))
	w.expect(equal(part, own), "%T uneven reduce-scatter gave %v, want %v", part, part, own)

	// No elements at all, in memory and in none.
	w.ok(AllReduce(background, s, []T{}, Sum))
	w.ok(AllReduce[T](background, s, nil, Sum))
	w.ok(Broadcast[T](background, s, nil, 0))
	w.ok(AllGather[T](background, s, nil, nil, nil))
	w.ok(ReduceScatter[T](background, s, nil, nil, nil, Sum))
}

func TestCollectivesInPlace(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		data := []int32{0, 0}
		mine := data[w.Rank() : w.Rank()+1]
		mine[0] = int32(w.Rank() + 1)
		w.ok(AllGather(background, w.Session, mine, data, nil))
		w.expect(equal(data, []int32{1, 2}), "gathered in place %v", data)
		w.ok(ReduceScatter(background, w.Session, data, mine, nil, Sum))
		w.expect(mine[0] == int32(2*(w.Rank()+1)), "scattered in place %v", data)
	})
}

func TestManyOperationsInFlight(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		const n = 200
		ops, buffers := make([]*Op, 0, 4*n), make([][]int64, n)
		add := func(op *Op, err error) {
			w.ok(err)
			ops = append(ops, op)
		}
		gathered, scattered := make([][]int64, n), make([][]int64, n)
		for i := range buffers {
			buffers[i] = []int64{int64(i), int64(w.Rank())}
			add(AllReduceAsync(w.Session, buffers[i], Sum))
			gathered[i] = make([]int64, 2)
			add(AllGatherAsync(w.Session, []int64{int64(w.Rank() + i)}, gathered[i], nil))
			scattered[i] = make([]int64, 1)
			add(ReduceScatterAsync(w.Session, []int64{1, 2}, scattered[i], nil, Sum))
			add(BroadcastAsync(w.Session, []int64{int64(i)}, 1))
		}
		add(w.BarrierAsync())
		ids := map[uint64]bool{}
		for i := len(ops) - 1; i >= 0; i-- {
			w.ok(ops[i].Wait(background))
			ids[ops[i].ID()] = true
		}
		w.expect(len(ids) == len(ops), "%d ids for %d operations", len(ids), len(ops))
		for i := range buffers {
			w.expect(equal(buffers[i], []int64{int64(2 * i), 1}), "all-reduce %d gave %v", i, buffers[i])
			w.expect(equal(gathered[i], []int64{int64(i), int64(i + 1)}), "all-gather %d gave %v", i, gathered[i])
			w.expect(scattered[i][0] == int64(2*(w.Rank()+1)), "reduce-scatter %d gave %v", i, scattered[i])
		}
		w.expect(len(w.core.ops) == 0, "%d operations are still in the table", len(w.core.ops))
	})
}

func TestMismatchFailsOnAllAndTheSessionGoesOn(t *testing.T) {
	job(t, 2, nil, func(w *worker) {
		err := AllReduce(background, w.Session, make([]float32, 3+w.Rank()), Sum)
		w.failing(err, ErrMismatch)
		op, err := AllReduceAsync(w.Session, make([]float32, 3), Reduction(w.Rank()))
		w.ok(err)
		failed := w.failing(op.Wait(background), ErrMismatch)
		w.expect(errors.Is(op.Err(), ErrMismatch) && failed.Operation != "", "%+v", failed)
		data := []float32{1}
		w.ok(AllReduce(background, w.Session, data, Sum))
		w.expect(data[0] == 2, "after mismatches the sum of ones is %v", data[0])
	})
}

func TestCollectivesRefuseWrongArguments(t *testing.T) {
	single(t, func(w *worker) {
		s, data := w.Session, make([]float32, 4)
		for name, err := range map[string]error{
			"reduction":       AllReduce(background, s, data, Reduction(99)),
			"root":            Broadcast(background, s, data, 1),
			"negative root":   Broadcast(background, s, data, -1),
			"receive":         AllGather(background, s, data, data[:3], nil),
			"scatter":         ReduceScatter(background, s, data, data[:3], nil, Sum),
			"too few counts":  AllGather(background, s, data, data, []int{}),
			"too many counts": AllGather(background, s, data, data, []int{2, 2}),
			"negative count":  ReduceScatter(background, s, data, data, []int{-4}, Sum),
			"async counts":    w.onlyError(AllGatherAsync(s, data, data, []int{2, 2})),
			"async negative":  w.onlyError(ReduceScatterAsync(s, data, data, []int{-1}, Sum)),
			"async reduction": w.onlyError(AllReduceAsync(s, data, Reduction(-1))),
		} {
			if !errors.Is(err, ErrInvalidArgument) {
				w.t.Errorf("%s: %v", name, err)
			}
		}
		w.expect(len(w.core.ops) == 0, "refused operations stay in the table")
	})
}

func TestACancelledContextEndsTheWaitOnly(t *testing.T) {
	gaveUp := make(chan struct{})
	job(t, 2, nil, func(w *worker) {
		data := []float32{1, float32(w.Rank())}
		if w.Rank() == 1 {
			<-gaveUp
			w.ok(AllReduce(background, w.Session, data, Sum))
		} else {
			var once sync.Once
			carryOn := func() { once.Do(func() { close(gaveUp) }) }
			defer carryOn() // also when a check fails
			op, err := AllReduceAsync(w.Session, data, Sum)
			w.ok(err)
			ctx, cancel := context.WithCancel(background)
			cancel()
			w.expect(op.Wait(ctx) == context.Canceled, "waiting under a cancelled context gave %v", op.Wait(ctx))
			w.expect(op.Err() == nil && len(w.core.ops) == 1, "the operation ended with the wait: %v", op.Err())
			carryOn()
			w.ok(op.Wait(background))
			w.ok(op.Wait(ctx)) // an end that is known wins over the context
		}
		w.expect(equal(data, []float32{2, 1}), "the sum is %v", data)
	})
}

func TestBlockingCallsUnderAContext(t *testing.T) {
	gaveUp, finished := make(chan struct{}), make(chan struct{})
	job(t, 2, nil, func(w *worker) {
		ctx, cancel := context.WithCancel(background)
		if w.Rank() == 0 {
			defer close(finished)
			_, _, value, gradient := w.model("p", 0)
			gradient[0] = 1
			_, err := w.Step(ctx, 1) // a context that does not end changes nothing
			w.ok(err)
			w.expect(value[0] == -0.5, "value %v", value[0])
			w.ok(AllReduce(ctx, w.Session, []float32{1}, Sum))
			cancel()
			w.expect(w.Barrier(ctx) == context.Canceled, "no cancellation")
			close(gaveUp) // the barrier goes on: the other worker gets through it
			_, err = w.GetObject(ctx, "never")
			w.expect(err == context.Canceled, "GetObject gave %v", err)
			return
		}
		defer cancel()
		_, _, value, gradient := w.model("p", 0)
		gradient[0] = 1
		w.step(1)
		w.expect(value[0] == -0.5, "value %v", value[0])
		w.ok(AllReduce(background, w.Session, []float32{1}, Sum))
		<-gaveUp
		w.ok(w.Barrier(background))
		<-finished
	})
}

func TestAbortReachesEveryWorker(t *testing.T) {
	var joined, told sync.WaitGroup
	joined.Add(3)
	told.Add(3)
	job(t, 3, nil, func(w *worker) {
		joined.Done()
		joined.Wait()
		defer told.Wait() // nobody closes before all know
		defer told.Done()
		if w.Rank() == 1 {
			w.ok(w.Abort("the loss is not a number"))
			w.failing(w.Barrier(background), ErrAborted)
			return
		}
		failed := w.failing(w.Barrier(background), ErrAborted)
		w.expect(failed.Rank == 1 && strings.Contains(failed.Message, "the loss is not a number"), "%+v", failed)
	})
}
