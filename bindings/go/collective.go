package dsgd

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// Collectives: every worker calls them in the same order with matching arguments. A mismatch fails on all of them with
// ErrMismatch, and the session goes on. The ...Async functions return at once; their buffers must then be left alone until
// the operation ends. A failed collective leaves its output undefined. Empty slices are valid.

// AllReduce leaves on every worker, in place, the reduction of all workers' data.
func AllReduce[T Element](ctx context.Context, s *Session, data []T, reduction Reduction) error {
	return s.collective(ctx, pinned(data), allReduce(s, data, reduction))
}

// AllReduceAsync begins an [AllReduce].
func AllReduceAsync[T Element](s *Session, data []T, reduction Reduction) (*Op, error) {
	return s.collectiveAsync(pinned(data), allReduce(s, data, reduction))
}

func allReduce[T Element](s *Session, data []T, reduction Reduction) begin {
	return func(op, err *uintptr) int {
		return raw.Dsgd_allreduce(s.pointer(), 0, address(data), nbytes(data), int(dtypeOf[T]()), int(reduction), op, err)
	}
}

// Broadcast leaves on every worker, in place, the data of rank root.
func Broadcast[T Element](ctx context.Context, s *Session, data []T, root int) error {
	return s.collective(ctx, pinned(data), broadcast(s, data, root))
}

// BroadcastAsync begins a [Broadcast].
func BroadcastAsync[T Element](s *Session, data []T, root int) (*Op, error) {
	return s.collectiveAsync(pinned(data), broadcast(s, data, root))
}

func broadcast[T Element](s *Session, data []T, root int) begin {
	return func(op, err *uintptr) int {
		return raw.Dsgd_broadcast(s.pointer(), 0, address(data), nbytes(data), int(dtypeOf[T]()), root, op, err)
	}
}

// AllGather fills receive with every worker's send, in rank order. counts is the number of elements of each rank, equal on
// all workers, or nil when all send as many. send may lie in its place in receive.
func AllGather[T Element](ctx context.Context, s *Session, send, receive []T, counts []int) error {
	parts, err := s.parts(counts)
	if err != nil {
		return err
	}
	return s.collective(ctx, pinned(send, receive), allGather(s, send, receive, parts))
}

// AllGatherAsync begins an [AllGather].
func AllGatherAsync[T Element](s *Session, send, receive []T, counts []int) (*Op, error) {
	parts, err := s.parts(counts)
	if err != nil {
		return nil, err
	}
	return s.collectiveAsync(pinned(send, receive), allGather(s, send, receive, parts))
}

func allGather[T Element](s *Session, send, receive []T, parts []uint64) begin {
	return func(op, err *uintptr) int {
		return raw.Dsgd_allgather(s.pointer(), 0, address(send), nbytes(send), address(receive), nbytes(receive), parts,
			int(dtypeOf[T]()), op, err)
	}
}

// ReduceScatter splits send in rank order into parts of counts elements (nil: equal parts) and fills receive with the
// reduction of this rank's part. receive may be this rank's part of send.
func ReduceScatter[T Element](ctx context.Context, s *Session, send, receive []T, counts []int, reduction Reduction) error {
	parts, err := s.parts(counts)
	if err != nil {
		return err
	}
	return s.collective(ctx, pinned(send, receive), reduceScatter(s, send, receive, parts, reduction))
}

// ReduceScatterAsync begins a [ReduceScatter].
func ReduceScatterAsync[T Element](s *Session, send, receive []T, counts []int, reduction Reduction) (*Op, error) {
	parts, err := s.parts(counts)
	if err != nil {
		return nil, err
	}
	return s.collectiveAsync(pinned(send, receive), reduceScatter(s, send, receive, parts, reduction))
}

func reduceScatter[T Element](s *Session, send, receive []T, parts []uint64, reduction Reduction) begin {
	return func(op, err *uintptr) int {
		return raw.Dsgd_reduce_scatter(s.pointer(), 0, address(send), nbytes(send), address(receive), nbytes(receive),
			parts, int(dtypeOf[T]()), int(reduction), op, err)
	}
}

// Barrier returns when all workers have called it.
func (s *Session) Barrier(ctx context.Context) error { return s.collective(ctx, nil, s.barrier) }

// BarrierAsync begins a [Session.Barrier].
func (s *Session) BarrierAsync() (*Op, error) { return s.collectiveAsync(nil, s.barrier) }

func (s *Session) barrier(op, err *uintptr) int { return raw.Dsgd_barrier(s.pointer(), 0, op, err) }

// begin is the C call of a collective. With a nil op it blocks until the collective has ended.
type begin func(op, err *uintptr) int

// collective runs to the end, or, under a context that can end, until that does.
func (s *Session) collective(ctx context.Context, pins *runtime.Pinner, call begin) error {
	if cancelled(ctx) != nil {
		op, err := s.collectiveAsync(pins, call)
		if err != nil {
			return err
		}
		return op.Wait(ctx)
	}
	if pins != nil {
		defer pins.Unpin()
	}
	var e failure
	return e.check(call(nil, &e.handle), s)
}

func (s *Session) collectiveAsync(pins *runtime.Pinner, call begin) (*Op, error) {
	if s.pointer() == 0 {
		if pins != nil {
			pins.Unpin()
		}
		return nil, notASession()
	}
	return s.core.start(s, false, pins, call)
}

// pinned holds slices where they are. Memory that is not Go's is left alone.
func pinned[T Element](buffers ...[]T) *runtime.Pinner {
	pins := new(runtime.Pinner)
	for _, buffer := range buffers {
		if cap(buffer) > 0 {
			pins.Pin(unsafe.SliceData(buffer))
		}
	}
	return pins
}

// parts checks counts, of which C reads as many as there are workers.
func (s *Session) parts(counts []int) ([]uint64, error) {
	if counts == nil {
		return nil, nil
	}
	if size := s.Size(); size >= 0 && len(counts) != size {
		return nil, invalid(fmt.Sprintf("counts has %d entries for %d workers: give one per worker, or nil", len(counts), size))
	}
	parts := make([]uint64, len(counts))
	for rank, n := range counts {
		if n < 0 {
			return nil, invalid(fmt.Sprintf("counts[%d] is %d: a number of elements is not negative", rank, n))
		}
		parts[rank] = uint64(n)
	}
	return parts, nil
}
