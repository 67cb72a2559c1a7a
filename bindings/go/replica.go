package dsgd

import (
	"fmt"
	"runtime"
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// Replica is one copy of the model on one device of this worker.
type Replica struct {
	session *Session
	handle  uintptr
}

// AddReplica adds a copy of the model on a device, before Start: "cpu", or "" for the next entry of the configuration's
// `devices`.
func (s *Session) AddReplica(device string) (*Replica, error) {
	var handle uintptr
	err := call(s, func(err *uintptr) int { return raw.Dsgd_replica_add(s.pointer(), device, &handle, err) }, "device", device)
	if err != nil {
		return nil, err
	}
	return &Replica{session: s, handle: handle}, nil
}

// Device tells where the replica's buffers are: "cpu", "cuda:0".
func (r *Replica) Device() string { return raw.Dsgd_replica_device(r.pointer()) }

// requireHost refuses a replica on a GPU: a slice cannot refer to the memory of a GPU.
func (r *Replica) requireHost() error {
	if device := r.Device(); device != "cpu" {
		return &Error{Status: ErrUnsupported, Rank: -1, Message: fmt.Sprintf(
			"buffers of a replica on %s cannot be slices; bind DLPack tensors of that device with BindDLPack", device)}
	}
	return nil
}

// SetWeight gives this replica a contribution weight of its own from the next step on, instead of an equal part of the
// step's; a negative number goes back to that.
func (r *Replica) SetWeight(weight float64) error {
	return call(r, func(err *uintptr) int { return raw.Dsgd_replica_weight(r.pointer(), weight, err) })
}

// Bind gives dsgd slices of the program's own for one parameter of one replica: values, and gradients (nil for an untrained
// parameter). Both have exactly the parameter's number of elements. They are pinned, and used in place, until others are
// bound or the session closes; binding again is possible between steps.
func Bind[T Element](r *Replica, p *Parameter, value, gradient []T) error {
	if err := checkPair[T](r, p); err != nil {
		return err
	}
	if gradient == nil && !p.untrained && len(value) > 0 {
		return &Error{Status: ErrInvalidArgument, Rank: -1, Parameter: p.Name(), Message: fmt.Sprintf(
			"parameter '%s' is trained and needs a slice for its gradient: give one, or add the parameter as Untrained", p.Name())}
	}
	pins := pinned(value, gradient)
	var valueAt, gradientAt uintptr
	if value != nil {
		valueAt = address(value)
	}
	if gradient != nil {
		gradientAt = address(gradient)
	}
	core := r.session.core
	core.mu.Lock()
	defer core.mu.Unlock()
	err := call(r, func(err *uintptr) int {
		return raw.Dsgd_bind(r.handle, p.handle, valueAt, nbytes(value), gradientAt, nbytes(gradient), err)
	})
	if err == nil && core.closed { // closed since: nobody would unpin them later
		err = &Error{Status: ErrClosed, Rank: -1, Message: "the session was closed while buffers were bound"}
	}
	if err != nil {
		pins.Unpin()
		return err
	}
	core.replace(boundKey{r.handle, p.handle}, pins)
	return nil
}

// Buffers is memory of the library for one parameter of one replica: the fastest, since it may lie where peers reach it.
// The slices are valid as long as the Buffers or the [Session] is reachable, also beyond Close; a slice alone does not keep
// the memory. Buffers keep their Session reachable.
type Buffers[T Element] struct {
	Value    []T
	Gradient []T // nil for an untrained parameter

	memory  *memory
	session *Session // keeps the Session reachable while the buffers are
}

type memory struct{ handle uintptr }

// Alloc binds a parameter of a replica to memory of the library, zeroed. Calling it again gives the same memory.
func Alloc[T Element](r *Replica, p *Parameter) (*Buffers[T], error) {
	if err := checkPair[T](r, p); err != nil {
		return nil, err
	}
	var value, gradient unsafe.Pointer
	err := call(r, func(err *uintptr) int { return raw.Dsgd_alloc(r.handle, p.handle, &value, &gradient, err) })
	if err != nil {
		return nil, err
	}
	var handle uintptr
	err = call(r, func(err *uintptr) int { return raw.Dsgd_memory_get(r.handle, p.handle, &handle, err) })
	if err != nil {
		return nil, err
	}
	m := &memory{handle}
	runtime.SetFinalizer(m, func(m *memory) { raw.Dsgd_memory_free(m.handle) })
	bytes := raw.Dsgd_memory_nbytes(handle)
	return &Buffers[T]{Value: sliceAt[T](value, bytes), Gradient: sliceAt[T](gradient, bytes), memory: m, session: r.session}, nil
}

// BindDLPack is [Bind] with tensors of other libraries in the process: pointers to struct DLManagedTensorVersioned of
// DLPack 1.x. On success dsgd owns both and calls their deleters when they are bound no more; on failure they stay the
// caller's. gradient is nil for an untrained parameter.
func (r *Replica) BindDLPack(p *Parameter, value, gradient unsafe.Pointer) error {
	if r == nil || p == nil || r.session == nil {
		return missing()
	}
	core := r.session.core
	core.mu.Lock()
	defer core.mu.Unlock()
	err := call(r, func(err *uintptr) int {
		return raw.Dsgd_bind_dlpack(r.handle, p.handle, uintptr(value), uintptr(gradient), err)
	})
	if err == nil {
		core.replace(boundKey{r.handle, p.handle}, nil)
	}
	return err
}

// ExportDLPack makes tensors over the memory of [Alloc], for other libraries in the process: pointers to struct
// DLManagedTensorVersioned. Each keeps the memory until its deleter is called; gradient is nil for an untrained parameter.
func (r *Replica) ExportDLPack(p *Parameter) (value, gradient unsafe.Pointer, err error) {
	if r == nil || p == nil {
		return nil, nil, missing()
	}
	to := new(unsafe.Pointer)
	if p.untrained {
		to = nil
	}
	err = call(r, func(err *uintptr) int { return raw.Dsgd_export_dlpack(r.handle, p.handle, &value, to, err) })
	if err == nil && to != nil {
		gradient = *to
	}
	return value, gradient, err
}

// GradientReady marks this gradient as complete: it will not change until the step ends. Any goroutine, any order.
func (r *Replica) GradientReady(p *Parameter) error {
	return r.GradientReadyOn(p, 0)
}

// GradientReadyOn marks a gradient on a GPU. It is complete once the work that the stream contains now is done. Streams are
// numbered as in DLPack. Gradients travel in buckets, so the step may also wait for work that is enqueued until the last
// gradient of the same bucket is marked. Keep the stream until the step has ended: work enqueued in it afterwards sees the
// new values.
func (r *Replica) GradientReadyOn(p *Parameter, stream uintptr) error {
	return call(r, func(err *uintptr) int { return raw.Dsgd_gradient_ready(r.pointer(), p.pointer(), stream, err) })
}

// GradientsReady is GradientReady for several parameters, in one call. If one gradient cannot be marked, none is.
func (r *Replica) GradientsReady(parameters ...*Parameter) error {
	return r.GradientsReadyOn(0, parameters...)
}

// GradientsReadyOn is GradientsReady for gradients on a GPU that are all complete in one stream.
func (r *Replica) GradientsReadyOn(stream uintptr, parameters ...*Parameter) error {
	handles := make([]uintptr, len(parameters))
	for i, p := range parameters {
		handles[i] = p.pointer()
	}
	return call(r, func(err *uintptr) int { return raw.Dsgd_gradients_ready(r.pointer(), handles, stream, err) })
}

// StreamWait makes work that is enqueued in the stream afterwards see the new values of all steps that have ended, as work
// in the default stream does. Call it for streams on which no gradient was marked. For host memory give 0; nothing happens.
func (r *Replica) StreamWait(stream uintptr) error {
	return call(r, func(err *uintptr) int { return raw.Dsgd_stream_wait(r.pointer(), stream, err) })
}

// GradientAbsent says that this replica has no gradient of this parameter in the step begun, or, with none begun, in the
// next one: its weight then does not count for that parameter.
func (r *Replica) GradientAbsent(p *Parameter) error {
	return call(r, func(err *uintptr) int { return raw.Dsgd_gradient_absent(r.pointer(), p.pointer(), err) })
}

func (r *Replica) pointer() uintptr {
	if r == nil {
		return 0
	}
	return r.handle
}

func missing() error {
	return invalid("the replica or the parameter is nil: use those that AddReplica and AddParameter returned")
}

// checkPair finds what C cannot see: elements of another type with the right number of bytes.
func checkPair[T Element](r *Replica, p *Parameter) error {
	if r == nil || p == nil || r.session == nil || p.session == nil {
		return missing()
	}
	if got := dtypeOf[T](); got != p.dtype {
		return &Error{Status: ErrInvalidArgument, Rank: -1, Parameter: p.Name(), Message: fmt.Sprintf(
			"parameter '%s' has elements of %v, the buffers have %v: give slices of %v", p.Name(), p.dtype, got, p.dtype)}
	}
	return r.requireHost()
}
