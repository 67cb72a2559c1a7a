package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"dsgd.io/dsgd"
)

// array runs put_array or get_array.
func (of[T]) array(w *worker, a arguments, dtype dsgd.DType) (string, error) {
	ctx := context.Background()
	if a.name == "put_array" {
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
