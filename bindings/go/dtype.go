package dsgd

import (
	"unsafe"

	"dsgd.io/dsgd/internal/raw"
)

// DType is an element type.
type DType int32

const (
	Float32 DType = 0
	Float64 DType = 1
	Int32   DType = 2
	Int64   DType = 3
	Uint8   DType = 4

	Float16Type  DType = 5
	Bfloat16Type DType = 6
)

// Float16 and Bfloat16 are the bits of half types, for which Go has no type of its own: IEEE 754 binary16, and the upper half of
// a float32.
type (
	Float16  uint16
	Bfloat16 uint16
)

// Size is the number of bytes of one element, 0 for an unknown type.
func (d DType) Size() int { return int(raw.Dsgd_dtype_size(int(d))) }

func (d DType) String() string {
	switch d {
	case Float32:
		return "float32"
	case Float64:
		return "float64"
	case Int32:
		return "int32"
	case Int64:
		return "int64"
	case Uint8:
		return "uint8"
	case Float16Type:
		return "float16"
	case Bfloat16Type:
		return "bfloat16"
	}
	return "unknown dtype"
}

// Element is a Go type that buffers may be made of.
type Element interface {
	float32 | float64 | int32 | int64 | uint8 | Float16 | Bfloat16
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case int32:
		return Int32
	case int64:
		return Int64
	case Float16:
		return Float16Type
	case Bfloat16:
		return Bfloat16Type
	default:
		return Uint8
	}
}

// Reduction is how a collective combines the workers' elements.
type Reduction int32

const (
	Sum  Reduction = 0
	Min  Reduction = 1
	Max  Reduction = 2
	Prod Reduction = 3
	Mean Reduction = 4 // floating point only
)

// empty stands in for buffers of no elements: C wants an address even then.
var empty [8]float64

// address and nbytes describe a slice to C. The slice must be pinned, or be C memory.
func address[T Element](data []T) uintptr {
	if cap(data) == 0 {
		return uintptr(unsafe.Pointer(&empty))
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(data)))
}

func nbytes[T Element](data []T) int64 {
	var zero T
	return int64(len(data)) * int64(unsafe.Sizeof(zero))
}

// sliceAt makes a slice over C memory.
func sliceAt[T Element](memory unsafe.Pointer, bytes int64) []T {
	var zero T
	if memory == nil {
		return nil
	}
	return unsafe.Slice((*T)(memory), bytes/int64(unsafe.Sizeof(zero)))
}
