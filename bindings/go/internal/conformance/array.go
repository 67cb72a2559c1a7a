package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"dsgd.io/dsgd"
)

// array runs put_array or get_array with elements of the dtype of word `i`.
func (w *worker) array(a arguments, i int) (string, error) {
	switch a.dtype(i) {
	case dsgd.Float32:
		return arrayOf[float32](w, a, dsgd.Float32)
	case dsgd.Float64:
		return arrayOf[float64](w, a, dsgd.Float64)
	case dsgd.Int32:
		return arrayOf[int32](w, a, dsgd.Int32)
	case dsgd.Int64:
		return arrayOf[int64](w, a, dsgd.Int64)
	case dsgd.Uint8:
		return arrayOf[uint8](w, a, dsgd.Uint8)
	case dsgd.Int8:
		return arrayOf[int8](w, a, dsgd.Int8)
	case dsgd.Uint64:
		return arrayOf[uint64](w, a, dsgd.Uint64)
	}
	return "", fmt.Errorf("no array of %v", a.dtype(i))
}

func arrayOf[T dsgd.Element](w *worker, a arguments, dtype dsgd.DType) (string, error) {
	ctx := context.Background()
	if a.name == "put_array" {
		if w.rank != a.integer(0) {
			return "", nil
		}
		shape, count := a.integers(3), 1
		for _, n := range shape {
			count *= n
		}
		return "", dsgd.PutArray(ctx, w.session, a.word(1), pattern[T](count, a.integer(4), 0), append([]int{}, shape...))
	}
	data, shape, err := dsgd.GetArray[T](ctx, w.session, a.word(0))
	h := newDigest()
	addAll(h, data)
	var sizes []string
	for _, n := range shape {
		sizes = append(sizes, strconv.Itoa(n))
	}
	if len(sizes) == 0 {
		sizes = []string{"-"}
	}
	return fmt.Sprintf("dtype=%d shape=%s %s", dtype, strings.Join(sizes, ","), h.line()), err
}
