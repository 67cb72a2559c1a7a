package dsgd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// Collectives: every worker makes the calls of a session, and those of each of its channels, in the same order with
// matching arguments. A mismatch fails on all of them with ErrMismatch, and the session goes on. The ...Async functions return at once; their buffers must then be left alone until
// the operation ends. A failed collective leaves its output undefined. Empty slices are valid. For slices over memory of a GPU see
// [Channel.WithStream].

// AllReduce leaves on every worker, in place, the reduction of all workers' data.
func AllReduce[T Element](ctx context.Context, c Caller, data []T, reduction Reduction) error {
	return allReduce(c, data, reduction).run(ctx)
}

// AllReduceAsync begins an [AllReduce].
func AllReduceAsync[T Element](c Caller, data []T, reduction Reduction) (*Op, error) {
	return allReduce(c, data, reduction).start()
}

func allReduce[T Element](c Caller, data []T, reduction Reduction) task {
	return task{caller: c, pins: pinned(data), begin: func(op, err *uintptr) int {
		return raw.Dsgd_allreduce(c.caller().pointer(), 0, address(data), address(data), nbytes(data), int(dtypeOf[T]()),
			int(reduction), c.options(), op, err)
	}}
}

// Broadcast leaves on every worker, in place, the data of rank root.
func Broadcast[T Element](ctx context.Context, c Caller, data []T, root int) error {
	return broadcast(c, data, root).run(ctx)
}

// BroadcastAsync begins a [Broadcast].
func BroadcastAsync[T Element](c Caller, data []T, root int) (*Op, error) {
	return broadcast(c, data, root).start()
}

func broadcast[T Element](c Caller, data []T, root int) task {
	if root != int(int32(root)) {
		root = -1 // refused, as every rank that does not exist
	}
	return task{caller: c, pins: pinned(data), begin: func(op, err *uintptr) int {
		return raw.Dsgd_broadcast(c.caller().pointer(), 0, address(data), nbytes(data), int(dtypeOf[T]()), root, c.options(),
			op, err)
	}}
}

// AllGather fills receive with every worker's send, in rank order. elementCounts is the number of elements of each rank, equal on
// all workers, or nil when all send as many. send may lie in its place in receive.
func AllGather[T Element](ctx context.Context, c Caller, send, receive []T, elementCounts []int) error {
	return allGather(c, send, receive, elementCounts).run(ctx)
}

// AllGatherAsync begins an [AllGather].
func AllGatherAsync[T Element](c Caller, send, receive []T, elementCounts []int) (*Op, error) {
	return allGather(c, send, receive, elementCounts).start()
}

func allGather[T Element](c Caller, send, receive []T, elementCounts []int) task {
	parts, unfit, fault := c.caller().parts(elementCounts)
	return task{caller: c, pins: pinned(send, receive), fault: fault, unfit: unfit, begin: func(op, err *uintptr) int {
		return raw.Dsgd_allgather(c.caller().pointer(), 0, address(send), nbytes(send), address(receive), nbytes(receive), parts,
			int(dtypeOf[T]()), c.options(), op, err)
	}}
}

// ReduceScatter splits send in rank order into parts of elementCounts elements (nil: equal parts) and fills receive with the
// reduction of this rank's part. receive may be this rank's part of send.
func ReduceScatter[T Element](ctx context.Context, c Caller, send, receive []T, elementCounts []int, reduction Reduction) error {
	return reduceScatter(c, send, receive, elementCounts, reduction).run(ctx)
}

// ReduceScatterAsync begins a [ReduceScatter].
func ReduceScatterAsync[T Element](c Caller, send, receive []T, elementCounts []int, reduction Reduction) (*Op, error) {
	return reduceScatter(c, send, receive, elementCounts, reduction).start()
}

func reduceScatter[T Element](c Caller, send, receive []T, elementCounts []int, reduction Reduction) task {
	parts, unfit, fault := c.caller().parts(elementCounts)
	return task{caller: c, pins: pinned(send, receive), fault: fault, unfit: unfit, begin: func(op, err *uintptr) int {
		return raw.Dsgd_reduce_scatter(c.caller().pointer(), 0, address(send), nbytes(send), address(receive), nbytes(receive),
			parts, int(dtypeOf[T]()), int(reduction), c.options(), op, err)
	}}
}

// Barrier returns when all workers have called it.
func (s *Session) Barrier(ctx context.Context) error { return barrier(s).run(ctx) }

// BarrierAsync begins a [Session.Barrier].
func (s *Session) BarrierAsync() (*Op, error) { return barrier(s).start() }

func barrier(c Caller) task {
	return task{caller: c, begin: func(op, err *uintptr) int {
		return raw.Dsgd_barrier(c.caller().pointer(), 0, c.options(), op, err)
	}}
}

// Caller makes collectives: a [Session], or a [Channel] of one.
type Caller interface {
	caller() *Session
	options() *raw.OpOptions
}

func (s *Session) caller() *Session        { return s }
func (s *Session) options() *raw.OpOptions { return nil }

// Channel makes collectives in a sequence of its own: they need no common order with the steps of the session, or with the
// collectives of other channels. A goroutine that collects metrics beside the steps uses one.
type Channel struct {
	session *Session
	given   *raw.OpOptions // apart, since C may only be given memory without Go pointers
}

// Channel is channel 0 .. 3 of the session. The session itself uses channel 0.
func (s *Session) Channel(number int) *Channel {
	channel := uint32(math.MaxUint32) // refused by every collective
	if number >= 0 && uint64(number) < math.MaxUint32 {
		channel = uint32(number)
	}
	return &Channel{s, &raw.OpOptions{TimeoutMS: -1, Channel: channel}}
}

// WithTimeout returns the same channel with a deadline of its own for each collective, in place of `step_timeout`. Collectives
// refuse a timeout of 0 or less.
func (c *Channel) WithTimeout(timeout time.Duration) *Channel {
	if timeout < 0 {
		timeout = 0 // refused by every collective; a negative number would mean step_timeout
	}
	given := *c.given
	given.TimeoutMS = int32(milliseconds(timeout))
	return &Channel{c.session, &given}
}

// WithStream returns the same channel for collectives whose slices are memory of a GPU, made by [unsafe.Slice] of a device
// pointer. Each collective reads and writes them after the work that the stream held at the call; when it has ended, the
// result is in memory, for work in every stream. Streams are numbered as in DLPack: 1 is the default stream, which counts for
// such slices where no stream is given. The program must not read or write the elements of such a slice.
func (c *Channel) WithStream(stream uintptr) *Channel {
	given := *c.given
	given.Stream = stream
	return &Channel{c.session, &given}
}

// Barrier returns when all workers have called it on this channel.
func (c *Channel) Barrier(ctx context.Context) error { return barrier(c).run(ctx) }

// BarrierAsync begins a [Channel.Barrier].
func (c *Channel) BarrierAsync() (*Op, error) { return barrier(c).start() }

func (c *Channel) caller() *Session        { return c.session }
func (c *Channel) options() *raw.OpOptions { return c.given }

// task is an operation that has not begun.
type task struct {
	caller Caller
	pins   *runtime.Pinner            // of its buffers; nil: none
	fault  error                      // why C must not be called
	unfit  error                      // in place of C's ErrInvalidArgument; nil: none
	begin  func(op, err *uintptr) int // the C call; with a nil op it blocks until the operation has ended
	blocks bool                       // begin may block with an op, too
}

// run runs to the end, or, under a context that can end, until that does.
func (t task) run(ctx context.Context) error {
	if t.fault == nil && cancelled(ctx) == nil {
		defer t.unpin()
		return t.explained(call(t.caller.caller(), func(err *uintptr) int { return t.begin(nil, err) }))
	}
	if t.blocks {
		ended := make(chan error, 1)
		go func() { ended <- t.startAndWait(ctx) }()
		select {
		case err := <-ended:
			return err
		case <-cancelled(ctx):
			return ctx.Err()
		}
	}
	return t.startAndWait(ctx)
}

func (t task) startAndWait(ctx context.Context) error {
	op, err := t.start()
	if err != nil {
		return err
	}
	return op.Wait(ctx)
}

// start begins the operation, which then unpins the buffers.
func (t task) start() (*Op, error) {
	s := t.caller.caller()
	if t.fault == nil && s.pointer() == 0 {
		t.fault = notASession()
	}
	if t.fault != nil {
		t.unpin()
		return nil, t.fault
	}
	op, err := s.core.start(s, plainOp, t.pins, t.begin)
	return op, t.explained(err)
}

// explained returns the error of the C call, or unfit in its place.
func (t task) explained(err error) error {
	if t.unfit != nil && errors.Is(err, ErrInvalidArgument) {
		return t.unfit
	}
	return err
}

func (t task) unpin() {
	if t.pins != nil {
		t.pins.Unpin()
	}
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

// parts returns the elementCounts for C, which reads one per worker. One more count follows the last: it exceeds any buffer, so C
// refuses it and reads no further.
//
// The caller may have made elementCounts for an earlier view. Then C must fail with ErrViewChanged, as on the other workers. So a
// wrong number of counts is no fault here: C gets only the count that it refuses. If the caller knows the view, C fails with
// ErrInvalidArgument, and unfit is the error in its place.
func (s *Session) parts(elementCounts []int) (parts []uint64, unfit, fault error) {
	if elementCounts == nil {
		return nil, nil, nil
	}
	if size := s.Size(); size >= 0 && len(elementCounts) != size {
		unfit = invalid(fmt.Sprintf("elementCounts has %d entries for %d workers: give one per worker, or nil", len(elementCounts), size))
		return []uint64{math.MaxUint64}, unfit, nil
	}
	parts = make([]uint64, len(elementCounts), len(elementCounts)+1)
	for rank, n := range elementCounts {
		if n < 0 {
			return nil, nil, invalid(fmt.Sprintf("elementCounts[%d] is %d: a number of elements is not negative", rank, n))
		}
		parts[rank] = uint64(n)
	}
	return append(parts, math.MaxUint64), nil, nil
}
