package dsgd

import (
	"context"
	"runtime"
	"sync"
	"time"

	"dsgd.io/dsgd/internal/raw"
)

// Op is work in progress. Its buffers are the library's, and pinned, until it has ended, however it ends. A dropped Op goes
// on. Its buffers are unpinned when the session next begins an operation, or closes.
type Op struct {
	owner  *Session // an Op keeps its session open
	id     uint64
	flight *flight
}

// ID is the number of the operation, unique in its session.
func (o *Op) ID() uint64 { return o.id }

// Done is closed when the operation has ended. A step begun with [Session.StepBegin] ends only after all gradients are
// marked; see [Session.StepFlush]. [Op.Wait] is faster.
func (o *Op) Done() <-chan struct{} {
	if !o.flight.ended() {
		o.owner.core.startReaper()
	}
	return o.flight.done
}

// Err returns the error of an operation that has failed. It is nil for one that succeeded or has not ended.
func (o *Op) Err() error {
	if !o.flight.ended() {
		return nil
	}
	return o.flight.err
}

// Wait waits until the operation has ended and returns its error, if any. When the context ends first, its error is returned, some
// milliseconds later, and the operation goes on. Waiting marks no gradients of a step.
func (o *Op) Wait(ctx context.Context) error {
	defer runtime.KeepAlive(o)
	return o.flight.wait(ctx)
}

// StepResult is the result of a step that has ended without error.
func (o *Op) StepResult() (StepResult, error) {
	f := o.flight
	switch {
	case !f.ended():
		return StepResult{}, &Error{Status: ErrState, Rank: -1,
			Message: "the operation has not ended: wait for it before asking for its step result"}
	case f.err != nil:
		return StepResult{}, f.err
	case f.kind != stepOp:
		return StepResult{}, invalid("the operation is not a step: only those of StepBegin have a step result")
	}
	return f.result, nil
}

// flight is an operation as the package keeps it, whether or not the program still holds its Op.
type flight struct {
	core *core
	key  uintptr // the handle, as the table knows it
	kind opKind
	done chan struct{}

	mu      sync.Mutex
	handle  uintptr // valid until the operation has ended and nobody waits in C
	waiters int     // goroutines in dsgd_op_wait
	over    bool
	pins    *runtime.Pinner

	err    error // these three are written before done is closed
	result StepResult
	object object
}

// opKind says what an operation ends with.
type opKind int

const (
	plainOp opKind = iota
	stepOp         // a step result
	getOp          // an object
)

// waitSlice bounds a wait in C: after it, the wait checks whether its context has ended.
const waitSlice = 20 * time.Millisecond

// sliceOf is the time of one wait in C, in milliseconds: without end for a context that has none, 0 for one that has ended.
func sliceOf(ctx context.Context) int {
	switch {
	case cancelled(ctx) == nil:
		return -1
	case ctx.Err() != nil:
		return 0
	}
	return milliseconds(waitSlice)
}

// wait waits in C, where the caller's own thread can drive the operation: much shorter than through another goroutine.
func (f *flight) wait(ctx context.Context) error {
	f.mu.Lock()
	if f.over {
		f.mu.Unlock()
		return f.err
	}
	f.waiters++
	f.mu.Unlock()
	defer f.leave()

	for timeoutMS := sliceOf(ctx); ; {
		status := raw.Dsgd_op_wait(f.handle, timeoutMS, nil)
		if f.ended() {
			return f.err
		}
		if Status(status) != ErrWaitTimeout { // the session is being closed, and will end it
			select {
			case <-f.done:
				return f.err
			case <-cancelled(ctx):
			}
		}
		if ctx != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// abort ends the operation with ErrAborted, unless it has ended.
func (f *flight) abort(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		raw.Dsgd_op_abort(f.handle, reason, nil)
	}
}

func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters--
	f.free()
}

// ended asks C whether the operation has ended. If it has, ended frees its buffers and closes done.
func (f *flight) ended() bool {
	f.mu.Lock()
	if f.over {
		f.mu.Unlock()
		return true
	}
	var done int32
	err := call(f, func(err *uintptr) int { return raw.Dsgd_op_test(f.handle, &done, err) })
	if done != 0 {
		f.end(err)
	}
	f.mu.Unlock()
	if done != 0 {
		f.core.forget(f)
	}
	return done != 0
}

// end unpins the buffers and wakes the waiters. The caller holds mu.
func (f *flight) end(err error) {
	if f.kind == getOp && err == nil {
		var handle uintptr
		err = call(f, func(err *uintptr) int { return raw.Dsgd_op_object(f.handle, &handle, err) })
		if err == nil {
			f.object = copyObject(handle)
			raw.Dsgd_object_free(handle)
		}
	}
	if f.kind == stepOp && err == nil {
		result := raw.NewStepResult()
		err = call(f, func(err *uintptr) int { return raw.Dsgd_op_step_result(f.handle, &result, err) })
		f.result = stepResult(&result)
	}
	f.err = err
	if f.pins != nil {
		f.pins.Unpin()
		f.pins = nil
	}
	f.over = true
	f.free()
	close(f.done)
}

// free frees the handle once it is of no use. The caller holds mu.
func (f *flight) free() {
	if f.over && f.waiters == 0 {
		raw.Dsgd_op_free(f.handle)
		f.handle = 0
	}
}

// finish ends an operation of a session that was closed, and whose buffers are therefore the program's again.
func (f *flight) finish() {
	if f.ended() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.end(&Error{Status: ErrClosed, Rank: -1, Message: "the session was closed before the operation ended"})
	}
}

// cancelled is ctx.Done(), for a nil context too.
func cancelled(ctx context.Context) <-chan struct{} {
	if ctx == nil {
		return nil
	}
	return ctx.Done()
}
