package dsgd

import (
	"runtime"

	"dsgd.io/dsgd/internal/raw"
)

// Parameter is a named tensor that is trained.
type Parameter struct {
	session *Session
	handle  uintptr
	dtype   DType
	shape   []int

	untrained bool
}

// AddParameter registers a tensor, before Start. All workers register the same names, shapes, dtypes and flags in the same
// order. An empty shape is a scalar; a dimension of 0 is valid. Trained parameters are Float32,
// Float64, Float16 or Bfloat16.
func (s *Session) AddParameter(name string, dtype DType, shape []int, flags ...ParameterFlag) (*Parameter, error) {
	dimensions := make([]int64, len(shape))
	for i, n := range shape {
		dimensions[i] = int64(n)
	}
	var all ParameterFlag
	for _, flag := range flags {
		all |= flag
	}
	var handle uintptr
	err := call(s, func(err *uintptr) int {
		return raw.Dsgd_parameter_add(s.pointer(), name, int(dtype), dimensions, uint(all), &handle, err)
	}, "name of the parameter", name)
	if err != nil {
		return nil, err
	}
	return &Parameter{session: s, handle: handle, dtype: dtype, shape: append([]int(nil), shape...),
		untrained: all&Untrained != 0}, nil
}

// Set changes settings of this parameter: "rate=0.1" multiplies the learning rate, "decay=0" replaces the weight decay,
// "frozen=1" leaves it out of steps. For an untrained parameter, "sync=mean" sets all replicas to the mean of their values in
// every sync_period-th step, "sync=first" to the values of the first replica. Equal on all workers; before Start, or between steps
// by all of them.
func (p *Parameter) Set(options string) error {
	return call(p, func(err *uintptr) int { return raw.Dsgd_parameter_set(p.pointer(), options, err) },
		"options of the parameter", options)
}

// Name of the parameter.
func (p *Parameter) Name() string {
	defer runtime.KeepAlive(p)
	return raw.Dsgd_parameter_name(p.pointer())
}

// DType of its elements.
func (p *Parameter) DType() DType { return p.dtype }

// Shape, outermost dimension first.
func (p *Parameter) Shape() []int { return append([]int(nil), p.shape...) }

func (p *Parameter) pointer() uintptr {
	if p == nil {
		return 0
	}
	return p.handle
}
