package dsgd

import (
	"context"
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// PutObject gives data to every worker under a name; it returns when all have it. One worker calls it. When the context ends
// first, the object goes on to the others.
func (s *Session) PutObject(ctx context.Context, name string, data []byte) error {
	if err := checkText("name of the object", name); err != nil {
		return err
	}
	return collective(ctx, s, pinned(data), func(op, err *uintptr) int {
		return raw.Dsgd_object_put(s.pointer(), name, address(data), nbytes(data), nil, op, err)
	})
}

// DeleteObject deletes the object of that name on all workers; it returns when none holds it. The name can then be put again.
// When the context ends first, the deletion goes on.
func (s *Session) DeleteObject(ctx context.Context, name string) error {
	if err := checkText("name of the object", name); err != nil {
		return err
	}
	return collective(ctx, s, nil, func(op, err *uintptr) int {
		return raw.Dsgd_object_delete(s.pointer(), name, nil, op, err)
	})
}

// GetObject is a copy of the object of that name. It waits for it until the context ends (under one that has ended, it only
// looks), and at most `step_timeout`: then the error is [ErrTimeout].
func (s *Session) GetObject(ctx context.Context, name string) ([]byte, error) {
	if err := checkText("name of the object", name); err != nil {
		return nil, err
	}
	if s.pointer() == 0 {
		return nil, notASession()
	}
	op, err := s.core.start(s, getOp, nil, func(op, err *uintptr) int {
		return raw.Dsgd_object_get(s.pointer(), name, nil, nil, op, err)
	})
	if err != nil {
		return nil, err
	}
	if err := op.Wait(ctx); err != nil {
		op.flight.abort("nobody waits for the object any more")
		return nil, err
	}
	return op.flight.object, nil
}

// pointerTo makes a pointer of an address of C memory.
func pointerTo(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// untilCancelled calls a function that waits, and that C offers only with a timeout, until the context ends. A context that
// has no end lets it wait as long as it wants.
func untilCancelled(ctx context.Context, wait func(timeoutMS int) error) error {
	if cancelled(ctx) == nil {
		return wait(-1)
	}
	timeoutMS := milliseconds(waitSlice)
	if ctx.Err() != nil {
		timeoutMS = 0 // looks once
	}
	for {
		err := wait(timeoutMS)
		if failed, ok := err.(*Error); !ok || failed.Status != ErrWaitTimeout {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
