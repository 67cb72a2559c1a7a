package dsgd

import "unsafe"

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
