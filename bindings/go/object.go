package dsgd

import (
	"context"
	"fmt"
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// PutObject gives data to every worker under a name; it returns when all have it. One worker calls it. When the context ends
// first, the object goes on to the others.
func (s *Session) PutObject(ctx context.Context, name string, data []byte) error {
	return putObject(ctx, s, name, data, noDType, nil)
}

// PutArray gives an array to every worker, as [Session.PutObject] gives bytes. It is no method, since it has a type parameter. data
// has the elements in row-major order. A nil shape is one dimension of len(data); an empty one is a scalar. Workers in other
// languages get the array with its type and shape.
func PutArray[T Element](ctx context.Context, s *Session, name string, data []T, shape []int) error {
	dimensions := []int64{int64(len(data))}
	if shape != nil {
		dimensions = dimensions[:0]
		for _, n := range shape {
			dimensions = append(dimensions, int64(n))
		}
	}
	return putObject(ctx, s, name, data, int(dtypeOf[T]()), dimensions)
}

// noDType is the dtype of bytes without a type.
const noDType = -1

func putObject[T Element](ctx context.Context, s *Session, name string, data []T, dtype int, shape []int64) error {
	return task{caller: s, pins: pinned(data), fault: checkObject(name), begin: func(op, err *uintptr) int {
		return raw.Dsgd_object_put(s.pointer(), name, address(data), nbytes(data), dtype, shape, nil, op, err)
	}}.run(ctx)
}

// DeleteObject deletes the object of that name on all workers; it returns when none holds it. The name can then be put again.
// When the context ends first, the deletion goes on.
func (s *Session) DeleteObject(ctx context.Context, name string) error {
	return task{caller: s, fault: checkObject(name), begin: func(op, err *uintptr) int {
		return raw.Dsgd_object_delete(s.pointer(), name, nil, op, err)
	}}.run(ctx)
}

func checkObject(name string) error { return checkTexts("name of the object", name) }

// GetObject returns a copy of the bytes of the object `name`. It waits until the object is put, until the context ends, or for
// `step_timeout` ([ErrTimeout]). With a context that has ended it only looks.
func (s *Session) GetObject(ctx context.Context, name string) ([]byte, error) {
	found, err := s.getObject(ctx, name)
	return found.bytes, err
}

// GetArray returns the elements, in row-major order, and the shape of an array that a worker, in any language, has put. It waits as
// [Session.GetObject] does. The error is [ErrInvalidArgument] if the object is not an array of T.
func GetArray[T Element](ctx context.Context, s *Session, name string) (data []T, shape []int, err error) {
	found, err := s.getObject(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if found.dtype != int(dtypeOf[T]()) {
		holds, remedy := "bytes without a type", "GetObject"
		if found.dtype != noDType {
			holds, remedy = DType(found.dtype).String(), "GetArray of that type, or GetObject"
		}
		return nil, nil, invalid(fmt.Sprintf("object %q holds %s, not %s; use %s", name, holds, dtypeOf[T](), remedy))
	}
	return sliceAt[T](unsafe.Pointer(unsafe.SliceData(found.bytes)), int64(len(found.bytes))), found.shape, nil
}

func (s *Session) getObject(ctx context.Context, name string) (object, error) {
	if err := checkObject(name); err != nil {
		return object{}, err
	}
	if s.pointer() == 0 {
		return object{}, notASession()
	}
	op, err := s.core.start(s, getOp, nil, func(op, err *uintptr) int {
		return raw.Dsgd_object_get(s.pointer(), name, nil, nil, op, err)
	})
	if err != nil {
		return object{}, err
	}
	if err := op.Wait(ctx); err != nil {
		op.flight.abort("nobody waits for the object any more")
		return object{}, err
	}
	return op.flight.object, nil
}

// object is a copy of an object of the library's.
type object struct {
	bytes []byte // aligned for every element type
	dtype int
	shape []int
}

func copyObject(handle uintptr) object {
	nbytes := int64(raw.Dsgd_object_nbytes(handle))
	words := make([]uint64, nbytes/8+1)
	found := object{
		bytes: unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), nbytes),
		dtype: int(raw.Dsgd_object_dtype(handle)),
		shape: make([]int, raw.Dsgd_object_ndim(handle)),
	}
	copy(found.bytes, sliceAt[byte](pointerTo(raw.Dsgd_object_data(handle)), nbytes))
	for i, n := range sliceAt[int64](pointerTo(raw.Dsgd_object_shape(handle)), 8*int64(len(found.shape))) {
		found.shape[i] = int(n)
	}
	return found
}

// pointerTo makes a pointer of an address of C memory.
func pointerTo(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// untilCancelled calls a function that waits, and that C offers only with a timeout, until the context ends. A context that
// has no end lets it wait as long as it wants.
func untilCancelled(ctx context.Context, wait func(timeoutMS int) error) error {
	if cancelled(ctx) == nil {
		return wait(-1)
	}
	for timeoutMS := sliceOf(ctx); ; {
		err := wait(timeoutMS)
		if failed, ok := err.(*Error); !ok || failed.Status != ErrWaitTimeout {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
