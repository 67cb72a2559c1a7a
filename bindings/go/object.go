package dsgd

import (
	"context"
	"runtime"
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// PutObject gives data to every worker under a name; it returns when all have it. One worker calls it.
func (s *Session) PutObject(name string, data []byte) error {
	if err := checkText("name of the object", name); err != nil {
		return err
	}
	pins := pinned(data)
	defer pins.Unpin()
	var e failure
	return e.check(raw.Dsgd_object_put(s.pointer(), name, address(data), nbytes(data), &e.handle), s)
}

// GetObject is a copy of the object of that name. It waits for it until the context ends (under one that has ended, it only
// looks), and up to `step_timeout` under one that cannot end: then the error is [ErrWaitTimeout].
func (s *Session) GetObject(ctx context.Context, name string) ([]byte, error) {
	if err := checkText("name of the object", name); err != nil {
		return nil, err
	}
	var e failure
	var object uintptr
	err := untilCancelled(ctx, func(timeoutMS int) error {
		return e.check(raw.Dsgd_object_get(s.pointer(), name, timeoutMS, &object, &e.handle), s)
	})
	if err != nil {
		return nil, err
	}
	defer raw.Dsgd_object_free(object)
	data := make([]byte, raw.Dsgd_object_nbytes(object))
	copy(data, sliceAt[byte](pointerTo(raw.Dsgd_object_data(object)), int64(len(data))))
	runtime.KeepAlive(s)
	return data, nil
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
